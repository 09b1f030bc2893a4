"""Flags, files and one's own classes are read in the same way, and checked before anything runs."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from pfl.__main__ import main
from pfl.cli.config import Experiment
from pfl.cli.explain import UsageError
from pfl.cli.reading import read
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
    return Experiment.parse("fit", [*FIT, *words]).values


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
    found = Experiment.parse("fit", words).values
    assert (found.loop.rounds, found.seed, found.data.init_args.num_clients) == (5, 3, 4)


def test_the_folder_of_a_sweep_is_overridden_by_a_file(monkeypatch):
    monkeypatch.setenv("WANDB_SWEEP_ID", "abc")
    assert Experiment.parse("fit", FIT).values.loop.default_root_dir is None
    Path("c.yaml").write_text(CONFIG.replace("default_root_dir: null, ", ""))
    assert Experiment.parse("fit", FIT).values.loop.default_root_dir == str(
        Path("runs", "sweeps", "abc")
    )


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
    module = Experiment.parse("fit", [*FIT, *words]).module
    assert (module.epochs, type(module.net).__name__) == (2, "MLP")
    assert values("--model=mine.Mine").model.init_args.epochs == 3
    with pytest.raises(UsageError, match=parts("--model.epochs: ~ int ~ two")):
        read("fit", [*FIT, *words, "--model.epochs=two"])
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
    read("fit", [*FIT, "--model=FedMD", f"--data.public={json.dumps(public)}"])


MERGED = {
    # A class keeps of the one before it what it takes, of the right type.
    "net": (
        ["--model.net.hidden=9", "--model.net=LeNet5", "--model.net.channels=[2,3]"],
        {"class_path": "lightning_modules.LeNet5", "init_args": {"channels": [2, 3]}},
    ),
    "optimizer": (
        ["--model.optimizer=SGD", "--model.optimizer.lr=0.5", "--model.optimizer=Adam"],
        {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.5}},
    ),
    # What is appended has its own arguments; later flags are the last one's.
    "callbacks": (
        [
            "--loop.callbacks=[EarlyStopping]",
            "--loop.callbacks+={class_path: EarlyStopping, init_args: {patience: 7}}",
            "--loop.callbacks.mode=min",
        ],
        [
            {"class_path": "pfl.EarlyStopping", "init_args": {}},
            {"class_path": "pfl.EarlyStopping", "init_args": {"patience": 7, "mode": "min"}},
        ],
    ),
    # A word stays one until its class gets arguments.
    "engine": (["--loop.engine=threads"], "threads"),
    "engine of its own": (
        ["--loop.engine=processes", "--loop.engine.workers=2"],
        {"class_path": "pfl.engines.processes.ProcessesEngine", "init_args": {"workers": 2}},
    ),
    "metrics": (
        ["--data.metrics=[torchmetrics.AUROC]", "--data.metrics+=torchmetrics.F1Score"],
        ["torchmetrics.AUROC", "torchmetrics.F1Score"],
    ),
}


@pytest.mark.parametrize("case", MERGED)
def test_settings_are_merged_in_their_order(case):
    words, expected = MERGED[case]
    found = read("fit", [*FIT, *words])._walk.merged.content
    for key in words[0].partition("=")[0].lstrip("-").split(".")[:2]:
        found = found.get("init_args", found)[key]
    assert found == expected
    assert values(*words).loop.rounds == 2


RUNS = {
    "seed": ("fit", ["--seed=3"], "20260102-0 has seed 2 (now 3)"),
    "value": ("fit", ["--seed=1", "--model.lr_decay=0.5"], "20260101-0 has model.lr_decay 1.0 (n"),
    "default": (
        "test",
        ["--seed=2", "--model.net=CNN5"],
        "model.net MLP (now CNN5)",
    ),
    "longer": ("fit", ["--seed=1", "--loop.rounds=9"], None),
    "tests": ("test", ["--seed=1", "--loop.evaluate_every=2"], None),
}


@pytest.mark.parametrize("case", RUNS)
def test_runs_with_other_settings_are_refused_before_there_are_objects(case):
    verb, words, message = RUNS[case]
    for seed in (1, 2):
        folder = Path("runs/fedavg_digits") / f"2026010{seed}-0"
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints" / "last.ckpt").touch()
        stated = Experiment.parse("fit", [*FIT, "--loop.default_root_dir=runs", f"--seed={seed}"])
        (folder / "config.yaml").write_text(stated.text)
        (folder / "environment.json").write_text(json.dumps({"seed": seed}))
    reading = read(verb, [*FIT, "--loop.default_root_dir=runs", "--ckpt_path=last", *words])
    if message is None:
        reading.check_objects()
        return
    with pytest.raises(UsageError, match=parts(message)):
        reading.check_objects()
