"""FedOTP: the invariants in docs/methods."""

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from lightning_modules.fedotp import FedOTP, transported
from lightning_modules.nets import ToyTowers, TwoTowers
from pfl.core.seeds import scoped
from tests.helpers import by_hand, facts
from tests.helpers.federation import HEAVY, SGD, Federation, fit
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp, normed

NUMBERS = 3 * 8
FACTS = {
    FedOTP: facts.Facts(
        travels=("common",),
        stays=("own",),
        floats=NUMBERS,
        fewer={"passes": 5},
        variants=[{"prompts": "global"}, {"transport": "balanced", "stop": "batch", "eps": 0.5}],
        stacks=[{"prompts": "global"}],
    ),
}


def towers(net):
    with scoped(5):
        return ToyTowers(net)


def make(net, **options):
    """Build the method on two towers, of which the network is a part."""
    with scoped(6):
        return FedOTP(towers(net), **options)


S = torch.tensor([[1.0], [0.0]], dtype=torch.float64)


def test_a_transport_by_hand():
    """Invariant 2: one prompt, two patches, eps 1, gamma 0.5; softmax in the limit."""
    limit = transported(S, 1.0, 0.5)
    assert limit.flatten().tolist() == pytest.approx([0.365529, 0.134471], abs=1e-6)
    assert (limit * S).sum().item() == pytest.approx(0.365529, abs=1e-6)
    once = transported(S, 1.0, 0.5, passes=1)
    assert once.flatten().tolist() == pytest.approx([0.288059, 0.211941], abs=1e-6)
    whole = transported(S, 1.0, 1.0, passes=2000)
    assert whole.flatten().tolist() == pytest.approx([0.5, 0.5], abs=1e-3)


def test_sums_of_a_transport():
    """Columns exactly, rows in the limit, also where exp(-1 / eps) is zero; balanced rows too."""
    rng = torch.Generator().manual_seed(0)
    near = torch.rand(3, 2, 4, 2, generator=rng, dtype=torch.float64) * 2 - 1
    for eps in (0.001, 0.1, 1.0):
        found = transported(near, eps, 0.8, passes=500)
        assert found.sum(-2).flatten().tolist() == pytest.approx([0.4] * 12)
        assert eps < 0.1 or found.sum(-1).max() < 0.25 * 1.001
    found = transported(near, 1.0, 1.0, balanced=True)
    assert found.sum(-1).flatten().tolist() == pytest.approx([0.25] * 24)


def logits(module, near):
    """Return the logits of given cosines, (B, C, M, N)."""
    matched = transported(near, **module.transport)
    return module.net.scale * (matched * near).sum((-2, -1))


def test_equal_cosines_and_one_patch():
    """Invariants 3 and 4: kappa gamma s, and kappa gamma (S_1 + S_2) / 2."""
    module = make(mlp())
    same, one = torch.full((1, 1, 4, 2), 0.3), torch.tensor([[[[0.2, 0.6]]]])
    for near in (same, one):
        assert float(logits(module, near)) == pytest.approx(5 * 0.8 * float(near.mean()))


def test_the_order_of_patches_and_the_batch_do_not_matter():
    """Invariant 5: with the authors' stop, a logit depends on the other samples."""
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    module = make(mlp()).eval()
    seen = module._seen(x)
    assert torch.allclose(module._logits(seen.flip(1)), module._logits(seen), atol=1e-6)
    assert torch.allclose(module(x)[:2], module(x[:2]), atol=1e-6)
    eager = make(mlp(), stop="batch", eps=0.5).eval()
    assert not torch.equal(eager(x)[:2], eager(x[:2]))
    assert not eager.vectorizable


def test_the_transport_has_no_gradient():
    """Invariant 6: the gradient is kappa sum T dS."""
    module = make(mlp().double()).double()
    x = torch.randn(4, 5, dtype=torch.float64)
    module(x).sum().backward()
    found, module.common.grad = module.common.grad.clone(), None
    named = normalize(
        torch.stack([module.net.describe(p) for p in (module.common, module.own)]), dim=-1
    )
    near = torch.einsum("bmd,ncd->bcmn", module._seen(x), named)
    for own in (near.detach(), near):
        module.common.grad = None
        (5 * transported(own, **module.transport) * near).sum().backward(retain_graph=True)
        same = torch.allclose(module.common.grad, found, rtol=0, atol=1e-12)
        assert same == (own is not near)


