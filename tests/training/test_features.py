"""Features of a frozen backbone are computed once, and nobody can tell from the numbers."""

from __future__ import annotations

import copy
from functools import partial
from importlib import import_module

import pytest
import torch
from torch import nn

from lightning_modules import Ditto, FedAvg, FedAvgP, FedProx, FedSimSup
from lightning_modules.nets import FrozenParts, LoRA, SplitNet
from pfl import FederatedLoop
from pfl.core.seeds import scoped
from pfl.core.state import constants
from pfl.disk import room
from pfl.federation.sampling import UniformSampler
from pfl.training import features
from tests.engines.agreement import images
from tests.helpers.extras import has, needs
from tests.helpers.federation import SGD
from tests.helpers.toy import blobs

SIZES = (8, 10, 7, 12)
ENGINES = ("sequential", "threads", "processes", *(["loopback"] if has("sites") else []))


class Counted(nn.Module):
    """A layer that counts the samples that it sees."""

    seen = 0

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(5, 6)

    def forward(self, x):
        Counted.seen += len(x)
        return torch.tanh(self.line(x))


class Blocks(nn.Module):
    """Blocks in a row, of which some are frozen, with code of the network around them.

    Args:
        still: Number of frozen blocks.
        skips: Whether the last output has the blocks' first input once more.
        twice: Whether it has the network's inputs.
    """

    def __init__(self, still, skips=False, twice=False):
        super().__init__()
        self.skips, self.twice = skips, twice
        with scoped(1):
            self.embed, self.place = nn.Linear(5, 6), nn.Parameter(torch.rand(6))
            self.blocks = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
            self.head = nn.Linear(6, 3)
        for part in (self.embed, *self.blocks[:still]):
            part.requires_grad_(False)
        self.place.requires_grad_(False)

    def forward(self, x):
        start = torch.tanh(self.embed(2 * x) + self.place)
        end = self.blocks(start)
        end = torch.tanh(end + start if self.skips else end)
        return self.head(end) + (x.mean(1, keepdim=True) if self.twice else 0)


class Faint(nn.Module):
    """A frozen block that hardly adds its input to its output."""

    def __init__(self):
        super().__init__()
        with scoped(1):
            self.line = nn.Linear(5, 6).requires_grad_(False)
            self.block = nn.Linear(6, 6, bias=False).requires_grad_(False)
            self.head = nn.Linear(6, 3)

    def forward(self, x):
        start = torch.tanh(self.line(x))
        return self.head(self.block(start) + 1e-9 * start)


def net(body=Counted, *layers):
    with scoped(1):
        split = SplitNet(nn.Sequential(body(), *layers), nn.Linear(6, 3))
    return FrozenParts(split, ["backbone.*"])


def fit(module, held="cached", engine="sequential", precision="64-true", rounds=3):
    loop = FederatedLoop(rounds, progress=False, engine=engine, features=held, precision=precision)
    return loop.fit(module, blobs(SIZES))


@pytest.mark.parametrize("method", [FedAvg, FedAvgP, FedProx, Ditto])
def test_cached_equals_computed(method):
    """In float64 up to the rounding of other batches; also where a method copies its network."""
    runs = [fit(method(net(), optimizer=SGD), one) for one in ("computed", "cached")]
    assert "features" not in runs[0].header
    assert runs[1].header["features"] == (
        "cached: net.backbone is computed once for each sample, (6,)"
    )
    for name, value in runs[0].server.shared.items():
        assert torch.allclose(runs[1].server.shared[name], value, rtol=1e-12, atol=1e-12)
    for one, other in zip(*(run.history for run in runs), strict=True):
        for name in one.keys() & other.keys():
            if name.startswith("test/"):
                assert other[name] == pytest.approx(one[name], rel=1e-12)


