"""What a client can report: names that a step gives, and as many steps and samples as its plan."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import nn

from lightning_modules.feddbe import FedDBE
from lightning_modules.fedmd import FedMD
from lightning_modules.fedper import FedPer
from pfl.core.task import Classification
from pfl.core.types import Broadcast, ClientInfo, Job, Pass, Ticket
from pfl.testing.toy import ToyNet
from pfl.training import client_round
from pfl.training.reported import Reported, ReportError
from tests.helpers.federation import SGD, ToyFederation, contexts
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp


class Logs(FedPer):
    """Logs one number in each step, and another one in some rounds only."""

    late = False

    def losses(self, batch):
        self.log("size", float(len(batch.y)))
        if self.late:
            self.log("late/grad_norm", 1.0)
        return super().losses(batch)


class Declares(Logs):
    logs = ("late/*",)


def reported(kind=FedPer, data=None, **options):
    found = contexts(kind(mlp(), optimizer=SGD, **options), data or blobs((4, 9, 3)))
    return Reported(found)


def check(found, client=1, size=9, sent=None, ticket=None, **said):
    job = Job(ClientInfo(client, size, None, 1, 2), {}, sent, 0, ticket=ticket)
    values = {"steps": 3, "samples": 9, "train": {"local/ce": 0.5}, "logged": {}}
    found.check(job, **{**values, **said})


def test_a_client_trains_as_long_as_its_plan():
    """Nine samples in batches of four are three steps an epoch."""
    check(reported())
    check(reported(epochs=2), steps=6, samples=18)
    for said in ({"steps": 4}, {"samples": 10}, {"steps": 2}, {"samples": 8}):
        with pytest.raises(ReportError, match=r"but its plan has \d+"):
            check(reported(), **said)


def small_net(norm):
    """Return a network; with ``norm``, no batch may have one sample."""
    return ToyNet(nn.Sequential(nn.Linear(5, 6), *norm, nn.Tanh()), nn.Linear(6, 3))


@pytest.mark.parametrize("norm", [(), (nn.BatchNorm1d(6),)], ids=["plain", "batch norm"])
@pytest.mark.parametrize("size", [1, 4, 5, 8, 9, 11])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"epochs": 2.5},
        {"epochs": 0.3},
        {"epochs": 0},
        {"steps": 7},
        {"steps": 7, "drop_last": True},
        {"epochs": 3, "drop_last": True},
        {"epochs": 2, "full_batch": True},
        {"epochs": 2, "share": 0.6},
        {"epochs": 1.5, "share": 0.3, "batch_size": 3},
        {"epochs": lambda own, info: info.samples / 4},
    ],
    ids=lambda options: " ".join(f"{n}={getattr(v, '__name__', v)}" for n, v in options.items()),
)
def test_what_a_client_does_is_what_its_plan_has(options, size, norm):
    """Neither a step nor a sample more or less, whatever its batches are."""

    class Method(FedPer):
        def plan(self):
            (phase,) = super().plan()
            return [replace(phase, **options)]

    made = ToyFederation(Method(small_net(norm), optimizer=SGD), blobs((4, size, 3)))
    job, found = made.job(1), Reported(contexts(made.module, made.data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = client_round.train(made.context, job)
    done, names = (result.steps, result.samples), (result.train, result.logged)
    found.check(job, *done, *names)
    for more in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        told = [max(0, one + other) for one, other in zip(done, more, strict=True)]
        if told != [*done]:
            with pytest.raises(ReportError, match=r"but its plan has|steps with|without a step"):
                found.check(job, *told, *names)


class EndsEarly(FedPer):
    """Its losses decide how long it trains."""

    def plan(self):
        (phase,) = super().plan()
        return [replace(phase, until=lambda losses: losses[-1] < 1)]


def test_how_long_a_phase_is_that_ends_early_only_its_client_knows():
    check(reported(EndsEarly, epochs=2), steps=3, samples=9)
    with pytest.raises(ReportError, match="19 samples, but its plan has 18"):
        check(reported(EndsEarly, epochs=2), steps=6, samples=19)


def test_the_length_of_a_plan_that_depends_on_what_is_received_is_known():
    """FedDBE's first round computes a mean; the pull begins with it, whatever clients keep."""
    found, most = reported(FedDBE, epochs=2), {"steps": 6, "samples": 18}
    for mean, name in ((math.nan, "mean/ce"), (0.5, "local/ce")):
        sent = Broadcast({}, {"consensus": torch.full((6,), mean)})
        check(found, sent=sent, train={name: 0.5}, **most)
        with pytest.raises(ReportError, match="19 samples, but its plan has 18"):
            check(found, sent=sent, train={name: 0.5}, steps=6, samples=19)


class Alternates(FedPer):
    """Trains in every second participation; what it counts changes after its training."""

    kept = (*FedPer(mlp()).kept, "turn")
    first = False

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.turn = nn.Buffer(torch.tensor(0))

    def plan(self):
        (phase,) = super().plan()
        turn = Pass(name="turn", then=lambda totals: {"turn": self.turn + 1})
        phase = replace(phase, epochs=lambda own, info: int(own["turn"]) % 2)
        return [turn, phase] if self.first else [phase, turn]


class CountsFirst(Alternates):
    first = True


class Foretells(Alternates):
    """The server knows that each client trains in its second participation, or in the third."""

    kept_later: ClassVar = {"turn": (1, 2)}


TOO_MUCH = {"steps": 4, "samples": 10}


