"""FedCP: the invariants in docs/methods, with hand-worked numbers."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, layer_norm, linear

from lightning_modules.fedcp import FedCP
from lightning_modules.losses import kernel_discrepancy
from lightning_modules.nets import SplitNet
from pfl.core.noise import normals, streams_of
from pfl.core.seeds import derive
from pfl.core.types import Batch, Broadcast
from tests.helpers import by_hand
from tests.helpers.draws import normal
from tests.helpers.federation import SGD, Federation, equal
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp, normed


def apart(net=None, **options):
    """Return a method whose personal head differs from the generic one, after a broadcast."""
    module = FedCP(mlp() if net is None else net, optimizer=SGD, **options)
    with torch.no_grad():
        for value in module.net.head.parameters():
            value.add_(1.0)
        sent = {n: module.state_dict()[n].clone() for n in module.shared_names()}
        module.receive(Broadcast(sent), Federation(FedCP(mlp())).infos[0])
    return module


def test_discrepancy_by_hand():
    """Invariant 4."""
    z, target = torch.zeros(1, 2), torch.tensor([[2.0, 4.0]])
    terms = (-1, -2 / 3, -1 / 2, -1 / 5)
    expected = 8 - 2 * sum(map(math.exp, terms))
    assert expected == pytest.approx(3.386884, abs=1e-6)
    assert kernel_discrepancy(z, target).item() == pytest.approx(expected, abs=1e-5)


def test_the_discrepancy_is_a_mean_over_all_pairs():
    """Against a loop over pairs, diagonals included."""
    z, target = normal(3, 2), normal(3, 2, seed=1)

    def kernel(a, b):
        return sum(torch.exp(-(a - b).square().sum() / (2 * s)) for s in (10, 15, 20, 50))

    pairs = [(a, b) for a in range(3) for b in range(3)]
    values = [
        kernel(z[a], z[b]) + kernel(target[a], target[b]) - 2 * kernel(z[a], target[b])
        for a, b in pairs
    ]
    torch.testing.assert_close(kernel_discrepancy(z, target), sum(values) / 9)


def test_the_prediction_by_hand():
    """z = (1, 2), u = (1, 0) and h = (0, 1), without biases, for one class; v = u.

    The policy has weights that give the biases (0, 0, 0, 2) whatever it reads; their mean is 0.5
    and their deviation sqrt(0.75), so LayerNorm and ReLU leave (0, 0, 0, a) with a = 1.5 /
    sqrt(0.75). The masks of the two features are softmax(0, 0) and softmax(0, a); the logit is
    1 * r_1 + 2 * s_2.
    """
    net = SplitNet(nn.Identity(), nn.Linear(2, 1, bias=False))
    module = FedCP(net)
    with torch.no_grad():
        net.head.weight.copy_(torch.tensor([[1.0, 0.0]]))
        module.generic.weight.copy_(torch.tensor([[0.0, 1.0]]))
        module.policy[0].weight.zero_()
        module.policy[0].bias.copy_(torch.tensor([0.0, 0.0, 0.0, 2.0]))
    a = 1.5 / math.sqrt(0.75)
    expected = 0.5 + 2 / (1 + math.exp(-a))
    assert module(torch.tensor([[1.0, 2.0]])).item() == pytest.approx(expected, abs=1e-4)


def test_masks_divide_each_feature():
    """Invariant 1: with heads that return their input, the outputs add up to z."""
    module, x = apart(), normal(7, 5).float()
    seen = []
    for head in (module.net.head, module.generic):
        head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    module(x)
    z = module.net.backbone(x)
    torch.testing.assert_close(seen[0] + seen[1], z)
    positive = z > 0
    share = seen[0][positive] / z[positive]
    assert ((share > 0) & (share < 1)).all()


def test_equal_heads_need_no_policy():
    """Invariants 2 and 3: at the first step of all."""
    module = FedCP(mlp(), discrepancy_weight=3.0)
    split = blobs().split(0, "train")
    z = module.net.backbone(split.x)
    head = module.net.head
    expected = z @ head.weight.mT + 2 * head.bias
    torch.testing.assert_close(module(split.x), expected)
    terms = module.losses(Batch(split.x, split.targets))
    assert terms["discrepancy"].item() == 0.0
    (slope,) = torch.autograd.grad(terms["discrepancy"], module.net.backbone[0].weight)
    assert slope.abs().max() < 1e-6
    fresh = module.losses(Batch(split.x, split.targets))["ce"]
    slopes = torch.autograd.grad(fresh, list(module.policy.parameters()))
    assert all(slope.abs().max() < 1e-6 for slope in slopes)


def test_the_mean_of_both_heads_goes_up():
    """Invariants 5 and 7. The generic head rests in training; u can be computed from the upload."""
    federation = Federation(FedCP(mlp(), optimizer=SGD))
    federation.round(0, 1)
    before = federation.state.shared
    for client in (0, 1):
        result = federation.train(client)
        generic = federation.module.generic.state_dict()
        sent = {n.removeprefix("generic."): v for n, v in result.upload.shared.items()}
        assert not any(name.startswith("net.head") for name in sent)
        assert "vector" not in sent
        for name, value in generic.items():
            assert torch.equal(value, before[f"generic.{name}"])
            mine = result.kept[f"net.head.{name}"]
            torch.testing.assert_close(2 * sent[name] - value, mine)
    kept = federation.kept[0]
    federation.round(1, 2)
    assert equal(federation.kept[0], kept)


def test_the_length_of_the_vector_does_not_matter():
    """Invariant 6."""
    module, x = apart(), normal(4, 5).float()
    before = module(x)
    module.vector.mul_(7.0)
    torch.testing.assert_close(module(x), before)


def test_the_vector_is_the_sum_over_classes_of_the_own_head():
    """Of two layers it is that of the product of their weights."""
    net = SplitNet(nn.Identity(), nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)))
    module = FedCP(net)
    expected = (net.head[1].weight @ net.head[0].weight).sum(0)
    torch.testing.assert_close(module.vector, expected.detach())
    moved = apart()
    torch.testing.assert_close(moved.vector, moved.net.head.weight.sum(0).detach())


def test_the_received_backbone_can_use_the_statistics_of_the_batch():
    """Then it is the same as that in training, and the first step has no discrepancy."""
    split = blobs().split(0, "train")
    batch = Batch(split.x, split.targets)
    values = [
        FedCP(normed(), anchor_mode=mode).train().losses(batch)["discrepancy"].item()
        for mode in ("eval", "train")
    ]
    assert values[0] > 1e-3
    assert values[1] == pytest.approx(0.0, abs=1e-6)


def test_a_newcomer_takes_the_generic_head():
    federation = Federation(FedCP(mlp(), optimizer=SGD))
    federation.round(0, 1)
    broadcast, kept = federation.welcome()
    generic = {n for n in broadcast.shared if n.startswith("generic.")}
    assert kept.keys() == {n.replace("generic.", "net.head.") for n in generic}


def test_masks_have_noise_in_training_alone():
    """Invariant 9: without a phase's draws the method draws its own."""
    module, split = FedCP(mlp(), gumbel_batch=20), blobs().split(0, "train")
    batch = Batch(split.x, split.targets)
    with torch.no_grad():
        module.net.head.weight.mul_(3)
    one, other = (module.losses(batch)["ce"].item() for _ in range(2))
    assert one != other
    assert torch.equal(module(split.x), module(split.x))
    # With u = h the noise has no effect (invariant 2).
    equal_heads = [FedCP(mlp(), **more).losses(batch)["ce"] for more in ({}, {"gumbel_batch": 9})]
    torch.testing.assert_close(*equal_heads)


def test_a_batch_larger_than_its_noise_is_refused():
    with pytest.raises(ValueError, match=parts("4 samples ~ gumbel_batch ~ 3")):
        Federation(FedCP(mlp(), optimizer=SGD, gumbel_batch=3)).round()


@pytest.mark.parametrize(
    ("anchor_mode", "gumbel_batch"), [("eval", None), ("train", None), ("eval", 5)]
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
def test_a_federation_by_hand(cohorts, anchor_mode, gumbel_batch):
    fed = by_hand.federation(FedCP, anchor_mode=anchor_mode, gumbel_batch=gumbel_batch)
    first = by_hand.initial()
    w = {n: v for n, v in first.items() if n[0] == "b"}
    w |= {n: v.clone() for n, v in fed.state.shared.items() if n.startswith("policy.")}
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
        assert by_hand.distance(by_hand.of(merged, ""), w | generic) < 1e-12
        for c, u in personal.items():
            x, _ = by_hand.samples(fed, c, "test")
            expected = logits_of(w | u, generic, u["head.weight"].sum(0), by_hand.features(w, x))
            assert by_hand.distance({"": by_hand.predicted(fed, c)}, {"": expected}) < 1e-12
