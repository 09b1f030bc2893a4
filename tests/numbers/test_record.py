"""What the record of numbers calls a difference."""

import json
import math

import pytest
import torch

from tests.numbers import record

OLD = {"case": {"one": "aa", "other": "bb"}}


@pytest.mark.parametrize(
    ("new", "line"),
    [
        (OLD, "all 2 numbers are the recorded ones"),
        ({"case": {"one": "aa", "other": "cc"}}, "case: other: CHANGED"),
        ({"case": {"one": "aa"}}, "case: other: gone"),
        ({"case": {**OLD["case"], "third": "cc"}}, "case: third: new"),
        ({}, "case: gone"),
        ({**OLD, "fresh": {}}, "fresh: new"),
    ],
)
def test_every_difference_fails_the_check(new, line, tmp_path, monkeypatch, capsys):
    file = tmp_path / "numbers.json"
    file.write_text(json.dumps({"environment": record.environment(), "numbers": OLD}))
    monkeypatch.setattr(record, "record", lambda engine, only: new)
    monkeypatch.setattr("sys.argv", ["record", "--check", str(file)])
    assert record.main() == (new is not OLD)
    assert capsys.readouterr().out == f"{line}\n"


@pytest.mark.parametrize(
    ("stacked", "apart"), [([math.nan, 4.5], "1.2e-01"), ([0.0, 4.0], "inf"), ([math.nan], "inf")]
)
def test_a_nan_in_one_of_two_runs_is_infinitely_far(stacked, apart, monkeypatch):
    """One half in 4 is an eighth."""
    numbers = {"sequential": [math.nan, 4.0], "vectorised": stacked}
    monkeypatch.setattr(record, "cases", lambda: [("case", lambda: None)])
    monkeypatch.setattr(record, "run", lambda module, precision, engine: numbers[engine])
    monkeypatch.setattr(record, "values", lambda run: {"server/w": [torch.tensor(run)]})
    assert record.stacked_distance() == [f"{apart} case server/w.0"]
