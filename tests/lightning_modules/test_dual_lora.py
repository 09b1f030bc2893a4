"""DualLoRA (FedDPA): the invariants in docs/methods."""

import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from lightning_modules.dual_lora import DualLayer, DualLoRA, Share
from lightning_modules.fedavg import FedAvg
from pfl.core.seeds import generator
from pfl.federation.sampling import UniformSampler
from tests.helpers import adapters, by_hand, facts
from tests.helpers.adapters import DOWN, SCALE, UP, adapted, make
from tests.helpers.federation import HEAVY, SGD, Federation, fit
from tests.helpers.toy import blobs, mlp

__all__ = ["make"]

COMMON, OWN = "net.backbone.0.layer.", "net.backbone.0.own."
FACTS = {
    DualLoRA: facts.Facts(
        travels=(COMMON, "net.head."),
        stays=(OWN, "drawn"),
        floats=adapters.A + adapters.B + facts.HEAD,
        variants=[
            {"form": "F", "head": "dual"},
            {"gate": "global", "gate_features": "base", "local_sees": "trained", "warmup": 0},
            {"gate": "fixed", "global_phase": "beside", "head": "local"},
        ],
        stacks=[{"form": "F", "head": "dual"}, {"global_phase": "beside", "head": "local"}],
        needs_parts=True,
        not_private="phase 'own': its number of steps differs",
    ),
}
OTHERS = [
    {"mix": 0.3, "gate": "global"},
    {"gate": "fixed", "warmup": 0},
    {"local_sees": "trained", "gate_features": "base"},
]


def layer(a, w=1.0, common=(1.0, 0.5), own=(1.0, 0.25)):
    """Return a layer of one input and output, with s = 2."""
    base = adapters.line(w, [common[0]], common[1])
    share = Share()
    dual = DualLayer(base, share)
    with torch.no_grad():
        dual.own["down"].fill_(own[0])
        dual.own["up"].fill_(own[1])
    share.value = a
    return dual


@pytest.mark.parametrize("a", [0.25, torch.tensor([0.25])])
def test_a_mixed_layer_by_hand(a):
    """Invariant 3: h = 3 + 2.25 + 0.375; dB_l = 5.625 * 0.25 * 2 * 3, dA_l a quarter of that."""
    dual = layer(a)
    h = dual(torch.tensor([[3.0]]))
    assert h.item() == pytest.approx(5.625)
    (h.square() / 2).sum().backward()
    assert dual.own["up"].grad.item() == pytest.approx(8.4375)
    assert dual.own["down"].grad.item() == pytest.approx(2.109375)


def test_the_ends_of_the_mix():
    x = torch.tensor([[3.0]])
    for a, h in ((0.0, 3 + 3), (1.0, 3 + 1.5), (None, 3)):
        for form in (a, None if a is None else torch.tensor([a])):
            assert layer(form)(x).item() == h


def test_without_a_local_product_the_global_one_is_scaled():
    """Invariant 2: the logits are not the global model's."""
    dual = layer(0.25, own=(1.0, 0.0))
    assert dual(torch.tensor([[3.0]])).item() == pytest.approx(3 + 0.75 * 3)


def test_a_gate_by_hand():
    """Invariant 4: cosines 1, 0, -1, 0 and 1; c = 0.2."""
    e = torch.tensor([[1.0, 0, 0, 0, 0, 0]])
    anchors = torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, 2], [3, 0]])
    for options, a in (({}, 0.1), ({"gate": "global"}, 0.9), ({"gate": "fixed", "mix": 0.3}, 0.3)):
        module = DualLoRA(adapted(mlp()), **options)
        module._features = lambda x: e
        module.anchors[:, :2], module.filled[:] = anchors, 1
        assert module.weight(e).item() == pytest.approx(a)
    for clamp, a in ((True, 0.0), (False, -0.5)):
        module = DualLoRA(adapted(mlp()), clamp=clamp, anchors=1)
        module._features = lambda x: e
        module.anchors[0], module.filled[0] = -e[0], 1
        assert module.weight(e).item() == pytest.approx(a)


@pytest.mark.parametrize("options", OTHERS)
def test_the_global_adapter_is_that_of_fedavg(options):
    """Invariant 1: bit for bit, whatever mix, gate, warm-up and order of the phases."""
    sampler = UniformSampler(0.7)
    run, other = (
        fit(m, blobs(), 4, sampler=sampler)
        for m in (
            DualLoRA(adapted(mlp()), optimizer=HEAVY, **options),
            FedAvg(adapted(mlp()), optimizer=HEAVY, weighting="uniform"),
        )
    )
    for name, value in other.server.shared.items():
        ours = name.replace("backbone.0.", "backbone.0.layer.")
        assert torch.equal(run.server.shared[ours], value)
    assert run.history[-1]["test/global/loss"] == other.history[-1]["test/global/loss"]


def test_before_tuning_both_adapters_are_the_global_one():
    """Invariant 5: so that the mix does not matter, up to rounding."""
    options = {"form": "F", "ft_epochs": 0, "optimizer": SGD}
    fed = Federation(DualLoRA(adapted(mlp()), **options), blobs(), rounds=2, precision="64-true")
    fed.round(0, 1)
    fed.test(2)
    x = torch.randn(4, 5, dtype=torch.float64)
    whole = fed.module(x)
    assert fed.module.weight(x).any()
    fed.module.personal.zero_()
    assert torch.allclose(fed.module(x), whole, rtol=0, atol=1e-12)


