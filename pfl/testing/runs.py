"""Promises about whole runs: resuming, evaluation, and clients of all kinds."""

from __future__ import annotations

from functools import partial
from tempfile import TemporaryDirectory

import torch

from pfl.core.failure import NonFiniteError
from pfl.core.state import finite, named
from pfl.core.types import RoundResult
from pfl.federation.run import Callback, Run
from pfl.federation.sampling import BernoulliSampler, UniformSampler
from pfl.testing.federation import ToyFederation, fit, outcome
from pfl.testing.promise import BOTH, BrokenPromiseError, Subject, check_same, promise
from pfl.testing.toy import ToyData


class _StopAfter(Callback):
    """Ends a run after a given round, as an interruption between two rounds would."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Stop after the given round."""
        self.should_stop = result.round == self.rounds


@promise("a resumed run equals an uninterrupted one")
def resumes(subject: Subject) -> None:
    """Interrupt a run after the first of three rounds; a client of that round takes part again."""
    whole = fit(subject.module(), rounds=3)
    with TemporaryDirectory() as folder:
        run = partial(fit, rounds=3, default_root_dir=folder)
        broken = run(subject.module(), callbacks=[_StopAfter(1)])
        resumed = run(subject.module(), ckpt_path=str(broken.folder))
    finding = (
        "{name!r} differs after three rounds: only entries of 'shared' and 'kept' and the server's "
        "state survive an interruption"
    )
    check_same(outcome(whole), outcome(resumed), finding)


@promise("evaluating more often changes nothing")
def evaluation_changes_nothing(subject: Subject) -> None:
    """Compare a run that is tested after each round with one tested only after the last."""
    run = partial(fit, rounds=2, evaluate_at=["post_broadcast", "post_local"])
    often, once = (run(subject.module(), evaluate_every=every) for every in (1, 2))
    ends = ({**outcome(run), "history": []} for run in (often, once))
    check_same(next(ends), next(ends), "{name!r} differs if the run is tested after each round")


@promise("clients with one class or one sample can train", nets=BOTH)
def small_clients_run(subject: Subject) -> None:
    """Run two rounds with a client of each kind."""
    data = subject.data((8, 1, 5))
    x, y = data.splits["train"][2]
    data.splits["train"][2] = (x, torch.zeros_like(y))
    run = fit(subject.module(), data, rounds=2, sampler=UniformSampler())
    for name, value in named({"server": run.server.shared, "kept": dict(run.kept)}).items():
        if not finite({name: value}):
            raise BrokenPromiseError(f"{name!r} is not finite")


@promise("a client without data is left out")
def empty_clients_are_left_out(subject: Subject) -> None:
    """Run two rounds with a client without data."""
    fit(subject.module(), subject.data((8, 0, 5)), rounds=2, sampler=UniformSampler())


@promise("rounds without clients do not change the server's state, and can be tested")
def empty_rounds_change_nothing(subject: Subject) -> None:
    """Run two rounds without any client."""
    nobody = BernoulliSampler(1e-9, minimum=0, train_all=False)
    run = fit(subject.module(), rounds=2, sampler=nobody)
    before = ToyFederation(subject.module(), rounds=2, seed=run.seed).state
    check_same(before.shared, run.server.shared, "the server changes {name!r} without uploads")


def _with_nan(subject: Subject) -> ToyData:
    """Return data in which the inputs of one client are NaN."""
    data = subject.data()
    x, y = data.splits["train"][1]
    data.splits["train"][1] = (torch.full_like(x, float("nan")), y)
    return data


@promise("a client with non-finite numbers ends the run and is named")
def nan_ends_the_run(subject: Subject) -> None:
    """Run a federation with a client whose inputs are NaN."""
    try:
        fit(subject.module(), _with_nan(subject), sampler=UniformSampler())
    except NonFiniteError as error:
        if "round 1, client 1" not in str(error):
            raise
        return
    raise BrokenPromiseError("the run continues: all losses, uploaded and kept weights are finite")


@promise("a client with non-finite numbers is left out if the run is set to skip it")
def nan_reaches_nobody(subject: Subject) -> None:
    """Run a federation that skips a client whose inputs are NaN."""
    run = fit(
        subject.module(),
        _with_nan(subject),
        rounds=2,
        sampler=UniformSampler(),
        on_nonfinite="skip",
    )
    if [row["train/discarded"] for row in run.history] != [1, 1] or 1 in run.kept:
        raise BrokenPromiseError("client 1 takes part nevertheless")
