"""Runs that fail at work: one line, exit code 1, and the traceback only with ``--debug``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pfl.__main__ import main
from tests.helpers.messages import says

CONFIG = """\
seed: 1
loop:
  rounds: 3
  sampler: {class_path: UniformSampler}
  engine: sequential
model:
  class_path: mine.Mine
  init_args:
    net: {class_path: MLP, init_args: {hidden: 7}}
    optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.005}}
data:
  class_path: Digits
  init_args: {num_clients: 3, max_samples: 90, partition: {class_path: IID}}
"""
# Line 10 fails.
MINE = """\
from lightning_modules.fedavg import FedAvg
import torch
import pfl.core.server


class Mine(FedAvg):
    def upload(self, info):
        upload = super().upload(info)
        if info.client == 2 and info.round == 2:
            BODY
        return upload
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(own_folder, monkeypatch):
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    Path("c.yaml").write_text(CONFIG)


def fit(body, *words):
    """Run a method with a body of one statement; its exit code."""
    Path("mine.py").write_text(MINE.replace("BODY", body))
    return main(["fit", "--config", "c.yaml", *words])


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        # An error that says of a configuration what is wrong with it.
        ("raise ValueError('odd\\n\\nsecond')", "ValueError: odd"),
        ("raise MemoryError", "out of memory (MemoryError): lower data.batch_size, or train"),
        ("torch.empty(2**60)", "out of memory (RuntimeError: [enforce fail at alloc_cpu.cpp"),
        ("upload.shared['gone']", "KeyError: 'gone'"),
    ],
)
@pytest.mark.parametrize("engine", ["sequential", "threads"])
def test_a_method_that_raises_is_told_in_a_line(body, told, engine, capsys):
    """The round before is saved."""
    assert fit(body, f"--loop.engine={engine}") == 1
    captured = capsys.readouterr()
    error = captured.err.partition("pfl fit: error: ")[2]
    assert error.startswith(f"round 2, client 2 (mine.py, line 10): {told}")
    assert error.count("\n") == 1
    assert "Traceback" not in captured.err
    assert [*Path("runs").glob("*/*/checkpoints/last.ckpt")]


def test_nothing_is_left_of_a_run_whose_first_round_shows_what_does_not_fit(capsys):
    words = ["--data.batch_size=1", "--model.net.batch_norm=true"]
    assert fit("pass", *words) == 2
    assert says(capsys.readouterr().err, "pfl fit: error: ~ batches ~ one sample each ~ batch_size")
    assert not [*Path("runs").glob("*/*")]


def test_optimisers_in_the_form_of_lightning_are_told_before_the_run(capsys):
    Path("theirs.py").write_text(
        "from lightning_modules.fedavg import FedAvg\n\n\nclass Theirs(FedAvg):\n"
        "    def configure_optimizers(self):\n        return [super().configure_optimizers()], []\n"
    )
    assert fit("pass", "--model=theirs.Theirs") == 2
    told = "pfl fit: error: --model: Theirs.configure_optimizers returned tuple; ~ lr_factor"
    assert says(capsys.readouterr().err, told)
    assert not Path("runs").exists()


def test_a_folder_for_runs_that_cannot_be_made_is_told(capsys):
    Path("file").touch()
    assert fit("pass", "--loop.default_root_dir=file") == 2
    told = "pfl fit: error: --loop.default_root_dir: expected a folder, but file is a file\n"
    assert says(capsys.readouterr().err, told)


def test_debug_shows_the_traceback():
    with pytest.raises(Exception, match="round 2, client 2") as found:
        fit("1 / 0", "--debug")
    assert isinstance(found.value.__cause__, ZeroDivisionError)


def test_a_client_with_numbers_that_are_not_finite_ends_the_run(capsys):
    assert fit("upload.shared['net.head.bias'][0] = float('nan')") == 1
    assert says(capsys.readouterr().err, "pfl fit: error: round 2, client 2: ~ weights")


def test_another_package_of_this_name_is_told(tmp_path, monkeypatch, capsys):
    """A distribution that installs into the same folder, and one that has only the name."""
    about = tmp_path / "pfl-0.2.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pfl\nVersion: 0.2.0\n")
    (about / "RECORD").write_text("other/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["list", "nets"]) == 0
    (about / "RECORD").write_text("pfl/__init__.py,,\npfl/model/base.py,,\n")
    assert main(["list", "nets"]) == 2
    assert "another project, pfl 0.2.0, is installed into" in capsys.readouterr().err