def test_all_engines_have_one_fingerprint():
    runs = [fit(FedAvg(net(), optimizer=SGD), engine=e) for e in ENGINES]
    assert len({run.fingerprint for run in runs}) == 1
    assert len({run.header["features"] for run in runs}) == 1
    # Whoever asks for the data is given inputs.
    x = runs[0].data.split(0, "train").batch(torch.arange(2)).x
    assert torch.equal(x, blobs(SIZES).split(0, "train").batch(torch.arange(2)).x)


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (partial(Blocks, 4), "net up to blocks"),
        (partial(Blocks, 2), "net up to blocks.1"),
        # What is added again at the end comes from before the blocks.
        (partial(Blocks, 0), "net up to embed"),
        # However little of it there is.
        (Faint, "net.line"),
        (partial(net, Counted, nn.Linear(6, 6), nn.Dropout(0.5)), "net.backbone up to 1"),
    ],
)
def test_the_longest_prefix_is_computed_once(make, where):
    """Whatever the network's own code computes between its parts."""
    runs = [fit(FedAvg(make(), optimizer=SGD), one) for one in ("computed", "cached")]
    assert runs[1].header["features"] == f"cached: {where} is computed once for each sample, (6,)"
    for name, value in runs[0].server.shared.items():
        assert torch.allclose(runs[1].server.shared[name], value, rtol=1e-12, atol=1e-12)
    prints = {fit(FedAvg(make(), optimizer=SGD), engine=e).fingerprint for e in ENGINES}
    assert prints == {runs[1].fingerprint}
    # The module computes with inputs again.
    x = torch.rand(3, 5, dtype=torch.float64)
    again = FedAvg(make()).net.double().eval()
    again.load_state_dict(runs[1].module.net.state_dict())
    assert torch.equal(runs[1].module.net.eval()(x), again(x))


def test_what_skips_the_blocks_ends_the_prefix_before_them():
    run = fit(FedAvg(Blocks(3, skips=True), optimizer=SGD), rounds=1)
    assert "reads its inputs not only by net up to blocks.2" in run.header["features"]


def test_large_features_lie_in_files(monkeypatch):
    right = fit(FedAvg(net(), optimizer=SGD))
    made, in_file = [], room._in_file
    monkeypatch.setattr(features, "MOST", 0)
    monkeypatch.setattr(room, "_in_file", lambda *a: made.append(a[0]) or in_file(*a))
    run = fit(FedAvg(net(), optimizer=SGD))
    assert run.header["features"].endswith(" MB in files")
    assert {(size, 6) for size in SIZES} <= {*map(tuple, made)}
    assert run.fingerprint == right.fingerprint


def test_two_networks_with_one_frozen_backbone_share_its_features():
    supervisor = net()
    run = fit(FedSimSup(net(), supervisor, optimizer=SGD, sup_epochs=1, epochs=1))
    right = fit(FedSimSup(net(), net(), optimizer=SGD, sup_epochs=1, epochs=1), "computed")
    assert run.header["features"].startswith("cached: net.backbone")
    for name, value in right.server.shared.items():
        assert torch.allclose(run.server.shared[name], value, rtol=1e-12, atol=1e-12)


def test_each_sample_is_computed_once():
    counts = []
    for rounds in (1, 4):
        Counted.seen = 0
        run = fit(FedAvg(net(), optimizer=SGD, epochs=3), rounds=rounds)
        counts.append(Counted.seen)
    assert counts[0] == counts[1]
    # The module computes features of inputs again.
    run.personal(0)
    x = blobs(SIZES).split(0, "test").batch(torch.arange(3)).x
    before = Counted.seen
    assert run.module.net(x.double()).shape == (3, 3)
    assert Counted.seen == before + 3


class Peeks(FedAvg):
    """A method that reads its data beside the network."""

    def losses(self, batch):
        terms = super().losses(batch)
        return {**terms, "size": 0.1 * batch.x.square().mean() * self.net.head.bias.sum()}


class Draws(Counted):
    """A frozen layer with dropout of its own."""

    def forward(self, x):
        return self.line(nn.functional.dropout(x, 0.5, self.training))


def adapted():
    with scoped(1):
        return LoRA(SplitNet(nn.Linear(5, 6), nn.Linear(6, 3)), rank=1)


def same_shape():
    with scoped(1):
        return FrozenParts(SplitNet(nn.Linear(5, 5), nn.Linear(5, 3)), ["backbone.*"])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: FedAvg(net(Draws), optimizer=SGD), "draws"),
        (lambda: Peeks(net(), optimizer=SGD), "Peeks has other numbers"),
        (lambda: FedAvg(Blocks(4, twice=True), optimizer=SGD), "reads its inputs not only by net"),
        (lambda: FedAvg(adapted(), optimizer=SGD), "training changes net.backbone before most"),
        (lambda: FedAvg(same_shape(), optimizer=SGD), "looks like inputs"),
    ],
)
def test_the_header_says_why_features_are_computed_in_each_step(make, why):
    run = fit(make(), rounds=1)
    assert run.header["features"].startswith("computed in each step: ")
    assert why in run.header["features"]
    assert not any("forward" in vars(part) for part in run.module.modules())


