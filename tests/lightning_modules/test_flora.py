"""FLoRA: the invariants in docs/methods."""

import pytest
import torch
from torch import nn

from lightning_modules.flora import FLoRA, with_products
from lightning_modules.layers import low_rank_kind
from lightning_modules.nets import LoRA, Ranks, SplitNet
from pfl.core.seeds import generator, scoped
from pfl.core.types import ClientInfo, Upload
from pfl.federation.sampling import UniformSampler
from tests.helpers import adapters, by_hand, facts
from tests.helpers.adapters import DOWN, SCALE, UP, adapted, make
from tests.helpers.federation import HEAVY, SGD, Federation, fit
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp

__all__ = ["make"]

BOTH = adapters.A + adapters.B
WEIGHT = "net.backbone.0.weight"
FACTORS = (f"net.{DOWN}", f"net.{UP}")
FACTS = {
    FLoRA: facts.Facts(
        travels=(WEIGHT, "net.head."),
        stays=(WEIGHT, "folded"),
        extra=FACTORS,
        # Three clients of rank 2, all of which have the weights without the first stack.
        floats=(3 * BOTH + facts.HEAD, BOTH + facts.HEAD),
        variants=[{"broadcast": "dense", "head": "kept"}, {"head": "frozen"}],
        stacks=[{"broadcast": "dense", "head": "kept"}],
        needs_parts=True,
    ),
}


def served(products, samples, weight):
    """Return a server's state after a round in which clients sent these pairs of B and A."""
    net = FLoRA(adapted(mlp()))
    server = net.server()
    server.layers = {"w": ("a", "b")}
    infos = [ClientInfo(i, n, None) for i, n in enumerate(samples)]
    uploads = [
        Upload(i, n, {}, {"a": a, "b": b})
        for i, (n, (b, a)) in enumerate(zip(samples, products, strict=True))
    ]
    return server, server.aggregate(server.init({"w": weight}, infos), uploads)


def test_two_products_by_hand():
    """Invariant 1: weights 1/4 and 3/4; the product of the means is another matrix."""
    b1, a1 = torch.tensor([[1.0], [0.0]]), torch.tensor([[1.0, 2.0]])
    b2, a2 = torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0, -1.0]])
    _, state = served([(b1, a1), (b2, a2)], [1, 3], torch.zeros(2, 2))
    assert state.shared["w"].tolist() == [[0.25, 0.5], [2.25, -0.75]]
    means = (b1 + 3 * b2) / 4 @ ((a1 + 3 * a2) / 4)
    assert means.tolist() == [[0.625, -0.0625], [1.875, -0.1875]]


def test_a_stack_is_the_mean_of_the_products_of_any_ranks():
    """Invariant 2."""
    rng = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    products = [(draw(6, r), draw(r, 5)) for r in (1, 2, 3, 4)]
    samples, weight = [5, 1, 2, 2], draw(6, 5)
    _, state = served(products, samples, weight)
    mean = sum(n * (b @ a) for n, (b, a) in zip(samples, products, strict=True)) / 10
    assert torch.allclose(state.shared["w"] - weight, mean, rtol=0, atol=1e-12)
    assert state.stack["a"].shape == (10, 5)
    _, permuted = served(products[::-1], samples[::-1], weight)
    assert torch.allclose(permuted.shared["w"], state.shared["w"], rtol=0, atol=1e-12)


def test_who_has_missed_a_stack_receives_all_weights():
    """Before any round nobody lacks anything; a member that sat out has other weights than the last
    stack belongs to."""
    fed = Federation(FLoRA(adapted(mlp()), optimizer=SGD), blobs(), rounds=4)
    first = fed.job(0).broadcast
    assert not first.extra
    assert WEIGHT not in first.shared
    fed.round(0, 1)
    fed.round(0, 1)
    sent = [fed.job(c).broadcast for c in range(3)]
    assert [WEIGHT in one.shared for one in sent] == [False, False, True]
    assert [sum(v.numel() for v in one.extra.values()) for one in sent] == [2 * BOTH, 2 * BOTH, 0]
    tested = []
    for client in range(3):
        fed.test(client)
        tested.append(fed.module.state_dict()[WEIGHT].clone())
        assert not fed.module.state_dict()[f"net.{UP}"].any()
    assert all(torch.equal(one, fed.state.shared[WEIGHT]) for one in tested)


