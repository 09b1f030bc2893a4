"""One stacked model gives the sequential engine's numbers, up to the rounding of sums.

Compared in float64: in float32 a ReLU or a pooling that flips at a tie grows to 1e-4 in a few
steps, in the sequential loop as well as soon as the samples of a batch change places.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from lightning_modules.fedavg import FedAvg
from lightning_modules.fedper import FedPer
from lightning_modules.layers import frozen
from lightning_modules.losses import mean
from lightning_modules.nets import SplitNet
from lightning_modules.perfedavg import PerFedAvg
from lightning_modules.pfakd import PFAKD
from pfl.core.seeds import scoped
from pfl.core.types import Batch, Phase
from pfl.engines.sequential import SequentialEngine
from pfl.engines.stack import round as stack_round
from pfl.engines.stack.optimizer import clip
from pfl.engines.stack.stack import groups
from pfl.engines.vectorised import VectorisedEngine
from pfl.testing.federation import ToyFederation
from tests.engines.agreement import fit, module_of, numbers
from tests.helpers import toy
from tests.helpers.federation import SGD, contexts
from tests.helpers.toy import blobs

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def check(module_twice, header="vectorised", engine=None, **loop):
    """Check that two modules alike, one on each engine, end up alike."""
    loop = {"precision": "64-true", **loop}
    alone = fit(module_twice(), SequentialEngine(), **loop)
    beside = fit(module_twice(), engine or VectorisedEngine(), **loop)
    assert beside.header["engine"].startswith(header)
    torch.testing.assert_close(beside.server.shared, alone.server.shared, **CLOSE)
    assert beside.kept.keys() == alone.kept.keys()
    for client, state in alone.kept.items():
        torch.testing.assert_close(beside.kept[client], state, **CLOSE)
    for one, other in zip(numbers(beside), numbers(alone), strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-5)


# Without a bias, which before a batch norm would only be the rounding of zero slopes.
normed = partial(toy.normed, bias=False)


def spatial(momentum=0.1):
    """Build a network with batch norm over maps of more than one pixel."""
    with scoped(2):
        body = nn.Sequential(
            nn.Unflatten(1, (1, 5)),
            nn.Conv1d(1, 4, 2, bias=False),
            nn.BatchNorm1d(4, momentum=momentum),
            nn.ReLU(),
            nn.Flatten(),
        )
        return SplitNet(body, nn.Linear(16, 3))


class Products(FedAvg):
    """Weighs losses by a product of vectors, which must have one type."""

    def losses(self, batch):
        values = self.task.sample_losses(self(batch.x), batch.y)
        weight = torch.ones_like(values) if batch.weight is None else batch.weight
        return {"ce": values @ weight / weight.sum()}


@pytest.mark.parametrize("sizes", [(6, 6, 6), (4, 9, 2)])
def test_weights_have_the_type_of_the_precision(sizes):
    check(lambda: module_of(Products, toy.mlp), data=blobs(sizes))


@pytest.mark.filterwarnings("ignore:client 2 takes no step")
def test_only_a_counter_that_is_read_is_an_obstacle():
    """Without momentum a batch norm reads it in training; a frozen copy does not."""
    header = "sequential, not vectorised: a batch norm without momentum"
    check(lambda: module_of(PFAKD, partial(spatial, momentum=None)), header)
    check(lambda: Anchored(spatial(), optimizer=SGD))


class Anchored(FedAvg):
    """Beside the network rests a frozen one, whose batch norm has no momentum."""

    def __init__(self, net, **options):
        super().__init__(net, **options)
        self.anchor = frozen(spatial(momentum=None))

    def losses(self, batch):
        distance = (self.net.backbone(batch.x) - self.anchor.module.backbone(batch.x)).square()
        return {**super().losses(batch), "pull": mean(distance.mean(-1), batch.weight)}


LAYERS = partial(nn.Dropout, 0.3), nn.AlphaDropout, partial(toy.attention, batch_first=True)


@pytest.mark.parametrize("method", [FedAvg, FedPer, PerFedAvg, PFAKD])
def test_clients_draw_what_they_draw_alone(method):
    """Of unequal sizes, so that batches are padded, and in stacks of two."""
    net = partial(toy.drawing, *(LAYERS if method is FedAvg else LAYERS[:2]))
    check(lambda: module_of(method, net), engine=VectorisedEngine(clients=2))


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.RReLU, "fails when stacked"),
        # Samples come second here, so that padding moves the places of a mask.
        (toy.attention, "gives different numbers"),
    ],
    ids=["no operation", "samples second"],
)
def test_other_draws_are_not_stacked(layer, reason):
    run = fit(module_of(FedAvg, partial(toy.drawing, layer)), VectorisedEngine(2), rounds=1)
    assert run.header["engine"].startswith(f"sequential, not vectorised: FedAvg {reason}")


@pytest.mark.parametrize(
    ("method", "tested"), [(FedPer, 3), (PerFedAvg, 2)], ids=["no training", "adapts"]
)
def test_more_clients_are_tested_than_trained_at_once(monkeypatch, method, tested):
    """Not where they train before the test, which needs the memory of training."""
    largest = {"train": 0, "test": 0}
    for verb in largest:
        run = getattr(stack_round, verb)

        def noted(context, jobs, run=run, verb=verb):
            largest[verb] = max(largest[verb], len(jobs))
            return run(context, jobs)

        monkeypatch.setattr(stack_round, verb, noted)
    fit(module_of(method, toy.mlp), VectorisedEngine(2, tested=3), 1, blobs((6,) * 5))
    assert largest == {"train": 2, "test": tested}


# Who goes together.


class OwnRate(FedAvg):
    """Clients learn at rates of their own."""

    def lr_factor(self, info):
        return 1.0 / (1 + info.client)


class FewerSteps(FedAvg):
    """The network's second layer learns with momentum from a client's second round on."""

    def plan(self):
        return [
            Phase(name="all", objective=self.losses, trains=("net.head.*",)),
            Phase(
                name="later",
                objective=self.losses,
                trains=("net.backbone.*",),
                epochs=lambda own, info: int((info.client + info.round) % 2 == 0),
            ),
        ]


def test_clients_that_keep_optimiser_state_of_different_phases_agree():
    """One has momentum of both phases, another of one only: they have no common stack."""
    check(lambda: module_of(FewerSteps, toy.mlp, persist_optimizer=True), rounds=4)


def test_jobs_of_both_models_may_be_asked_for_at_once():
    """The personalised model of one client and the global one of another in one call."""
    data = blobs((6, 6))
    answers = {}
    for engine in (SequentialEngine(), VectorisedEngine()):
        federation = ToyFederation(FedAvg(toy.mlp(), optimizer=SGD), data)
        federation.round()
        first, second = (replace(job, splits=("test",)) for job in federation.jobs())
        engine.setup(contexts(federation.module, data, template=federation.context.template))
        answers[engine] = list(engine.test([first, replace(second, model="global", kept={})]))
    one, other = answers.values()
    assert one == [{"test": pytest.approx(scores["test"], rel=1e-5, abs=1e-5)} for scores in other]


class Stopping(FedAvg):
    """Ends its phase by the losses of each client."""

    def plan(self):
        return [Phase(name="local", objective=self.losses, epochs=9, until=lambda losses: True)]


def tied():
    net = toy.mlp()
    with scoped(1):
        layer = nn.Linear(5, 5)
    return SplitNet(nn.Sequential(layer, layer, net.backbone), net.head)


def centred(parameters):
    """Return an optimiser that takes the mean of each gradient away before a step."""
    made = SGD(parameters)

    def centre(optimizer, *_):
        for value in optimizer.param_groups[0]["params"]:
            value.grad.sub_(value.grad.mean())

    made.register_step_pre_hook(centre)
    return made


@pytest.mark.parametrize(
    ("why", "module"),
    [
        # The optimiser of a stack has one rate; the check before the run sees the difference.
        ("OwnRate gives different numbers", lambda: module_of(OwnRate, toy.mlp)),
        ("Stopping ends a phase", lambda: module_of(Stopping, toy.mlp)),
        ("the network shares weights", lambda: module_of(FedAvg, tied)),
        (
            "Adam counts steps",
            lambda: FedAvg(toy.mlp(), optimizer=torch.optim.Adam, persist_optimizer=True),
        ),
        ("SGD has a hook", lambda: FedAvg(toy.mlp(), optimizer=centred)),
    ],
)
def test_what_cannot_be_stacked_runs_sequentially(why, module):
    check(module, f"sequential, not vectorised: {why}")


def test_clients_without_a_phase_of_their_own_upload_as_well():
    """Zero epochs are no failure: what was received goes back."""
    check(lambda: module_of(FedAvg, toy.mlp, epochs=0))


# Padding.


def test_batches_of_unequal_size_go_apart_where_samples_act_upon_each_other():
    """Clients with 3, 0, 2 and 3 samples: those of three go together, the one of none nowhere."""
    batch = Batch(torch.arange(24.0).reshape(4, 3, 2), torch.zeros(4, 3), None, {})
    first, second = groups([3, 0, 2, 3], batch, apart=True)
    assert (first.sizes, second.sizes) == ({0: 3, 3: 3}, {2: 2})
    assert torch.equal(first.batch.x, batch.x[[0, 3]])
    assert torch.equal(second.batch.x, batch.x[[2], :2])
    (whole,) = groups([3, 0, 2, 3], batch, apart=False)
    assert whole.sizes == {0: 3, 1: 0, 2: 2, 3: 3}


def test_a_norm_without_running_statistics_sees_no_padding_in_tests():
    def net():
        with scoped(1):
            norm = nn.BatchNorm1d(6, track_running_stats=False)
            body = nn.Sequential(nn.Linear(5, 6, bias=False), norm, nn.ReLU())
            return SplitNet(body, nn.Linear(6, 3))

    data = blobs((4, 9, 2, 17, 6))
    for client in (1, 3):
        data.splits["test"][client] = tuple(part[:4] for part in data.splits["test"][client])
    check(lambda: module_of(FedAvg, net), data=data)


def test_a_client_without_test_samples_is_not_scored():
    """It stands between others, so that the stack pads it with their samples."""
    data = blobs((4, 9, 2, 17, 6))
    data.splits["test"][1] = tuple(part[:0] for part in data.splits["test"][1])
    run = fit(module_of(FedPer, toy.mlp), VectorisedEngine(), data=data)
    assert run.header["engine"].startswith("vectorised")
    assert not run.failures.get("undefined")
    check(lambda: module_of(FedPer, toy.mlp), data=data)


def test_each_stacked_client_is_clipped_by_its_own_norm_over_all_parameters():
    """Norms 5, of (3, 0) and 4, and 1/2; only the first is longer than 1 and becomes 1."""
    gradients = [torch.tensor([[3.0, 0.0], [0.3, 0.0]]), torch.tensor([[4.0], [0.4]])]
    clip(gradients, 1.0)
    expected = [torch.tensor([[0.6, 0.0], [0.3, 0.0]]), torch.tensor([[0.8], [0.4]])]
    torch.testing.assert_close(gradients, expected, rtol=1e-6, atol=1e-6)
    check(lambda: module_of(FedAvg, toy.mlp), gradient_clip_val=0.5)


class Marked(FedAvg):
    """Its personalised model is another one."""

    def personalise(self, broadcast, info):
        super().personalise(broadcast, info)
        with torch.no_grad():
            self.net.head.bias[0] += 5


@pytest.mark.filterwarnings("ignore:client 2 takes no step")
def test_who_could_not_train_is_tested_as_it_stands():
    """Client 2 has one sample under a batch norm: it becomes no personalised model."""
    check(lambda: module_of(Marked, normed), evaluate_at=["post_local"])
