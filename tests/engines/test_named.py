"""An engine of somebody else has a name like the project's own."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import pytest

from pfl.disk.nearest import hint, nearest
from pfl.engines import named
from pfl.imports import plugins
from pfl.imports.plugins import Plugin

PACKAGE = """
from pfl.engines.sequential import SequentialEngine

class Mine(SequentialEngine):
    def __init__(self, workers=None):
        self.workers = workers
"""


def test_a_plug_in_brings_an_engine(tmp_path, monkeypatch):
    (tmp_path / "brought_engine.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    point = Plugin("pfl.engines", "mine", "brought_engine", "Mine", "somebodys", "1.0")
    monkeypatch.setattr(named, "_POINTS", {**named._POINTS, "mine": point})
    monkeypatch.setattr(named, "NAMES", (*named.NAMES, "mine"))
    assert "brought_engine" not in sys.modules
    assert type(named.make_engine("mine")).__name__ == "Mine"
    assert named.make_engine("mine", 3).workers == 3
    with pytest.raises(ValueError, match=r"engine 'mien'.*, mine; did you mean 'mine'"):
        named.make_engine("mien")


def test_an_extra_that_was_removed_is_left_out(monkeypatch):
    gone = ("pfl.extras.gone.engine:A", "pfl.engines.gone:B", "pfl.gone.engine:C", "pfl.gone")
    points = [EntryPoint("a", one, "g") for one in gone] + [EntryPoint("b", "pfl.engines", "g")]
    monkeypatch.setattr(plugins, "entry_points", lambda group: points)
    assert [point.name for point in plugins.installed("g")] == ["b"]


def test_a_suggestion_is_never_the_word_that_was_given():
    assert nearest("flower", ["flower", "ray"]) == ""
    assert nearest("flower", ["flower", "Flower"]) == "; did you mean 'Flower'?"
    assert hint("flowr", ["flower", "ray"]) == "; did you mean 'flower'?"