def test_a_newcomer_has_the_whole_model():
    fed = Federation(FLoRA(adapted(mlp()), optimizer=SGD), blobs(), rounds=4)
    fed.round(0, 1)
    fed.round(0, 1)
    message, kept = fed.server.welcome(fed.state, ClientInfo(9, 4, None, 2), [])
    assert torch.equal(message.shared[WEIGHT], fed.state.shared[WEIGHT])
    assert not kept


def test_a_stack_is_added_once():
    fed = Federation(FLoRA(adapted(mlp()), optimizer=SGD), blobs(), rounds=4)
    fed.round(0, 1)
    module, sent = fed.start(0), fed.job(0)
    once = module.state_dict()[WEIGHT].clone()
    with torch.no_grad():
        module.receive(sent.broadcast, sent.info)
    assert torch.equal(module.state_dict()[WEIGHT], once)
    assert torch.equal(once, fed.state.shared[WEIGHT])


def test_new_adapters_change_no_output_and_differ_between_clients_and_rounds():
    """Invariant 4."""
    fed = Federation(FLoRA(adapted(mlp()), optimizer=SGD), blobs(), rounds=4)
    x, drawn = torch.randn(4, 5), []
    for _ in range(2):
        for client in range(2):
            module = fed.start(client)
            drawn.append(module.net.backbone[0].down.clone())
            layer = module.net.backbone[0]
            plain = torch.nn.functional.linear(x, layer.weight, layer.bias)
            assert torch.equal(layer(x), plain)
        fed.round(0, 1)
    assert len({tuple(one.flatten().tolist()) for one in drawn}) == 4
    assert max(one.abs().max() for one in drawn) <= 5**-0.5


def test_a_stack_as_an_adapter_is_the_folded_weight():
    """Invariant 5."""
    fed = Federation(FLoRA(adapted(mlp()), optimizer=SGD), blobs(), rounds=4, precision="64-true")
    fed.round(0, 1, 2)
    before = dict(fed.state.shared)
    fed.round(0, 1, 2)
    x, stack = torch.randn(4, 5, dtype=torch.float64), fed.state.stack
    beside = x @ before[WEIGHT].T + x @ stack[f"net.{DOWN}"].T @ stack[f"net.{UP}"].T
    assert torch.allclose(x @ fed.state.shared[WEIGHT].T, beside, rtol=0, atol=1e-12)


def test_a_client_keeps_no_adapter():
    """Invariant 7; in a dense run it keeps nothing."""
    sampler = UniformSampler(1.0)
    for broadcast, kept in (("stacked", {WEIGHT, "folded"}), ("dense", set())):
        module = FLoRA(adapted(mlp()), broadcast=broadcast, optimizer=HEAVY)
        run = fit(module, blobs(), sampler=sampler)
        assert {*run.kept[0]} == kept


def test_what_is_sent_does_not_change_the_model():
    sampler = UniformSampler(0.7)
    one, other = (
        fit(FLoRA(adapted(mlp()), broadcast=b, optimizer=HEAVY), blobs(), 4, sampler=sampler)
        for b in ("stacked", "dense")
    )
    for name, value in one.server.shared.items():
        assert torch.equal(other.server.shared[name], value)
    for row, same in zip(one.history, other.history, strict=True):
        assert row["test/personal/loss"] == same["test/personal/loss"] == row["test/global/loss"]


