"""FedCP: the invariants in docs/methods, with hand-worked numbers."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, layer_norm, linear

from lightning_modules.fedcp import FedCP
from lightning_modules.nets import SplitNet
from pfl.core.noise import normals, streams_of
from pfl.core.seeds import derive
from pfl.core.types import Batch
from tests.helpers import by_hand, facts
from tests.helpers.federation import SGD, Federation
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp

FACTS = {
    FedCP: facts.Facts(
        travels=("net.backbone.", "generic.", "policy."),
        stays=("net.head.",),
        # A head, and a policy of 6 * 12 + 12 weights and 2 * 12 of its norm.
        floats=facts.NET + 84 + 24,
        variants=[{"anchor_mode": "train"}, {"gumbel_batch": 4}],
        stacks=[{"anchor_mode": "train"}, {"gumbel_batch": 20}],
        draws="policy.0.weight",
        needs_parts=True,
        not_private="phase 'local': its term 'discrepancy' is not a mean over the samples",
    ),
}


def test_the_vector_is_the_sum_over_classes_of_the_own_head():
    """Of two layers it is that of the product of their weights."""
    net = SplitNet(nn.Identity(), nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)))
    module = FedCP(net)
    expected = (net.head[1].weight @ net.head[0].weight).sum(0)
    torch.testing.assert_close(module.vector, expected.detach())


def test_a_newcomer_takes_the_generic_head():
    federation = Federation(FedCP(mlp(), optimizer=SGD))
    federation.round(0, 1)
    info = replace(federation.infos[0], round=1)
    broadcast, kept = federation.server.welcome(federation.state, info, federation.infos)
    generic = {n for n in broadcast.shared if n.startswith("generic.")}
    assert kept.keys() == {n.replace("generic.", "net.head.") for n in generic}


def test_masks_have_noise_in_training_alone():
    """Invariant 5: without a phase's draws the method draws its own."""
    module, split = FedCP(mlp(), gumbel_batch=20), blobs().split(0, "train")
    batch = Batch(split.x, split.targets)
    with torch.no_grad():
        module.net.head.weight.mul_(3)
    one, other = (module.losses(batch)["ce"].item() for _ in range(2))
    assert one != other
    assert torch.equal(module(split.x), module(split.x))
    # With u = h the noise has no effect.
    equal_heads = [FedCP(mlp(), **more).losses(batch)["ce"] for more in ({}, {"gumbel_batch": 9})]
    torch.testing.assert_close(*equal_heads)


def test_a_batch_larger_than_its_noise_is_refused():
    with pytest.raises(ValueError, match=parts("4 samples ~ gumbel_batch ~ 3")):
        Federation(FedCP(mlp(), optimizer=SGD, gumbel_batch=3)).round()


@pytest.mark.parametrize(
    ("anchor_mode", "gumbel_batch"), [("eval", None), ("train", None), ("eval", 5)]
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, anchor_mode, gumbel_batch):
    fed = by_hand.federation(FedCP, anchor_mode=anchor_mode, gumbel_batch=gumbel_batch)
    first = by_hand.initial()
    w = {n: v for n, v in first.items() if n[0] == "b"}
    w |= by_hand.initial({n: v for n, v in fed.state.shared.items() if n.startswith("policy.")})
    generic = {n: v for n, v in first.items() if n[0] == "h"}
    personal = dict.fromkeys(range(4), generic)

    def logits_of(state, h, v, z, gumbel=0.0):
        q = linear(z * v / v.norm(), state["policy.0.weight"], state["policy.0.bias"])
        a = layer_norm(q, (12,), state["policy.1.weight"], state["policy.1.bias"]).relu()
        a = a.unflatten(1, (2, 6)) + gumbel
        r = a[:, 0].exp() / (a[:, 0].exp() + a[:, 1].exp())
        u = linear(z * r, state["head.weight"], state["head.bias"])
        return u + linear(z * (1 - r), h["head.weight"], h["head.bias"])

    def kernels(a, b):
        squares = (a[:, None] - b).square().sum(-1)
        return sum(torch.exp(-squares / (2 * s)) for s in (10, 15, 20, 50))

    def steps(c):
        streams = streams_of([derive(fed.job(c).seed, "noise", "local")], torch.device("cpu"))
        for k, (x, y) in enumerate(by_hand.batches(fed, c)):
            normal = normals(streams, k, 1, 5 * 12, torch.float64).view(5, 2, 6)
            gumbel = -(-torch.special.log_ndtr(normal[: len(y)])).log()
            yield x, y, gumbel if gumbel_batch else 0.0

    def loss(state, x, y, gumbel):
        z = by_hand.features(state, x, True)
        t = by_hand.features({n: t.clone() for n, t in w.items()}, x, anchor_mode == "train")
        apart = (kernels(z, z) + kernels(t, t) - 2 * kernels(z, t)).mean()
        return cross_entropy(logits_of(state, generic, v, z, gumbel), y) + 5 * apart

    for clients in cohorts:
        sent, sizes = [], [by_hand.SIZES[c] for c in clients]
        for c in clients:
            v = personal[c]["head.weight"].sum(0)
            state = by_hand.descended(w | personal[c], loss, steps(c))
            personal[c] = {n: state[n] for n in generic}
            sent.append(state | {n: (state[n] + generic[n]) / 2 for n in generic})
        mean = by_hand.averaged(sent, sizes)
        w, generic = ({n: mean[n] for n in part} for part in (w, generic))
        fed.round(*clients)
        merged = {
            n.replace("net.", "").replace("generic", "head"): v for n, v in fed.state.shared.items()
        }
        by_hand.compare(by_hand.of(merged, ""), w | generic)
        for c, u in personal.items():
            x, _ = by_hand.samples(fed, c, "test")
            expected = logits_of(w | u, generic, u["head.weight"].sum(0), by_hand.features(w, x))
            by_hand.compare(by_hand.predicted(fed, c), expected)
