"""Flags, files and one's own classes are read in the same way, and checked before anything runs."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from pfl.__main__ import main
from pfl.cli import preflight
from pfl.cli.config import Experiment
from pfl.cli.explain import UsageError
from pfl.cli.parser import make_parser
from tests.helpers.messages import parts

CONFIG = """\
loop: {rounds: 2, default_root_dir: null, progress: false}
model: {class_path: FedAvg, init_args: {net: {class_path: MLP}}}
data: {class_path: Digits, init_args: {num_clients: 4, partition: IID}}
"""
FIT = ["--config", "c.yaml"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(own_folder, monkeypatch):
    Path("c.yaml").write_text(CONFIG)
    monkeypatch.delitem(sys.modules, "mine", raising=False)


def values(*words):
    return Experiment.parse(make_parser("fit"), [*FIT, *words]).values


NUMBERS = (
    "7",
    "-7",
    "+7",
    "0x10",
    "1_0",
    "1e1",
    "10.0",
    "010",
    "1:30",
    "08",
    "7.5",
    "seven",
    "null",
)


@pytest.mark.parametrize("text", NUMBERS)
@pytest.mark.parametrize("key", ["seed", "loop.rounds", "loop.gradient_clip_val"])
def test_a_flag_and_a_file_read_a_number_alike(key, text):
    section, _, name = key.rpartition(".")
    Path("more.yaml").write_text(f"{section}: {{{name}: {text}}}" if section else f"{key}: {text}")
    read = []
    for words in ([f"--{key}={text}"], ["--config", "more.yaml"]):
        try:
            read.append(values(*words)[key])
        except UsageError:
            read.append("refused")
    assert read[0] == read[1]
    assert read[0] == "refused" or text not in ("010", "1:30", "08", "seven")


@pytest.mark.parametrize(
    "flag",
    [
        *("--seed=010", "--seed=1:30", "--loop.rounds=03", "--data.mean=[01, 02]"),
        *(
            "--loop.evaluate_at=[01]",
            "--data.loss={label_smoothing: 00.1}",
            "--model.net.hidden=064",
        ),
        "--data.partition={class_path: Dirichlet, init_args: {alpha: 01}}",
    ],
)
def test_a_number_that_can_be_read_in_two_ways_is_refused_by_its_flag(flag, capsys):
    """Even where the configuration is only printed."""
    assert main(["fit", *FIT, flag, "--print_config"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"pfl fit: error: {flag.partition('=')[0]}: ")
    assert "may be read in two ways" in said


@pytest.mark.parametrize(
    "words",
    [
        ["export", *FIT, "--ckpt_path=last", "--client=01", "x.ckpt"],
        ["test", *FIT, "--ckpt_path=last", "--split=test", "--join=03"],
        ["bench", "verify", "x.json", "--seed", "010"],
    ],
)
def test_so_is_a_number_of_a_command(words, capsys):
    with suppress(SystemExit):
        assert main(words) == 2
    said = capsys.readouterr().err
    assert "two ways" in said or "--join" in said


def test_a_text_may_look_like_such_a_number():
    assert values("--loop.name=010").loop.name == "010"


@pytest.mark.parametrize("early", [True, False])
def test_a_flag_overrides_a_file_wherever_it_stands(early):
    files, flags = ["--config", "c.yaml"], ["--loop.rounds=5", "--seed", "3"]
    words = [*flags, *files] if early else [*files, *flags]
    found = Experiment.parse(make_parser("fit"), words).values
    assert (found.loop.rounds, found.seed, found.data.init_args.num_clients) == (5, 3, 4)


def test_the_folder_of_a_sweep_is_overridden_by_a_file(monkeypatch):
    from pfl.cli.runs import fit_experiment

    monkeypatch.setenv("WANDB_SWEEP_ID", "abc")
    assert fit_experiment(FIT).values.loop.default_root_dir is None
    Path("c.yaml").write_text(CONFIG.replace("default_root_dir: null, ", ""))
    assert fit_experiment(FIT).values.loop.default_root_dir == str(Path("runs", "sweeps", "abc"))


def test_a_list_names_the_nearest_word(capsys):
    with pytest.raises(SystemExit) as end:
        main(["list", "method"])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "'method'; did you mean 'methods'?" in said
    assert said.count("\n") == 1


OWN = """
import torch
from lightning_modules.base import ClientModule


class Mine(ClientModule):
    extra = ("spread",)

    def __init__(self, net, WIDTHepochs=3, **options):
        super().__init__(net, epochs=epochs, **options)
        self.spread = torch.nn.Buffer(torch.zeros(()))
"""


def test_a_method_need_not_declare_the_types_that_its_base_declares(capsys):
    """As the first class of docs/own_server.md; ``pfl check`` and ``pfl fit`` agree."""
    Path("mine.py").write_text(OWN.replace("WIDTH", ""))
    words = ["--model=mine.Mine", "--model.net=MLP", "--model.epochs=2"]
    module = Experiment.parse(make_parser("fit"), [*FIT, *words]).module
    assert (module.epochs, type(module.net).__name__) == (2, "MLP")
    assert values("--model=mine.Mine").model.init_args.epochs == 3
    with pytest.raises(UsageError, match=parts("--model.epochs: ~ int ~ two")):
        preflight.check("fit", [*FIT, *words, "--model.epochs=two"])
    with pytest.raises(UsageError, match=parts("--model.net: names os.system")):
        values("--model=mine.Mine", "--model.net=os.system")


def test_any_other_argument_needs_a_type(capsys):
    Path("mine.py").write_text(OWN.replace("WIDTH", "width, "))
    for command in ("fit", "check"):
        assert main([command, *FIT, "--model=mine.Mine", "--model.width=3"]) == 2
        assert "declare the type of the argument 'width' of Mine" in capsys.readouterr().err


def test_public_data_that_are_missing_are_told_before_their_number(capsys):
    assert main(["fit", *FIT, "--model=FedMD"]) == 2
    assert "--model: FedMD needs public data, and the data have none" in capsys.readouterr().err
    public = {"class_path": "Digits", "init_args": {"num_clients": 1, "partition": "IID"}}
    preflight.check("fit", [*FIT, "--model=FedMD", f"--data.public={json.dumps(public)}"])
