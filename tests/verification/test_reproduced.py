"""Numbers of two runs compared by hand: which differ most, by how much, and what that is."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from pfl.results.runs import RunFolder
from pfl.verification.reproduced import compare, largest_of
from tests.results.folders import write_run


@pytest.fixture
def folder(tmp_path):
    """Writes a run of two rounds, with other numbers in its last row and other notes."""

    def write(name, fingerprint="f00", environment=(), drop=(), rounds=2, **last):
        path = write_run(tmp_path / name, [[0.25, 0.5]] * rounds, val=[0.5] * rounds)
        with (path / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        rows[-1] |= {key.replace("__", "/"): value for key, value in last.items()}
        rows = [{key: row[key] for key in row if key not in drop} for row in rows]
        with (path / "metrics.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[-1], restval="")
            writer.writeheader()
            writer.writerows(rows)
        for file, more in (("summary", {"fingerprint": fingerprint}), ("environment", environment)):
            content = json.loads((path / f"{file}.json").read_text())
            (path / f"{file}.json").write_text(json.dumps(content | dict(more)))
        return RunFolder.read(path)

    return write


def test_the_same_weights_with_another_number_are_not_the_same_bits(folder):
    found = compare(folder("then"), folder("now", test__personal__acc=0.375 + 1e-6))
    assert found.verdict.word == "agrees"


def test_times_are_not_compared(folder):
    assert str(compare(folder("then"), folder("now", time__train=9))) == "same bits"


def test_the_largest_difference_is_named(folder):
    """Beside a smaller one in a column before it, and one after it."""
    where, apart = largest_of(folder("then", a=1, b=1, c=1), folder("now", a=1.1, b=1.3, c=1.2))
    assert where == "b after round 2"
    assert apart == pytest.approx(0.3 / 1.3)


def test_what_neither_run_measured_does_not_differ(folder):
    """The first round has no value in the column; the second one is infinite in both."""
    runs = folder("then", loss="inf"), folder("now", loss="inf")
    assert np.isnan(runs[0].metrics["loss"][1])
    assert compare(*runs).verdict.word == "same bits"


@pytest.mark.parametrize(("then", "now"), [("nan", 1), (1, "nan"), ("inf", 1), (1, "-inf")])
def test_a_number_that_only_one_run_has_is_no_rounding(folder, then, now):
    found = compare(folder("then", loss=then), folder("now", loss=now))
    assert str(found) == "different: loss after round 2"


def test_columns_that_only_one_run_has_are_named(folder):
    one, other = folder("then", b=1, a=1), folder("now")
    for pair in ((one, other), (other, one)):
        assert str(compare(*pair)) == "different: only one run has a, b"


def test_another_number_of_rounds(folder):
    found = compare(folder("then", rounds=3), folder("now"))
    assert str(found) == "different: 3 rounds then, 2 now"


def test_what_differs_in_the_environment(folder):
    """Only what can change bits: not the time of the start, for example."""
    header = {"method": "FedAvg", "device": "cpu", "engine": "sequential"}
    then = {
        "packages": {"torch": "2.8", "numpy": "2.0", "old": "1"},
        "platform": "Linux",
        "started": "yesterday",
        "header": header,
    }
    now = {
        "packages": {"torch": "2.9", "numpy": "2.0"},
        "platform": "Linux",
        "started": "today",
        "processor": "Z80",
        "header": header | {"device": "cuda:0", "engine": "auto: vectorised"},
    }
    found = compare(folder("then", environment=then), folder("now", environment=now))
    assert found.environment == (
        "then: processor not recorded, torch 2.8, numpy 2.0",
        "now: Z80, torch 2.9, numpy 2.0",
        "torch: 2.8 then, 2.9 now",
        "old: 1 then, not recorded now",
        "processor: not recorded then, Z80 now",
        "device: cpu then, cuda:0 now",
        "engine: sequential then, auto: vectorised now",
    )
    (line,) = compare(folder("same"), folder("again")).environment
    assert line.startswith("then and now: ")