def test_random_crops_are_computed_in_each_step():
    """As a sample has other pixels each time."""
    with scoped(1):
        body = nn.Sequential(nn.Conv2d(1, 2, 5, stride=4), nn.ReLU(), nn.Flatten())
        still = FrozenParts(SplitNet(body, nn.Linear(2 * 5 * 5, 3)), ["backbone.*"])
    for crops in (True, False):
        loop = FederatedLoop(1, progress=False, engine="sequential")
        module = FedAvg(copy.deepcopy(still), optimizer=SGD)
        said = loop.fit(module, images(crops=crops)).header["features"]
        assert said == "computed in each step: data are augmented" or not crops
        assert said.startswith("cached") != crops


def test_a_frozen_batch_norm_is_part_of_what_is_computed_once():
    """In eval mode; one that follows its batches ends it."""
    norm = nn.BatchNorm1d(6)
    norm.running_mean.fill_(0.3)
    run = fit(FedAvg(net(Counted, norm, nn.ReLU()), optimizer=SGD))
    assert run.header["features"].startswith("cached: net.backbone is")
    still = constants(run.module)["net.backbone.1.module.running_mean"]
    assert torch.equal(still, torch.full((6,), 0.3))
    moves = net(Counted, nn.BatchNorm1d(6))
    moves.backbone[1] = nn.BatchNorm1d(6).requires_grad_(False)
    run = fit(FedAvg(moves, optimizer=SGD, buffers="local"))
    assert run.header["features"].startswith("cached: net.backbone.0 is")


WHERE = {
    "newcomers": ("newcomers", lambda: {"data": late()}),
    "codecs": ("codecs", lambda: {"uplink": [extra("codecs").Codecs(up="topk")]}),
    "privacy": ("privacy", lambda: {"uplink": [private()], "sampler": UniformSampler()}),
}


def extra(name):
    return import_module(f"pfl.extras.{name}")


def late():
    data = blobs(SIZES)
    data.apart = {"unseen": (3,)}
    return data


def private():
    pytest.importorskip("dp_accounting")
    return extra("privacy.privacy").Privacy(1.0, 1.0, 1e-2, level="sample")


@pytest.mark.parametrize(
    "options", [pytest.param(make, id=name, marks=needs(of)) for name, (of, make) in WHERE.items()]
)
def test_wherever_a_run_goes_cached_equals_computed(options):
    runs = []
    for held in ("computed", "cached"):
        given = {"engine": "sequential", "data": blobs(SIZES), **options()}
        data = given.pop("data")
        loop = FederatedLoop(2, progress=False, features=held, precision="64-true", **given)
        runs.append(loop.fit(FedAvg(net(), optimizer=SGD), data))
    assert runs[1].header["features"].startswith("cached")
    for name, value in runs[0].server.shared.items():
        assert torch.allclose(runs[1].server.shared[name], value, rtol=1e-12, atol=1e-12)
    rows = [run.history[-1] for run in runs]
    scores = {name for name in rows[0] if name.startswith("test/")}
    assert {name: rows[1][name] for name in scores} == pytest.approx(
        {name: rows[0][name] for name in scores}, rel=1e-12
    )


def test_a_resumed_run_has_the_bits_of_an_unbroken_one(tmp_path):
    def run(rounds, **options):
        loop = FederatedLoop(rounds, progress=False, default_root_dir=str(tmp_path), name="some")
        return loop.fit(FedAvg(net(), optimizer=SGD), blobs(SIZES), **options)

    run(2)
    again = run(4, ckpt_path="last")
    assert again.round == 4
    assert again.header["features"].startswith("cached")
    whole = fit(FedAvg(net(), optimizer=SGD), rounds=4, precision="32-true")
    assert again.fingerprint == whole.fingerprint


def test_mixed_precision_computes_features_in_each_step():
    run = fit(FedAvg(net(), optimizer=SGD), precision="bf16-mixed", rounds=1)
    assert run.header["features"] == "computed in each step: precision is mixed"


def test_a_network_without_frozen_parts_has_no_such_line():
    with scoped(1):
        whole = SplitNet(nn.Linear(5, 6), nn.Linear(6, 3))
    assert "features" not in fit(FedAvg(whole, optimizer=SGD), rounds=1).header
