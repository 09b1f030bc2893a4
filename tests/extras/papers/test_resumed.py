"""Runs that a table has begun are resumed, wherever their classes were."""

from __future__ import annotations

import pytest
import torch
import yaml

from pfl.federation import checkpoint
from tests.extras.papers.conftest import RUNS, finished, table, write


def elsewhere(folder):
    """Let a run's configuration name its classes in files where they are no more."""
    file = folder / "config.yaml"
    config = yaml.safe_load(file.read_text())
    config["model"]["class_path"] = "lightning_modules.methods.FedPer"
    config["model"]["init_args"]["net"]["class_path"] = "lightning_modules.parts.toys.MLP"
    file.write_text(yaml.safe_dump(config))


@pytest.fixture
def begun(failing):
    """The folder of a table's only run, which was interrupted after its first round."""
    write(columns=None, rows={"FedPer": None})
    failing(KeyboardInterrupt(), seed=1, number=1)
    assert table() == 130
    failing(None)
    (folder,) = RUNS.glob("*/2*")
    return folder


def test_one_that_was_begun_is_gone_on_with_in_its_own_folder(fits, begun):
    elsewhere(begun)
    fits.clear()
    assert table() == 0
    assert fits == [(1, 2)]
    assert finished() == [begun]


def test_one_that_cannot_be_gone_on_with_is_refused_in_a_sentence(begun, capsys):
    file = begun / "checkpoints" / "last.ckpt"
    content = checkpoint.load(file)
    content["template"]["since.gone"] = torch.zeros(1)
    checkpoint.save(file, content)
    capsys.readouterr()
    assert table() == 2
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "[1] the checkpoint's template has an entry since.gone; this network has none; remove "
        f"{begun} to restart this run."
    ) in said
