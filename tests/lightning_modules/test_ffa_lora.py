"""FFA-LoRA: the invariants in docs/methods."""

from functools import partial

import pytest
import torch

from lightning_modules.ffa_lora import FFALoRA
from lightning_modules.nets import PerClient
from pfl.federation.sampling import UniformSampler
from tests.helpers import adapters, by_hand, facts
from tests.helpers.adapters import DOWN, UP, adapted, make
from tests.helpers.extras import needs
from tests.helpers.federation import HEAVY, SGD, Federation, fit
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp, normed

__all__ = ["make"]

FACTS = {
    FFALoRA: facts.Facts(
        travels=("net.backbone.0.up", "net.head."),
        floats=adapters.B + facts.HEAD,
        variants=[{"head": "kept"}, {"head": "frozen", "init": "orthogonal"}, {"ranks": [1, 2]}],
        stacks=[{"head": "kept"}],
        needs_parts=True,
    ),
}
WHOLE = partial(torch.optim.SGD, lr=0.1)


def test_a_step_by_hand():
    """Invariant 1: s = 2 and rate 0.1, or s = 1 and rate 0.4, both lead to y = 3.6."""
    for s, rate, slope, b in ((2, 0.1, -6, 0.6), (1, 0.4, -3, 1.2)):
        layer = adapters.line(0.0, [1.0, 2.0], 0.0, s)
        ((layer(torch.ones(1, 2)) - 1).square() / 2).sum().backward()
        assert layer.up.grad.item() == slope
        assert (layer.up - rate * layer.up.grad).item() == pytest.approx(b)
        assert s * b * 3 == pytest.approx(3.6)


def test_a_is_a_constant_in_no_message():
    """Invariant 3: with momentum and weight decay."""
    before = adapted(mlp()).backbone[0].down
    run = fit(FFALoRA(adapted(mlp()), optimizer=HEAVY), blobs(), sampler=UniformSampler(1.0))
    assert torch.equal(run.module.net.backbone[0].down, before)
    assert not run.kept[0]
    row = run.history[-1]
    assert row["comm/bytes_up"] == row["comm/bytes_down"] == 3 * 4 * (6 * 2 + facts.HEAD)


def test_the_mean_of_the_products_is_the_product_of_the_mean():
    """Invariant 2; with another A on each client it would not be."""
    rng = torch.Generator().manual_seed(0)
    ups = torch.randn(3, 4, 2, generator=rng, dtype=torch.float64)
    downs = torch.randn(3, 2, 5, generator=rng, dtype=torch.float64)
    p = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)[:, None, None]
    exact = (p * (ups @ downs[0])).sum(0)
    assert torch.allclose((p * ups).sum(0) @ downs[0], exact, rtol=0, atol=1e-12)
    apart = (p * (ups @ downs)).sum(0) - (p * ups).sum(0) @ (p * downs).sum(0)
    assert apart.abs().max() > 0.1


def test_one_full_step_of_all_clients_is_one_on_all_data():
    """Invariant 4: weights are by samples."""
    data = blobs(batch_size=99)
    run = fit(FFALoRA(adapted(mlp()).double(), optimizer=WHOLE), data, 1, precision="64-true")
    net = FFALoRA(adapted(mlp()).double(), optimizer=WHOLE)
    x, y = (torch.cat(parts) for parts in zip(*data.splits["train"], strict=True))
    optimizer = net.configure_optimizers()
    torch.nn.functional.cross_entropy(net(x.double()), y).backward()
    optimizer.step()
    for name, value in run.server.shared.items():
        assert torch.allclose(net.state_dict()[name], value, rtol=0, atol=1e-12)


def test_the_untrained_network_is_the_given_one():
    """Invariant 5: B = 0 adds nothing, to the bit."""
    x = torch.randn(4, 5)
    for init in ("kaiming", "orthogonal"):
        assert torch.equal(FFALoRA(adapted(normed()).eval(), init=init)(x), normed().eval()(x))


