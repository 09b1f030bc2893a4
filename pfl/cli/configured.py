"""The verbs that run on a configuration, and their own arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

CKPT_PATH = "last (the newest run with these settings), a run folder, or a checkpoint file"


# The argument of every verb that reads a run.
_NEEDED: Mapping[str, Mapping[str, Any]] = {
    "--ckpt_path": {"type": str, "required": True, "help": CKPT_PATH}
}
# That of a verb which lets the clients of another file join a run.
_JOIN: Mapping[str, Mapping[str, Any]] = {
    "--join": {
        "type": int | None,
        "help": "let the clients of another file (--data FILE) join the run, with this number of "
        "local rounds each",
    }
}


@dataclass(frozen=True)
class Verb:
    """A verb's command line.

    Attributes:
        own: Its own arguments, as ``add_argument`` takes them; they are not part of the
            configuration.
        model: Whether the verb needs a model.
        data: Whether it needs data.
        named: Whether the first word may be the name of the model.
        description: First lines of its help.
    """

    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    model: bool = True
    data: bool = True
    named: bool = False
    description: str | None = None

    def words(self, argv: Sequence[str]) -> Sequence[str]:
        """Return a command line with the flag of a model that is named by the first word."""
        bare = self.named and argv and not argv[0].startswith("-")
        return ["--model.class_path", *argv] if bare else argv


VERBS = {
    "fit": Verb(
        {"--ckpt_path": {"type": str | None, "help": f"resume from: {CKPT_PATH}"}},
        description="Train a federation.",
    ),
    "test": Verb(
        {
            **_NEEDED,
            **_JOIN,
            "--reliability": {
                "action": "store_true",
                "help": "also write the data of the reliability diagram (see pfl plot) into the "
                "run folder",
            },
            "--cross": {
                "action": "store_true",
                "help": "also test each client's model on every client's test data, and write the "
                "matrix into the run folder",
            },
        },
        description="Test the models of a checkpoint.",
    ),
    "validate": Verb(
        _NEEDED, description="Test the models of a checkpoint on the clients' validation data."
    ),
    "predict": Verb(
        {
            **_NEEDED,
            **_JOIN,
            "--split": {
                "type": Literal["train", "val", "test"],
                "default": "test",
                "help": "the split to predict: train, val or test (default: test)",
            },
            "--out": {
                "type": str | None,
                "help": "the folder to write (default: predictions, in the run folder)",
            },
        },
        description="Write the predictions of each client's personalised model, one CSV file each.",
    ),
    "export": Verb(
        {
            **_NEEDED,
            **_JOIN,
            "--client": {
                "type": int | str,
                "required": True,
                "help": "number or name of the client",
            },
            "output": {"type": str, "help": "the file to write"},
        },
        description="Write one client's personalised model as a Lightning checkpoint.",
    ),
    "data inspect": Verb(
        {
            "--out": {
                "type": str | None,
                "help": "the picture to write (default: partition.png, beside the runs of this "
                "name)",
            }
        },
        model=False,
        description="Show how the data are divided among the clients, as tables and a picture.",
    ),
    "check": Verb(
        data=False,
        named=True,
        description="Check that a method keeps every promise that the loop and the engines rely "
        "on: for example, that all engines agree and that a resumed run equals an uninterrupted "
        "one. The checks use three to five clients with a few samples of five numbers in three "
        "classes, and take seconds. Name the class (pfl check my_package.MyMethod), or give a "
        "configuration if the method needs arguments (pfl check --config file.yaml "
        "--model.rank 2). Only the model's arguments are taken from the configuration: the "
        "argument net, and every network that takes its number of classes from the data, is "
        "replaced by a very small one, and the optimizer by plain SGD; loop and data are ignored. "
        "Exit code: 0 if all promises are kept, 1 if one is broken, 2 if the method cannot be "
        "built.",
    ),
}
# Arguments of every verb that are not part of the configuration.
COMMON: Mapping[str, Mapping[str, Any]] = {
    "--download_weights": {
        "action": "store_true",
        "help": "let networks of torchvision download pretrained weights",
    }
}
CONFIG_HELP = "a YAML file; later files and flags override earlier ones"
SEED_HELP = "seed of all random choices"
# Defaults on the command line that differ from Python's: runs are stored.
LOOP_DEFAULTS = {"default_root_dir": "runs", "sampler": {"class_path": "UniformSampler"}}


def usage(own: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a usage line, with a verb's own arguments first."""
    words = ["%(prog)s"]
    for name, options in own.items():
        dashed, flag = name.startswith("-"), options.get("action") == "store_true"
        word = name if not dashed or flag else f"{name} {name.lstrip('-').upper()}"
        words.append(word if options.get("required") or not dashed else f"[{word}]")
    return " ".join([*words, "--config FILE", "[--any.key=VALUE ...]"])
