"""Promises about clients that are held out of training and join afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from pfl.core.failure import line_of
from pfl.core.state import clone, named
from pfl.core.types import Pass, Result
from pfl.extras.newcomers.joining import welcome
from pfl.extras.newcomers.newcomers import Newcomers
from pfl.federation.run import Callback, Row, Run
from pfl.federation.sampling import UniformSampler
from pfl.testing.device import DEVICE, MixedDevicesError, SecondDevice
from pfl.testing.federation import ToyFederation, fit, outcome
from pfl.testing.observe import streams
from pfl.testing.promise import BrokenPromiseError, Subject, check_same, promise
from pfl.testing.toy import ToyData

SIZES = (6, 5, 5, 6)
# Seven members and three others: the last three, or some among the members.
OF_TEN = (5, 4, 6, 3, 5, 2, 4, 6, 5, 4)
LAST, AMONG = (7, 8, 9), (0, 4, 7)


def _run(subject: Subject, data: ToyData, *unseen: int, **loop: Any) -> Run:
    data.apart = {"unseen": unseen}
    joining = Newcomers(every=1, join_rounds=1, tune_epochs=1)
    evaluations = [joining] if unseen else []
    return fit(subject.module(), data, evaluations=evaluations, **{"rounds": 2, **loop})


class _Uploads(Callback):
    """Collects what clients upload, by client and round."""

    def __init__(self) -> None:
        self.found = dict[str, Any]()

    def on_result(self, run: Run, result: Result) -> None:
        """Store copies of an upload."""
        name = f"{run.round + 1} of client {result.client}"
        self.found[name] = clone(named(result.upload))


@promise("members train as if there were none that are held out")
def members_are_alone(subject: Subject) -> None:
    """Compare a federation of seven members, of ten clients, with one of the seven alone.

    The server's state, all uploads and the members' scores must be the same.
    """
    whole, alone = subject.data(OF_TEN), subject.data(OF_TEN)
    alone.splits = {name: clients[: LAST[0]] for name, clients in alone.splits.items()}
    alone.num_clients = LAST[0]
    ours, theirs = _Uploads(), _Uploads()
    with_others = _run(subject, whole, *LAST, callbacks=[ours])
    without = _run(subject, alone, callbacks=[theirs])
    finding = "{name!r} differs from that of a federation of its members alone"
    check_same(_others(with_others), _others(without), finding)
    check_same(ours.found, theirs.found, f"the upload {finding}")
    # The server numbers members from 0: a client that looks up its own number fails.
    _run(subject, subject.data(OF_TEN), *AMONG, rounds=1, sampler=UniformSampler())


def _emptied(data: ToyData, *clients: int) -> ToyData:
    """Remove all samples of some clients."""
    for client in clients:
        for split in data.splits.values():
            split[client] = (split[client][0][:0], split[client][1][:0])
    return data


def _of(run: Run, client: int) -> Row:
    """Return the last row of a client."""
    rows = [] if run.latest is None else run.latest.clients
    return next(row for row in rows if row["client"] == client)


def _others(run: Run) -> dict[str, Any]:
    """Return all numbers of a run except those of its unseen clients."""
    numbers = outcome(run)
    unseen = ("test/unseen", "unseen/", "gap/")
    numbers["history"] = [
        {name: value for name, value in row.items() if not name.startswith(unseen)}
        for row in numbers["history"]
    ]
    return numbers


@promise("clients that are held out change nothing of each other's scores")
def newcomers_change_nothing(subject: Subject) -> None:
    """Compare runs with two unseen clients, with and without the data of one of them.

    Also, shuffled labels of an unseen client must not change its model before it trains, unless a
    pass before the test or an introduction reads its training data.
    """
    both = _run(subject, subject.data(SIZES), 2, 3)
    one = _run(subject, _emptied(subject.data(SIZES), 3), 2, 3)
    check_same(_others(both), _others(one), "{name!r} differs without the data of one of them")
    finding = "{name!r} of an unseen client differs without the data of the other one"
    check_same(_of(both, 2), _of(one, 2), finding)
    module = subject.module()
    passes = any(isinstance(part, Pass) and part.walks for part in module.adapt())
    if passes or module.introduce():
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


def _welcomed(federation: ToyFederation) -> Any:  # noqa: ANN401
    """Return what a newcomer with the first client's data starts with."""
    info = replace(federation.infos[0], round=federation.number)
    return welcome(federation.coordinator, federation.state, info)


@promise("the server's welcome is pure")
def welcome_is_pure(subject: Subject) -> None:
    """Call it twice: the results must be equal; state and random streams may not change."""
    federation = ToyFederation(subject.module())
    for _ in range(2):
        state, drawn = federation.state, streams()
        before = clone(named(state))
        once = _welcomed(federation)
        check_same(once, _welcomed(federation), "welcome gives another {name!r} if called again")
        check_same(before, state, "welcome changes {name!r} of its arguments")
        if streams() != drawn:
            raise BrokenPromiseError("welcome draws from a global random stream")
        federation.round()


@promise("newcomers are welcomed on any device")
def welcome_works_on_any_device(subject: Subject) -> None:
    """Welcome one on a device whose tensors cannot be mixed with others."""
    module = subject.with_momentum()
    try:
        with SecondDevice():
            federation = ToyFederation(module, subject.data(), device=DEVICE)
            federation.round()
            _welcomed(federation)
    except MixedDevicesError as error:
        raise BrokenPromiseError(f"{error}{line_of(error)}") from error
