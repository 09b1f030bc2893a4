"""A command of PFLlib becomes one that runs, on the samples that PFLlib wrote."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from pfl.__main__ import main
from tests.helpers.messages import parts
from tests.helpers.tables import csv_rows


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for part, count in (("train", 25), ("test", 8)):
        folder = tmp_path / "dataset" / "MNIST" / part
        folder.mkdir(parents=True)
        for client in range(3):
            x = rng.normal(size=(count, 1, 16, 16)).astype(np.float32)
            np.savez_compressed(folder / f"{client}", data={"x": x, "y": np.arange(count) % 4})


def translated(words, capsys):
    assert main(["from-pfllib", words]) == 0
    command, _, said = capsys.readouterr().out.partition("\nnote: ")
    return command, said


def test_the_command_runs(dataset, capsys):
    """Every client drops its last five of 25 samples, as PFLlib does."""
    words = "main.py -data MNIST -m CNN -algo Ditto -gr 2 -nc 3 -jr 1 -mu 0.5 -pls 2 -did 0"
    command, said = translated(words, capsys)
    assert "best_on_test" in said
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:3] == ["pfl", "fit", "--model=Ditto"]
    assert {"--model.proximity=0.5", "--model.personal_epochs=2", "--loop.rounds=2"} <= {*words}
    assert main([*words[1:], "--loop.progress=false"]) == 0
    (table,) = Path("runs").rglob("metrics.csv")
    # Each of three clients takes two steps for the global network and twice as many for its own.
    assert [float(row["train/steps"]) for row in csv_rows(table)] == [18, 18]


def test_what_cannot_be_said_is_told_by_name(capsys):
    command, _ = translated("python -u main.py -algo FedPer -al 0.3 -ld True -t 2", capsys)
    assert "cannot be said: -al 0.3" in command
    assert "--model.lr_decay=0.99" in command
    assert command.startswith("for seed in $(seq 2); do\npfl fit")


def test_a_line_of_a_script_of_the_shell_is_read_up_to_its_redirection(capsys):
    line = "nohup python -u main.py -nb 10 -m {} -algo FedPer -did 0 > result.out 2>&1 &"
    command, said = translated(line.format("dnn"), capsys)
    assert "--model.net=MLP" in command
    assert "cannot be said" not in command + said
    command, _ = translated(line.format("ResNet18"), capsys)
    assert "cannot be said: -m ResNet18 is torchvision's" in command


@pytest.mark.parametrize("name", ["MNIST-0.1", "mnist", "Ours"])
def test_a_folder_that_is_elsewhere_is_told(name, capsys):
    _, said = translated(f"main.py -data {name}", capsys)
    assert f"there is no folder dataset/{name} yet" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("python generate_MNIST.py noniid - dir", "PFLlibFolder ~ PFLlibDirichlet"),
        ("main.py -algo FedPre", "-algo FedPre ~ did you mean 'FedPer'"),
        ("main.py -m Transformer", "-m Transformer ~ pfl list nets"),
        ("main.py -data", "options come in pairs"),
        ("main.py -data MNISTT", "there is no folder dataset/MNISTT; did you mean 'MNIST'"),
    ],
)
def test_other_commands_are_refused(capsys, words, message):
    assert main(["from-pfllib", words]) == 2
    assert re.search(parts(message), capsys.readouterr().err)
