"""Promises about clients that are held out of training and join afterwards."""

from __future__ import annotations

from typing import Any

import torch

from pfl.core.held_out import HeldOut
from pfl.core.types import Pass
from pfl.federation.run import Row, Run
from pfl.testing.federation import fit, outcome
from pfl.testing.promise import Subject, check_same, promise
from pfl.testing.toy import ToyData

SIZES = (6, 5, 5, 6)


def _run(subject: Subject, data: ToyData, *unseen: int) -> Run:
    data.held_out = HeldOut(unseen)
    return fit(subject.module(), data, rounds=2, unseen_every=1, join_rounds=1, tune_epochs=1)


def _emptied(data: ToyData, *clients: int) -> ToyData:
    """Take all samples from some clients."""
    for client in clients:
        for split in data.splits.values():
            split[client] = (split[client][0][:0], split[client][1][:0])
    return data


def _of(run: Run, client: int) -> Row:
    """Return the last row of a client."""
    rows = [] if run.latest is None else run.latest.clients
    return next(row for row in rows if row["client"] == client)


def _others(run: Run) -> dict[str, Any]:
    """Return all numbers of a run but those of its unseen clients."""
    numbers = outcome(run)
    unseen = ("test/unseen", "unseen/", "gap/")
    numbers["history"] = [
        {name: value for name, value in row.items() if not name.startswith(unseen)}
        for row in numbers["history"]
    ]
    return numbers


@promise("clients that are held out change nothing of the training, nor of each other's scores")
def newcomers_change_nothing(subject: Subject) -> None:
    """Compare runs with two unseen clients, with one, and with none but without their data.

    Also, shuffled labels of an unseen client change nothing of its model before it trains, unless a
    pass before the test reads the training data.
    """
    both = _run(subject, subject.data(SIZES), 2, 3)
    one = _run(subject, _emptied(subject.data(SIZES), 3), 2)
    none = _run(subject, _emptied(subject.data(SIZES), 2, 3))
    for other, what in ((none, "without the data of unseen clients"), (one, "without one of them")):
        check_same(_others(both), _others(other), f"{{name!r}} differs {what}")
    finding = "{name!r} of an unseen client differs without the other one"
    check_same(_of(both, 2), _of(one, 2), finding)
    if any(isinstance(part, Pass) and part.walks for part in subject.module().adapt()):
        return
    before, after = (_untrained(run) for run in (both, _run(subject, _shuffled(subject), 2, 3)))
    check_same(before, after, "{name!r} depends on the labels of the client's training data")


def _untrained(run: Run) -> Row:
    """Return the scores of the last client before it trains."""
    return {name: v for name, v in _of(run, 3).items() if name.startswith("test/unseen/")}


def _shuffled(subject: Subject) -> ToyData:
    """Return data in which the training labels of the last client are in another order."""
    data = subject.data(SIZES)
    x, y = data.splits["train"][3]
    data.splits["train"][3] = (x, torch.roll(y, 3, 0))
    return data
