"""How results show clients that join later; without torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pfl.core.sheet import Sheet
from pfl.federation.evaluation import Shown

if TYPE_CHECKING:
    from pfl.federation.run import Row

ZERO_SHOT, JOINED, TUNED = "unseen", "unseen_joined", "unseen_tuned"
# What data hold clients out for.
UNSEEN, VALIDATION = "unseen", "validation"


def _columns(score: str) -> Mapping[str, str]:
    between = {f"after {k}": f"{JOINED}_{k}" for k in range(1, 3)}
    groups = {"zero-shot": ZERO_SHOT, **between, "joined": JOINED, "tuned": TUNED}
    return {
        **{heading: f"test/{group}/{score}" for heading, group in groups.items()},
        "gap of samples": "gap/sample",
        "gap of participation": "gap/participation",
        "share that tuning hurts": "unseen/hurt",
    }


def _models(name: str) -> str | None:
    if found := re.fullmatch(rf"{JOINED}_(\d+)", name):
        return f"unseen clients after {found[1]} local round{'s' * (found[1] != '1')}"
    how = {ZERO_SHOT: "zero-shot", JOINED: "joined", TUNED: "tuned by SGD"}.get(name)
    return None if how is None else f"unseen clients, {how}"


SHOWN = Shown(
    name="later",
    title="Clients that join later",
    columns=_columns,
    note=(
        "Main score after the last round: zero-shot, after one, two and all local rounds, and "
        "tuned by SGD. Gaps are positive if unseen samples or clients do worse."
    ),
    facts={
        "gap/sample": (
            "gap of samples: training less test score (positive: unseen samples are worse)"
        ),
        "gap/participation": (
            "gap of participation: personal less joined score (positive: unseen clients are worse)"
        ),
        "unseen/hurt": "share of clients that tuning hurts",
        "unseen/tuned_epochs": "epochs of tuning",
        "unseen/rounds_to_seen": "local rounds until the mean of those that trained",
    },
    models=_models,
    drawn=lambda name: name.startswith(f"{JOINED}_"),
)


def curve(score: str, rounds: int) -> list[str]:
    """Return the columns of a score: zero-shot, and after each local round."""
    between = [f"{JOINED}_{k}" for k in range(1, rounds)]
    groups = [ZERO_SHOT, *between, *([JOINED] if rounds else [])]
    return [f"test/{group}/{score}" for group in groups]


def tables(
    curves: Mapping[str, Sequence[str]], row: Row, rows: Mapping[int, Row], names: Sequence[str]
) -> list[Sheet]:
    """Return a table of each client's main score, and one of all mean scores.

    Args:
        curves: The columns of each score, see :func:`curve`, the main score first.
        row: The round's row.
        rows: The rows of clients.
        names: The clients' names.
    """
    (main, columns), each, means = next(iter(curves.items())), [], []
    for client, one in rows.items():
        cells = (client, names[client], int(one["samples"]), int(one["test_samples"]))
        numbers = (f"{one[name]:.4f}" for name in columns)
        each.append([*map(str, cells), *numbers])
    for score, of_score in curves.items():
        if of_score[0] in row:
            what = f"{score}, mean over clients"
            means.append([what, *(f"{row[name]:.4f}" for name in of_score)])
    # One column for each number of local rounds; 0 is zero-shot.
    rounds = [*map(str, range(len(columns)))]
    about = ("client", "name", "samples", "tested on")
    title = f"{main} of clients that join, after local rounds"
    all_scores = Sheet("all scores, after local rounds", ("", *rounds), means)
    return [Sheet(title, (*about, *rounds), each), all_scores]
