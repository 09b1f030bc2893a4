"""What follows from the methods' classes and tests is up to date wherever it is written down."""

import re

import pytest

# It needs the table of the privacy extra, which a copy without it lacks.
derive = pytest.importorskip("docs.derive", reason="an extra was removed")


def test_nothing_is_stale():
    names = [path.relative_to(derive.ROOT).as_posix() for path, _ in derive.stale()]
    assert not names, "python -m docs.derive"


def test_no_method_lacks_a_measurement():
    assert not derive.lacking(), "python -m docs.derive --runs"


def test_every_method_has_a_card():
    """Of a file, at least the class that bears its name; variants may share a record."""
    files = {derive.page_of(kind) for kind in derive.records()}
    pages = {path.stem for path in (derive.ROOT / "docs" / "methods").glob("*.md")} - {"index"}
    assert files == pages


@pytest.mark.parametrize(("task", "sign"), [("digits", 1), ("heart", -1), ("wisdm", 1)])
@pytest.mark.parametrize("at", ["best_by_val", "last"])
def test_what_to_try_names_nothing_that_is_below_local_on_a_benchmark(task, sign, at):
    board = derive.Leaderboard.read(derive.ROOT / "results/bench" / f"{task}.json")
    known = {r.name: k.__name__ for k, r in derive.records().items()}
    means = {name: derive.scores_of(board, name, "tuned", at=at).mean() for name in board.rows}
    named = re.findall(r"\[(.+?)\]", derive._best(board, at))
    assert len(named) == 5
    assert all(sign * (means[known[name]] - means["Local"]) > 0 for name in named)