def test_orthonormal_rows():
    a = FFALoRA(adapted(mlp()), init="orthogonal").net.backbone[0].down
    assert torch.allclose(a @ a.T, torch.eye(2), atol=1e-6)


def test_another_a_on_each_client_is_refused():
    with pytest.raises(TypeError, match=parts("FFALoRA ~ the same A")):
        FFALoRA(PerClient([adapted(mlp()), adapted(mlp())]))


def test_a_newcomer_has_the_whole_model():
    fed = Federation(FFALoRA(adapted(mlp()), optimizer=SGD), blobs(), rounds=2)
    fed.round(0, 1)
    x = torch.randn(4, 5)
    found = []
    for client in range(3):
        fed.test(client)
        found.append(fed.module(x))
    assert all(torch.equal(found[0], one) for one in found)


@by_hand.up_to_rounding
def test_clients_of_different_ranks_by_hand():
    """Client i trains r_i columns on as many rows of A; the mean is of padded columns."""
    ranks = (1, 2)
    fed = by_hand.federation(lambda net, **o: make(net, FFALoRA, ranks=ranks, **o))
    common = adapters.start()
    whole = common.pop(DOWN)
    for clients in by_hand.COHORTS["half"]:
        sent = []
        for c in clients:
            rank = ranks[c % 2]
            start = {**common, UP: common[UP][:, :rank]}

            def loss(w, x, y, rank=rank):
                return adapters.loss({DOWN: whole[:rank], **w}, x, y)

            w = by_hand.descended(start, loss, by_hand.batches(fed, c))
            padded = torch.nn.functional.pad(w[UP], (0, 2 - rank))
            sent.append({**w, UP: padded})
        sizes = [by_hand.SIZES[c] for c in clients]
        common = by_hand.averaged(sent, sizes)
        products = [one[UP] @ whole for one in sent]
        mean = by_hand.averaged([{"p": one} for one in products], sizes)["p"]
        assert torch.allclose(common[UP] @ whole, mean, rtol=0, atol=1e-12)
        fed.round(*clients)
        for c in range(4):
            adapters.compare_tested(fed, c, {DOWN: whole, **common}, common)


@needs("privacy")
def test_noise_of_a_private_run_is_not_sent_beyond_a_clients_rank():
    pytest.importorskip("dp_accounting")
    from pfl.extras.privacy.privacy import Privacy

    module = FFALoRA(adapted(mlp()), ranks=[1, 1], optimizer=SGD)
    private = Privacy(1.0, 1.0, 1e-2, level="sample")
    run = fit(module, blobs(), 1, uplink=[private], sampler=UniformSampler())
    up = run.server.shared["net.backbone.0.up"]
    assert up[:, 0].all()
    assert not up[:, 1].any()


def test_ranks_beyond_the_network_are_refused():
    with pytest.raises(ValueError, match=parts("between 1 and 2 ~ [1, 3]")):
        FFALoRA(adapted(mlp()), ranks=[1, 3])


@pytest.mark.parametrize("head", ["shared", "kept", "frozen"])
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, head):
    fed = by_hand.federation(lambda net, **o: make(net, FFALoRA, head=head, **o))
    first = adapters.start()
    heads = [n for n in first if n.startswith("head.")]
    constant = {n: first[n] for n in (DOWN, *(heads if head == "frozen" else []))}
    own = {c: {n: v for n, v in first.items() if n not in constant} for c in range(4)}
    common = [UP] if head == "kept" else [*own[0]]

    def loss(w, x, y):
        return adapters.loss({**constant, **w}, x, y)

    for clients in cohorts:
        sent = []
        for c in clients:
            own[c] = by_hand.descended(own[c], loss, by_hand.batches(fed, c))
            sent.append({n: own[c][n] for n in common})
        mean = by_hand.averaged(sent, [by_hand.SIZES[c] for c in clients])
        fed.round(*clients)
        for c in range(4):
            own[c] = {**own[c], **mean}
            adapters.compare_tested(fed, c, {**constant, **own[c]}, own[c])
