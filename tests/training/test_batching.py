"""Steps, and what a phase's batches are made of, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from datamodules import IID, TensorData
from lightning_modules import CD2PFed, Ditto, FedPer
from lightning_modules.base import ClientModule
from pfl import FederatedLoop
from pfl.core import devices
from pfl.core.seeds import generator
from pfl.core.types import Batch, ClientInfo, Job, Phase
from pfl.engines import vectorised
from pfl.engines.sequential import SequentialEngine
from pfl.engines.vectorised import VectorisedEngine
from pfl.testing.toy import ToySplit
from pfl.training import batching
from pfl.training.batching import Feed, Length
from tests.engines.agreement import fit
from tests.helpers.federation import SGD, context, steps
from tests.helpers.toy import blobs, normed


def job(client=0, seed=3):
    return Job(ClientInfo(client, 5, torch.tensor([5, 0, 0]), 1, 10), {}, None, seed, ())


class Head(ClientModule):
    """Trains the head on features that the phase holds constant."""

    vectorizable = True

    def plan(self):
        return [
            Phase(
                name="head",
                objective=self.head_loss,
                epochs=2,
                trains=("net.head.*",),
                evals=("net.backbone", "net.backbone.*"),
                inputs=lambda batch: self.net.backbone(batch.x),
            )
        ]

    def head_loss(self, batch):
        losses = nn.functional.cross_entropy(self.net.head(batch.x), batch.y, reduction="none")
        weight = torch.ones_like(losses) if batch.weight is None else batch.weight
        return {"ce": (losses * weight).sum() / weight.sum()}


def places(found):
    return [(step.epoch, step.index, step.last) for step in found]


@pytest.mark.parametrize(
    ("length", "options", "expected"),
    [
        (Length(2), {}, [(0, 0, False), (0, 1, False), (0, 2, True)] * 2),
        (Length(2), {"drop_last": True}, [(0, 0, False), (0, 1, True)] * 2),
        (Length(1, steps=2), {}, [(0, 0, False), (0, 1, False)]),
        (Length(2), {"full_batch": True}, [(0, 0, True)] * 2),
    ],
)
def test_the_last_step_of_each_epoch_says_so(length, options, expected):
    """Eight samples in batches of three: three steps an epoch, two without the short one.

    Steps that end within an epoch have no last one.
    """
    module = Head(normed())
    phase = Phase(name="local", objective=module.losses, **options)
    found = places(steps(context(module, blobs((8,), batch_size=3)), job(), phase, length, 8))
    half = len(expected) // 2 if length.steps is None else len(expected)
    moved = [(n // half, index, last) for n, (_, index, last) in enumerate(expected)]
    assert found == moved


@pytest.mark.parametrize(
    ("epochs", "size", "counts"),
    [
        (0.5, 2, [2]),
        (0.25, 2, [1]),
        (0.01, 2, [1]),
        (1.75, 2, [4, 3]),
        (0.3, 2, [3]),
        (2.0, 4, [2, 2]),
        (0.5, 8, [1]),
    ],
)
def test_a_fraction_of_an_epoch_is_as_large_a_share_of_its_batches(epochs, size, counts):
    """Of eight samples, or for 0.3 of twenty, where 0.3 * 10 is a little more than three."""
    module, samples = Head(normed()), 20 if epochs == 0.3 else 8
    phase, length = Phase(name="local", objective=module.losses), Length(epochs)
    made = context(module, blobs((samples,), batch_size=size))
    found = [*steps(made, job(), phase, length, samples)]
    assert [sum(one.epoch == epoch for one in found) for epoch in range(len(counts))] == counts
    assert sum(counts) == len(found) == batching.most_steps(made, phase, length, samples)
    assert [one.last for one in found if one.epoch == len(counts) - 1][-1]
    whole = [*steps(made, job(), phase, Length(2), samples)]
    assert all(map(torch.equal, [one.positions for one in found], [o.positions for o in whole]))


@pytest.mark.parametrize("method", [FedPer, Ditto, CD2PFed])
def test_engines_agree_on_a_fraction_of_an_epoch(method):
    runs = [
        FederatedLoop(rounds=2, progress=False, engine=engine, precision="64-true").fit(
            method(normed(), optimizer=SGD, epochs=1.5), blobs((8, 5, 3), batch_size=2)
        )
        for engine in ("sequential", "threads", "vectorised")
    ]
    assert runs[0].fingerprint == runs[1].fingerprint
    assert runs[0].history[-1]["train/steps"] == runs[2].history[-1]["train/steps"]
    for name, value in runs[0].server.shared.items():
        assert torch.allclose(value, runs[2].server.shared[name], rtol=0, atol=1e-9)


def test_constant_features_are_those_of_the_eval_mode():
    """Running statistics of the batch norm, not those of the samples at hand; nothing moves."""
    module = Head(normed())
    ctx = context(module, blobs((9,)))
    split = ctx.data.split(0, "train")
    before = module.state_dict()["net.backbone.1.running_mean"].clone()
    module.train()
    (head,) = ctx.plan
    held = batching.hold(ctx, head, Length(1), split)
    assert torch.equal(module.state_dict()["net.backbone.1.running_mean"], before)
    module.eval()
    expected = module.net.backbone(split.batch(torch.arange(9)).x)
    torch.testing.assert_close(held.x, expected)
    assert torch.equal(held.y, split.targets)


@pytest.mark.parametrize(
    ("length", "limit", "held"),
    [
        (Length(1), 9 * 6 * 4, True),
        (Length(1), 9 * 6 * 4 - 1, False),
        (Length(1, steps=3), 2**20, True),
        (Length(1, steps=2), 2**20, False),
    ],
)
def test_features_are_held_if_they_fit_and_all_are_seen(monkeypatch, length, limit, held):
    """6 features of 9 samples in float32; 3 steps of 4 samples see all of them."""
    monkeypatch.setattr(batching, "HELD_BYTES", limit)
    ctx = context(Head(normed()), blobs((9,)))
    (head,) = ctx.plan
    found = batching.hold(ctx, head, length, ctx.data.split(0, "train"))
    assert (found is not None) == held


@pytest.mark.parametrize("engine", [SequentialEngine(), VectorisedEngine()])
@pytest.mark.parametrize("why", ["too large", "augmented"])
def test_features_that_are_not_held_are_computed_in_each_step(monkeypatch, engine, why):
    # Its two short rounds would be counted.
    monkeypatch.setattr(vectorised, "disagreement", lambda context: None)

    def run():
        module, calls = Head(normed(), optimizer=SGD), []
        module.net.backbone.register_forward_hook(lambda *_: calls.append(1))
        found = fit(module, engine, 1, blobs((9, 9)), precision="64-true")
        return found.server.shared, len(calls)

    held, once = run()
    if why == "augmented":
        monkeypatch.setattr(ToySplit, "augmented", True)
    else:
        monkeypatch.setattr(batching, "HELD_BYTES", 1)
    anew, often = run()
    torch.testing.assert_close(anew, held, rtol=1e-10, atol=1e-10)
    assert often > once + 2


@pytest.mark.parametrize("limit", [2**20, 1])
def test_features_on_a_gpu_are_held_or_computed_of_gathered_samples(monkeypatch, limit):
    """On a CPU that is treated as a GPU, whose steps have a fixed shape."""
    x, y = torch.rand(40, 5, generator=generator(1)), torch.arange(40) % 3
    data = TensorData({"x": x.numpy(), "y": y.numpy()}, 3, IID(), batch_size=4)
    options = {"data": data, "precision": "64-true"}
    alone = fit(Head(normed(), optimizer=SGD), SequentialEngine(), **options)
    monkeypatch.setattr(devices, "roomy", lambda device: False)
    monkeypatch.setattr(devices, "repeats", lambda device: True)
    monkeypatch.setattr(batching, "HELD_BYTES", limit)
    beside = fit(Head(normed(), optimizer=SGD), VectorisedEngine(), **options)
    assert beside.header["engine"].startswith("vectorised")
    torch.testing.assert_close(beside.server.shared, alone.server.shared, rtol=1e-10, atol=1e-10)


class Shaken:
    """A split whose batches are moved by a draw."""

    augmented = True

    def __init__(self, split):
        self.split, self.targets = split, split.targets

    def __len__(self):
        return len(self.targets)

    def batch(self, positions, rng=None):
        batch = self.split.batch(positions)
        return batch._replace(x=batch.x + torch.randn(1, generator=rng))


def test_every_phase_draws_transforms_of_its_own():
    """The same again for the same phase; others for another phase, client seed or step."""
    split = Shaken(blobs((6,)).split(0, "train"))
    module = Head(normed())
    plain = split.split.batch(torch.arange(2)).x

    def moves(name, seed=3):
        feed = Feed(job(seed=seed), Phase(name=name, objective=module.losses), split, None)
        first, second = (feed.read(number, torch.arange(2)) for number in range(2))
        assert isinstance(first, Batch)
        return [float((batch.x - plain)[0, 0].detach()) for batch in (first, second)]

    one = moves("one")
    assert moves("one") == one
    others = [*one, *moves("other"), *moves("one", seed=4)]
    assert len({round(value, 5) for value in others}) == 6