@pytest.mark.parametrize(
    ("kind", "sent"), [(Alternates, None), (CountsFirst, Broadcast({"turn": torch.tensor(1)}))]
)
def test_the_length_of_a_plan_that_depends_on_what_a_client_keeps_is_not_known(kind, sent):
    """Nor if an earlier part of the plan changes what was received."""
    check(reported(kind), sent=sent, steps=10**6, samples=10**7)


def test_what_was_received_is_known_until_the_plan_changes_it():
    check(reported(Alternates), sent=Broadcast({"turn": torch.tensor(1)}))
    with pytest.raises(ReportError, match="4 steps, but its plan has 3"):
        check(reported(Alternates), sent=Broadcast({"turn": torch.tensor(1)}), **TOO_MUCH)
    with pytest.raises(ReportError, match="3 steps, but its plan has 0"):
        check(reported(Alternates), sent=Broadcast({"turn": torch.tensor(2)}))


def test_the_length_of_a_plan_that_depends_on_what_a_client_keeps_may_be_declared():
    """At first a client has the initial values; later, the plan is the longest that is possible."""
    found, later = reported(Foretells), Ticket("0" * 64, 1)
    with pytest.raises(ReportError, match="3 steps, but its plan has 0"):
        check(found)
    check(found, ticket=later)
    check(found, ticket=later, steps=0, samples=0, train={})
    with pytest.raises(ReportError, match="4 steps, but its plan has 3"):
        check(found, ticket=later, **TOO_MUCH)
    with pytest.raises(ReportError, match="2 steps, but its plan has 3"):
        check(found, ticket=later, steps=2)


def public(**options):
    """Return the reports of FedMD; the first client's five samples are the public ones."""
    options = {"public_epochs": 2, "private_epochs": 3, "digest_batch_size": 4, **options}
    return reported(FedMD, blobs((5, 9, 3)), public_samples=5, epochs=1, **options)


def logits(value, rows=5):
    return {"consensus": torch.full((rows, 3), value)}


def test_a_round_of_distillation_has_the_length_that_its_history_gives():
    """Nine samples are three steps an epoch, five public ones two."""
    found, later = public(), Ticket("0" * 64, 1)
    unknown, known = Broadcast(logits(math.nan)), Broadcast(logits(0.5))
    cases = (
        # First trainings alone; both; a digest and a revisit.
        (None, unknown, 2 * 2 + 3 * 3, 2 * 5 + 3 * 9),
        (None, known, 2 * 2 + 3 * 3 + 2 + 3, 2 * 5 + 3 * 9 + 5 + 9),
        (later, known, 2 + 3, 5 + 9),
    )
    for ticket, sent, steps, samples in cases:
        most = {"ticket": ticket, "sent": sent, "steps": steps, "train": {"revisit/ce": 0.5}}
        check(found, samples=samples, **most)
        with pytest.raises(ReportError, match=f"{samples + 1} samples, but its plan has {samples}"):
            check(found, samples=samples + 1, **most)


def test_a_subset_that_the_server_sends_bounds_the_samples():
    """Of five public samples, two are digested."""
    found = public(align_samples=2)
    sent = Broadcast(logits(0.5, 2), {"known": torch.tensor([0, 3]), "wanted": torch.arange(2)})
    most = {"ticket": Ticket("0" * 64, 1), "sent": sent, "steps": 1 + 3}
    check(found, samples=2 + 9, train={"revisit/ce": 0.5}, **most)
    with pytest.raises(ReportError, match="12 samples, but its plan has 11"):
        check(found, samples=12, train={"revisit/ce": 0.5}, **most)


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"steps": 0, "samples": 9}, "0 steps with 9 samples"),
        ({"steps": 0, "samples": 0}, "losses or logs without a step"),
        ({"train": {"local/ce": 1e39}}, "1e+39 as 'local/ce', which no step gives"),
        ({"train": {"local/mse": 0.5}}, "the loss 'local/mse', which no phase has"),
        ({"train": {"other/ce": 0.5}}, "the loss 'other/ce', which no phase has"),
        ({"logged": {"size": 4.0}}, "'size', which the first step does not log"),
    ],
)
def test_what_no_step_gives_is_refused_by_name(said, what):
    with pytest.raises(ReportError, match=parts(what)):
        check(reported(), **said)


def test_what_is_logged_under_some_conditions_is_declared():
    late = {"size": 4.0, "late/grad_norm": 1.0}
    check(reported(Logs), logged={"size": 4.0})
    with pytest.raises(ReportError, match=parts("'late/grad_norm' ~ named in Logs.logs")):
        check(reported(Logs), logged=late)
    check(reported(Declares), logged=late)


class Unknown(Classification):
    """Its samples cannot be made up."""

    def example(self, outputs):
        return None


def test_names_that_cannot_be_played_may_be_few():
    data = blobs((4, 9, 3))
    data.task = Unknown()
    found = reported(data=data, task=Unknown())
    check(found, train={"local/any": 0.5}, logged={"any": 1.0})
    for what in ("train", "logged"):
        names = {f"local/{number}": 1.0 for number in range(65)}
        with pytest.raises(ReportError, match="65 names of a "):
            check(found, **{what: names})
    with pytest.raises(ReportError, match=parts("'other/ce', which no phase has")):
        check(found, train={"other/ce": 0.5})


def test_playing_leaves_the_method_as_it_was():
    found = contexts(FedPer(mlp(), optimizer=SGD), blobs((4, 9, 3)))
    before = {name: value.clone() for name, value in found.module.state_dict().items()}
    Reported(found)
    after = found.module.state_dict()
    assert all(after[name].equal(value) for name, value in before.items())