@pytest.mark.parametrize("broadcast", ["stacked", "dense"])
@pytest.mark.parametrize("head", ["shared", "kept"])
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, head, broadcast):
    fed = by_hand.federation(lambda net, **o: make(net, FLoRA, head=head, broadcast=broadcast, **o))
    first, seed = adapters.start(), fed.module.seed
    heads = {c: {n: v for n, v in first.items() if n.startswith("head.")} for c in range(4)}
    weight = by_hand.NET.backbone[0].weight.detach()
    still = {DOWN: torch.zeros_like(first[DOWN]), UP: torch.zeros_like(first[UP])}
    for number, clients in enumerate(cohorts, 1):
        sizes, change, new = [by_hand.SIZES[c] for c in clients], 0, {}
        for c in clients:
            rng = generator(seed, "adapters", c, number)
            drawn = (2 * torch.rand(2, 5, generator=rng) - 1) * 5**-0.5
            w = {**still, **heads[c], DOWN: drawn.double()}

            def loss(w, x, y, weight=weight):
                return torch.nn.functional.cross_entropy(adapters.outputs(w, x, weight), y)

            w = by_hand.descended(w, loss, by_hand.batches(fed, c))
            change = change + by_hand.SIZES[c] / sum(sizes) * SCALE * w[UP] @ w[DOWN]
            new[c] = {n: w[n] for n in heads[c]}
        weight = weight + change
        if head == "shared":
            heads = dict.fromkeys(range(4), by_hand.averaged([*new.values()], sizes))
        else:
            heads |= new
        fed.round(*clients)
        for c in range(4):
            x, _ = by_hand.samples(fed, c, "test")
            expected = adapters.outputs({**still, **heads[c]}, x, weight)
            found = by_hand.predicted(fed, c)
            by_hand.compare((fed.module.state_dict()[WEIGHT], found), (weight, expected))


def test_clients_of_different_ranks():
    """Invariant 12: alpha 2 with ranks 1 and 3 is s = 2 and 2 / 3.

    The stack has the rows of all; each client sends its own.
    """
    module = FLoRA(Ranks(mlp(), [1, 3], alpha=2.0, targets=["backbone.0"]), optimizer=SGD)
    run = fit(module, blobs(), 2, sampler=UniformSampler(1.0), precision="64-true")
    assert run.server.stack[f"net.{DOWN}"].shape == (1 + 3 + 1, 5)
    row = run.history[-1]
    assert row["comm/bytes_up"] == 8 * (5 * (5 + 6) + 3 * facts.HEAD)
    assert row["comm/bytes_down"] == 8 * 3 * (5 * (5 + 6) + facts.HEAD)
    sent = []
    for client, s in ((0, 2.0), (1, 2 / 3), (2, 2.0)):
        module.take_variant(client % 2)
        up = module.net.get_parameter(UP)
        with torch.no_grad():
            up.fill_(1.0)
        found = module.upload(ClientInfo(client, 1, None)).extra[f"net.{UP}"]
        sent.append(found.unique().tolist() == pytest.approx([s]))
    assert all(sent)


@pytest.mark.parametrize(
    "layer",
    [nn.Linear(4, 3), nn.Linear(4, 4), nn.Conv2d(2, 3, 3)],
    ids=lambda one: type(one).__name__,
)
def test_a_fold_is_what_the_adapter_computes(layer):
    """In float64, and also where a side has the length of the rank."""
    low = low_rank_kind(layer)(layer.double(), 4, alpha=2.0, dropout=0.0)
    with torch.no_grad():
        low.up.copy_(torch.randn_like(low.up))
    stack = {"a": low.down.detach(), "b": low.up.detach() * low.scale}
    weight = with_products({"w": low.weight.detach()}, stack, {"w": ("a", "b")})["w"]
    x = torch.randn(2, 4) if isinstance(layer, nn.Linear) else torch.randn(2, 2, 5, 5)
    expected = low(x.double())
    with torch.no_grad():
        low.weight.copy_(weight)
        low.up.zero_()
    assert torch.allclose(low(x.double()), expected, rtol=0, atol=1e-12)


def test_what_an_adapted_layer_was_tied_to_stays_as_it_is():
    """A stack is added to the layer, and not to the embedding or to another layer."""
    with scoped(1):
        net = SplitNet(nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5), nn.ReLU()), nn.Linear(5, 3))
        net.backbone[1].weight = net.backbone[0].weight
        given = net.backbone[0].weight.detach().clone()
        net = LoRA(net, rank=2, targets=["backbone.1"])
    run = fit(FLoRA(net, optimizer=SGD), blobs(), 2)
    assert torch.equal(run.module.net.backbone[0].weight, given)
    assert not torch.equal(run.server.shared["net.backbone.1.weight"], given)


def test_layers_of_other_adapters_are_refused():
    net = adapted(mlp())
    net.backbone[0].lora_A = torch.nn.Linear(1, 1)
    with pytest.raises(TypeError, match=parts("FLoRA ~ lora_A ~ LoRA")):
        FLoRA(net)