def test_the_encoder_is_a_constant_and_a_message_is_a_prompt():
    """Invariant 1."""
    before = towers(mlp()).state_dict()
    run = fit(make(mlp(), optimizer=HEAVY), blobs(), 2)
    constants = dict(run.module.net.named_buffers())
    assert all(torch.equal(constants[name], value) for name, value in before.items())
    row = run.history[-1]
    assert row["comm/bytes_up"] == row["comm/bytes_down"] == 3 * 4 * NUMBERS


def test_promptfl_is_one_prompt_on_the_pooled_feature():
    module = make(mlp(), prompts="global")
    x = torch.randn(4, 5)
    pooled = normalize(module.net.image(x)[0], dim=-1)
    expected = 5 * pooled @ normalize(module.net.describe(module.common), dim=-1).T
    assert torch.allclose(module(x), expected, atol=1e-6)


def test_a_client_that_sits_out_follows_the_common_prompt_alone():
    """Invariant 7."""
    fed = Federation(make(mlp(), optimizer=SGD), blobs(), rounds=4)
    fed.round(0, 1)
    own, score = fed.kept[0]["own"].clone(), fed.test(0)["loss"]
    fed.round(1, 2)
    assert torch.equal(fed.kept[0]["own"], own)
    assert fed.test(0)["loss"] != score


def test_texts_of_classes():
    module = towers(mlp())
    assert module.texts.tolist() == [
        [2, 0, 0, 0, 4, 1, 3, 0],
        [2, 0, 0, 0, 5, 6, 1, 3],
        [2, 0, 0, 0, 7, 1, 3, 0],
    ]
    assert module.ends.tolist() == [6, 7, 6]


def test_a_network_without_towers_is_refused():
    with pytest.raises(TypeError, match=parts("FedOTP ~ TwoTowers ~ ToyNet")):
        FedOTP(mlp())
    with pytest.raises(ValueError, match=parts("names ~ tokens")):
        TwoTowersOf([[1], []])


class TwoTowersOf(ToyTowers):
    def __init__(self, names):
        TwoTowers.__init__(self, names, 3, 8, start=2, end=3)


@pytest.mark.parametrize("options", [{}, {"transport": "balanced"}, {"prompts": "global"}])
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed = by_hand.federation(lambda net, **o: make(net, **{**o, "eps": 0.3, **options}))
    encoder = towers(normed(bias=False)).double().eval()
    both = options.get("prompts") != "global"
    balanced = options.get("transport") == "balanced"
    first = by_hand.initial({"common": make(mlp()).common.double()})
    first |= by_hand.initial({"own": make(mlp()).own.double()}) if both else {}
    common, own = first["common"], dict.fromkeys(range(4), first.get("own"))

    def outputs(w, x):
        pooled, patches = encoder.image(x)
        named = [normalize(encoder.describe(w[n]), dim=-1) for n in w]
        if not both:
            return 5 * normalize(pooled, dim=-1) @ named[0].T
        near = torch.stack([normalize(patches, dim=-1) @ t.T for t in named], -1)
        near = near.transpose(1, 2)
        kernel, mass = torch.exp(-(1 - near.detach()) / 0.3), 1.0 if balanced else 0.8
        v = torch.ones_like(kernel[..., 0, :])
        for _ in range(100):
            u = 0.25 / (kernel @ v[..., None])[..., 0]
            u = u if balanced else u.clamp_max(1)
            v = mass / 2 / (kernel.mT @ u[..., None])[..., 0]
        return 5 * (u[..., None] * kernel * v[..., None, :] * near).sum((-2, -1))

    def loss(w, x, y):
        return cross_entropy(outputs(w, x), y)

    for clients in cohorts:
        sent = []
        for c in clients:
            w = {"common": common, **({"own": own[c]} if both else {})}
            w = by_hand.descended(w, loss, by_hand.batches(fed, c))
            sent.append({"common": w["common"]})
            own[c] = w.get("own")
        common = by_hand.averaged(sent, [by_hand.SIZES[c] for c in clients])["common"]
        fed.round(*clients)
        for c in range(4):
            w = {"common": common, **({"own": own[c]} if both else {})}
            x, _ = by_hand.samples(fed, c, "test")
            found = by_hand.predicted(fed, c)
            prompts = {n: fed.module.state_dict()[n] for n in w}
            by_hand.compare((prompts, found), (w, outputs(w, x).detach()))
