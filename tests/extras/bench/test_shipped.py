import re
from pathlib import Path

import pytest

from pfl.__main__ import main
from pfl.core.checks import ranges
from pfl.extras.bench.bench import Bench
from pfl.extras.bench.contender import contenders
from pfl.extras.bench.rows import Leaderboard
from pfl.extras.bench.standing import standings
from pfl.extras.bench.task import read
from pfl.extras.bench.verify import _radius
from pfl.imports.hints import declared
from tests.helpers.discovery import methods

ROOT = Path(__file__).parents[3]
EARLIER = ROOT / "configs" / "bench" / "earlier"
PRESENT = sorted(EARLIER.parent.glob("*.yaml"))
TASKS = [*PRESENT, *sorted(EARLIER.glob("*.yaml"))]
BOARDS = [
    file for file in sorted((ROOT / "results" / "bench").glob("*.json")) if "_" not in file.stem
]


@pytest.mark.long
@pytest.mark.parametrize("file", TASKS, ids=lambda file: file.stem)
def test_every_method_can_take_part_in_a_shipped_task(file):
    """It has a space of shared dimensions, and its defaults are a configuration."""
    names = ("Ditto", "FedSimSup", "PFedBayes")
    for one in contenders(read(file), names, ()):
        first, second = one.trials(2)
        assert first.keys() == second.keys() == {one.name for one in one.dimensions}
        assert one.default.values.data.init_args.val_fraction > 0
        if one.name == "PFedBayes":
            assert one.default.values.model.init_args.optimizer.init_args.lr == 0.001


@pytest.mark.long
@pytest.mark.parametrize("file", PRESENT, ids=lambda file: file.stem)
def test_test_samples_and_newcomers_are_drawn_anew_in_each_seed(file):
    """So that the spread over seeds has the part of who is tested, and on what."""
    (one, *_) = contenders(read(file), [], ())
    for seed in (0, 7):
        data = one.experiment(seed, {}, None).values.data.init_args
        assert (data.split_seed, data.test_protocol) == (seed, "pooled")
        assert data.unseen is None or data.unseen.seed == seed


@pytest.mark.long
def test_rows_of_an_earlier_definition_belong_to_it_alone():
    """Otherwise a changed task would give the committed rows another meaning."""
    for file in sorted(EARLIER.glob("*.yaml")):
        board = Leaderboard.read(ROOT / "results" / "bench" / f"{file.stem}.json")
        hashes = [
            Bench(read(one), contenders(read(one), [], ()), None, 1, 1).task_hash
            for one in (file, EARLIER.parent / file.name)
        ]
        assert hashes[0] == board.task["hash"] != hashes[1]


@pytest.mark.long
def test_all_is_every_method_once_with_what_the_table_always_has_first():
    found = contenders(read(TASKS[0]), ["Ditto", "all"], ())
    names = [one.name for one in found]
    assert names[:2] == ["FedAvg", "FedAvgP"]
    fit = [kind for kind in methods() if kind.record is None or kind.record.shown is not None]
    assert sorted(names) == sorted(method.__name__ for method in fit)
    assert "FedOTP" not in names


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.__name__)
def test_a_space_names_arguments_of_its_method(method):
    for one in method.space():
        assert one.name.partition(".")[0] in declared(method)


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.__name__)
def test_a_space_lies_within_the_ranges_of_its_method(method):
    allowed = ranges(method)
    for one in method.space():
        for value in one.choices or (one.low, one.high) if one.name in allowed else ():
            assert allowed[one.name].holds(value), (one.name, value)


@pytest.mark.parametrize("file", BOARDS, ids=lambda file: file.stem)
def test_a_committed_leaderboard_is_as_it_was_written(file):
    board = Leaderboard.read(file)
    assert {"Local", "FedAvg", "FedAvgP", "LPFT", "majority class"} <= board.rows.keys()
    assert standings(board)[0].rank >= 1


@pytest.mark.long
def test_the_documentations_own_commands_accuse_no_committed_row(capsys, monkeypatch):
    """On whatever processor this runs; the rows tell on which one they were made."""
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / "bench.md").read_text()
    commands = re.findall(r"^pfl (bench verify .*)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        assert main(command.split()) == 0
        said = capsys.readouterr().out
        assert re.search(r"compared 2 runs: (2 same bits|1 same bits, 1 agrees|2 agrees)\n", said)


# Of each task: its words on the page, and the bound that the page tells.
RADII = {
    "digits": ("on the digits", 6e-6),
    "heart": ("in the hospitals", 2e-7),
    "wisdm": ("on the people", 1e-5),
}


def test_the_page_tells_the_rounding_radii_of_the_committed_rows():
    page = " ".join((ROOT / "docs" / "reliability.md").read_text("utf-8").split())
    told = page.partition("Of the committed rows")[2].partition(" Where it is above")[0]
    counts, bounds = told.split(" It is at most ")
    every, parts = {}, re.split(r", (?=\d)| and (?=\d)", bounds.partition(" of them;")[0])
    for (name, (where, bound)), part in zip(RADII.items(), parts, strict=True):
        rows = Leaderboard.read(ROOT / "results" / "bench" / f"{name}.json").rows.values()
        found = {row["method"]: _radius(row) for row in rows}
        radii = {method: radius for method, radius in found.items() if radius is not None}
        assert f"{len(radii)} {where}" in counts
        small = sum(radius <= bound for radius in radii.values())
        few = "all" if small == len(radii) else str(small)
        assert part == f"{bound:.0e} for {few}".replace("e-0", "e-")
        every |= {(method, name): radius for method, radius in radii.items()}
    (method, _), largest = max(every.items(), key=lambda item: item[1])
    assert f"the largest is {method}'s, {largest:.0e}.".replace("e-0", "e-") in told
