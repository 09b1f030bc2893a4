"""The page of a leaderboard: one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Mapping

from pfl.core.sheet import Sheet
from pfl.extras.bench import pictures, tables
from pfl.extras.bench.rows import LABELS, TUNED_REFERENCE, Leaderboard
from pfl.extras.bench.standing import standings
from pfl.results import names
from pfl.results.page import Section, page
from pfl.results.pictures import Picture

DIFFERENCES = (
    f"Mean difference from tuned {LABELS[TUNED_REFERENCE]}, to the right better, with the 95 % "
    "interval of each paired t test by itself. Full points are significant among all methods."
)
BUDGETS = "Expected best validation score of some of the trials, by their number."


def rendered(board: Leaderboard, seconds: Mapping[str, float]) -> str:
    """Return the page as HTML, with what the runs of each method took, where known."""
    lines = standings(board)
    budget, more = lines[0].row["budget"], bool(board.task["more"])
    metric = f"test/personal/{board.task['score']}"
    score, (scale, _) = names.described(metric), names.scale(metric)
    under = (
        f"{budget['trials']} trials of {budget['samples']:,} processed samples for every method, "
        f"chosen by validation; {budget['seeds']} seeds, {score}, best round by validation"
    )
    notes = [
        *tables.verdict(board, lines),
        f"Tested against tuned {LABELS[TUNED_REFERENCE]}, paired over the seeds. Seen from: the "
        "smallest difference that is significant among all methods.",
        *map(str, board.task["notes"]),
    ]
    rows = [(name, row["hash"]) for name, row in sorted(board.rows.items())]
    drawn = [
        Picture("differences", pictures.differences(lines, scale), caption=DIFFERENCES),
        Picture("budgets", pictures.budgets(lines, more), caption=BUDGETS),
    ]
    hashes = Sheet("", ("method", "hash"), [("task", board.task["hash"]), *rows])
    sections = [
        Section("Ranking", notes, tables.ranking(board, lines)),
        Section("Pictures", pictures=drawn),
        Section("Chosen settings", sheet=tables.choices(lines)),
        Section("Cost", sheet=tables.costs(lines, seconds)),
        Section("Rows", sheet=hashes),
    ]
    return page(str(board.task["caption"]), under, sections)
