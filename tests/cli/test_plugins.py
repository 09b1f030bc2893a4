"""Methods, networks and metrics that installed packages bring are found by their names."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

from pfl.__main__ import main
from pfl.cli import catalogue
from pfl.core.task import Classification
from pfl.training.metrics import Scorer

PACKAGE = '''
from torch import nn
from torchmetrics import MeanMetric

from lightning_modules.nets import SplitNet


class Brought(SplitNet):
    """A network of somebody else."""

    def __init__(self, num_classes: int):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes), features=64)


class Right(MeanMetric):
    def update(self, probabilities, labels):
        super().update((probabilities.argmax(-1) == labels).float())


class Unannounced(SplitNet):
    """It is in the package, and no entry point names it."""
'''


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Somebody's package with a network and a metric."""
    (tmp_path / "brought_by.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    points = {
        "pfl.nets": ("Brought", "brought_by:Brought"),
        "pfl.metrics": ("right", "brought_by:Right"),
    }

    def entry_points(group):
        found = points.get(group)
        return [] if found is None else [importlib.metadata.EntryPoint(*found, group)]

    monkeypatch.setattr("pfl.imports.plugins.entry_points", entry_points)
    catalogue.load.cache_clear()
    yield
    catalogue.load.cache_clear()
    sys.modules.pop("brought_by", None)


@pytest.mark.usefixtures("installed")
def test_a_plug_in_is_listed_with_its_package_and_found_by_its_name(capsys):
    assert main(["list", "nets"]) == 0
    shown = capsys.readouterr().out
    assert "brought_by.Brought" in shown
    assert "A network of somebody else." in shown
    assert "Unannounced" not in shown
    assert "Right" not in shown
    assert main(["list", "metrics"]) == 0
    shown = capsys.readouterr().out
    assert "brought_by.Right" in shown
    assert "Brought " not in shown
    assert "torchmetrics.AUROC" in shown
    assert Scorer(Classification(), 3, ["right"]).added == ("right",)


def test_a_plug_in_that_cannot_be_imported_is_named_and_left_out(monkeypatch, capsys):
    point = importlib.metadata.EntryPoint("Lost", "no_such_package:Lost", "pfl.nets")
    monkeypatch.setattr(
        "pfl.imports.plugins.entry_points", lambda group: [point] if group == "pfl.nets" else []
    )
    catalogue.load.cache_clear()
    try:
        catalogue.load()
    finally:
        catalogue.load.cache_clear()
    assert main(["list", "nets"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all("the plug-in no_such_package:Lost is skipped" in line for line in lines)