def test_a_client_draws_its_a_once_and_keeps_both():
    """Invariant 6: nothing of a client that sits out changes."""
    fed = Federation(DualLoRA(adapted(mlp()), optimizer=SGD), blobs(), rounds=4)
    fed.round(0, 1)
    first = {c: dict(fed.kept[c]) for c in range(2)}
    assert not torch.equal(first[0][OWN + "down"], first[1][OWN + "down"])
    assert not first[0][OWN + "up"].any()
    fed.round(1, 2)
    assert all(torch.equal(fed.kept[0][n], v) for n, v in first[0].items())
    assert not torch.equal(fed.kept[1][OWN + "up"], first[1][OWN + "up"])


def network(w, own, x, a, common_head, own_head):
    """Return logits of two adapters at the weights ``a``, (B,) or a number."""
    layer, norm = by_hand.NET.backbone[:2]
    a = torch.as_tensor(a, dtype=x.dtype).reshape(-1, 1)
    h = x @ layer.weight.detach().T
    theirs, ours = (SCALE * x @ one[DOWN].T @ one[UP].T for one in (w, own))
    h = h + (1 - a) * theirs + a * ours
    scale = norm.weight.detach() / (norm.running_var + norm.eps).sqrt()
    z = ((h - norm.running_mean) * scale + norm.bias.detach()).relu()
    logits = [z @ one["head.weight"].T + one["head.bias"] for one in (common_head, own_head)]
    return (1 - a) * logits[0] + a * logits[1], z


CASES = {
    "T": {},
    "T-trained": {"local_sees": "trained", "warmup": 0, "gate_features": "local"},
    "T-local": {"head": "local", "gate": "global"},
    "T-dual": {"head": "dual", "gate_features": "base", "clamp": False},
    "T-beside": {"global_phase": "beside", "gate": "fixed", "mix": 0.3},
    "F": {"form": "F"},
    "F-dual": {"form": "F", "head": "dual", "ft_epochs": 3},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed = by_hand.federation(lambda net, **o: make(net, DualLoRA, **{**o, **options}))
    mix, form, head = options.get("mix", 0.5), options.get("form", "T"), options.get("head")
    first, seed = adapters.start(), fed.module.seed
    heads = {n: v for n, v in first.items() if n.startswith("head.")}
    common = dict(first)
    own = {c: {DOWN: first[DOWN], UP: first[UP], **heads} for c in range(4)}
    seen = set()

    def logits(w, v, x, a):
        theirs = v if head == "local" else w
        return network(w, v, x, a, theirs, v if head == "dual" else theirs)

    def trained(w, v, which, a, steps):
        """Return the entries that a phase trains of w (the global ones) or v, after it."""
        own_head = heads if head in ("dual", "local") else {}
        names = [DOWN, UP, *(own_head if which == "own" else {} if head == "local" else heads)]
        fixed = w if which == "own" else v

        def loss(part, x, y):
            pair = (fixed, {**v, **part}) if which == "own" else ({**w, **part}, fixed)
            return cross_entropy(logits(*pair, x, a)[0], y)

        mine = v if which == "own" else w
        return {**mine, **by_hand.descended({n: mine[n] for n in names}, loss, steps)}

    for number, clients in enumerate(cohorts, 1):
        sent = []
        for c in clients:
            w = common
            if form == "T" and c not in seen:
                rng = generator(seed, "own", c)
                own[c] |= {DOWN: ((2 * torch.rand(2, 5, generator=rng) - 1) * 5**-0.5).double()}
                seen.add(c)
            beside = options.get("global_phase") == "beside" and number > 1
            phases = [("beside", mix, "w") if beside else ("local", 0.0, "w")]
            if form == "T" and number > options.get("warmup", 1):
                phases.append(("own", mix, "own"))
            for name, a, which in phases[:: 1 if options.get("local_sees") == "trained" else -1]:
                new = trained(w, own[c], which, a, by_hand.batches(fed, c, phase=name))
                if which == "own":
                    own[c] = new
                else:
                    w = new
            sent.append(w)
        common = by_hand.averaged(sent, [1] * len(clients))
        fed.round(*clients)
        for c in range(4):
            v, (x, _) = own[c], by_hand.samples(fed, c)
            if form == "F":
                v = {**v, DOWN: common[DOWN], UP: common[UP]}
                epochs = options.get("ft_epochs", 2)
                v = trained(common, v, "own", 1.0, by_hand.batches(fed, c, epochs, "tune", ahead=0))
            tests, _ = by_hand.samples(fed, c, "test")
            off = {**common, UP: torch.zeros_like(common[UP])}
            of = options.get("gate_features", "global")
            pair, at = ((off, v), 0.0) if of == "base" else ((common, v), float(of == "local"))
            anchors, e = (logits(*pair, some, at)[1] for some in (x[:5], tests))
            c_of = cosine_similarity(e[:, None], anchors[None], dim=-1).mean(1)
            a = 0.5 * (c_of if options.get("clamp") is False else c_of.clamp_min(0))
            gate = options.get("gate", "local")
            a = mix if gate == "fixed" else 1 - a if gate == "global" else a
            by_hand.compare(by_hand.predicted(fed, c), logits(common, v, tests, a)[0].detach())
