"""The verbs that run on a configuration, and the arguments that each has of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

CKPT_PATH = "last (of the newest run with these settings), a run's folder, or a checkpoint file"


# What a verb needs that reads a run.
_NEEDED: Mapping[str, Mapping[str, Any]] = {
    "--ckpt_path": {"type": str, "required": True, "help": CKPT_PATH}
}


@dataclass(frozen=True)
class Verb:
    """A verb's command line.

    Attributes:
        own: Its own arguments, as ``add_argument`` takes them; they are no part of the
            configuration.
        model: Whether the verb needs a model.
        data: Whether it needs data.
        description: What its help says first.
    """

    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    model: bool = True
    data: bool = True
    description: str | None = None


VERBS = {
    "fit": Verb({"--ckpt_path": {"type": str | None, "help": f"go on from there: {CKPT_PATH}"}}),
    "test": Verb(
        {
            **_NEEDED,
            "--reliability": {
                "action": "store_true",
                "help": "also write what the reliability diagram of pfl plot shows into the run's "
                "folder",
            },
        }
    ),
    "validate": Verb(_NEEDED),
    "predict": Verb(
        {
            **_NEEDED,
            "--split": {
                "type": Literal["train", "val", "test"],
                "default": "test",
                "help": "of data",
            },
            "--out": {
                "type": str | None,
                "help": "the folder to write (default: predictions, in RUN)",
            },
        }
    ),
    "export": Verb(
        {
            **_NEEDED,
            "--client": {"type": int, "required": True, "help": "number of the client"},
            "output": {"type": str, "help": "the file to write"},
        }
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
    ),
    "check": Verb(
        data=False,
        description="Hold a method to every promise that the loop and the engines rely on, such as "
        "that engines agree and that a resumed run equals an unbroken one. Each promise is "
        "examined on three to five clients with a few samples of five numbers in three classes; "
        "that takes seconds. Name the class (pfl check my_package.MyMethod), or give a "
        "configuration for a method with arguments of its own (pfl check --config file.yaml "
        "--model.rank 2). Of a configuration the arguments of the model count: the argument net, "
        "and every network that learns its number of classes from the data, is replaced by one of "
        "a few units; plain SGD replaces the optimizer; loop and data are not used. Exit code: "
        "0 all kept, 1 one broken, 2 the method cannot be built.",
    ),
}
CONFIG_HELP = "a YAML file; of several, later ones win, and flags last"
SEED_HELP = "all random choices derive from it"
# What the command line leaves to be said, other than Python: runs are kept.
LOOP_DEFAULTS = {"default_root_dir": "runs", "sampler": {"class_path": "UniformSampler"}}


def usage(own: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a line that begins with a verb's own arguments."""
    words = ["%(prog)s"]
    for name, options in own.items():
        dashed, flag = name.startswith("-"), options.get("action") == "store_true"
        word = name if not dashed or flag else f"{name} {name.lstrip('-').upper()}"
        words.append(word if options.get("required") or not dashed else f"[{word}]")
    return " ".join([*words, "--config FILE", "[--any.key=VALUE of the configuration ...]"])
