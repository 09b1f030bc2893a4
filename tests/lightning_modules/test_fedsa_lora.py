"""FedSA-LoRA: the invariants in docs/methods."""

import pytest
import torch

from lightning_modules.fedsa_lora import FedSALoRA
from lightning_modules.local import Local
from pfl.core.state import nbytes
from pfl.federation.sampling import UniformSampler
from tests.helpers import adapters, by_hand, facts
from tests.helpers.adapters import DOWN, UP, adapted, make
from tests.helpers.federation import HEAVY, SGD, Federation, fit
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp

__all__ = ["make"]

FACTS = {
    FedSALoRA: facts.Facts(
        travels=("net.backbone.0.down",),
        stays=("net.backbone.0.up", "net.head."),
        floats=adapters.A,
        variants=[{"head": "shared"}],
        stacks=[{"head": "shared"}],
        needs_parts=True,
    ),
}


def test_the_first_step_moves_no_a():
    """Invariant 2: B = 0, so that A has no gradient."""
    fed = Federation(FedSALoRA(adapted(mlp()), optimizer=SGD), blobs((4,), batch_size=4), rounds=2)
    before = fed.state.shared["net.backbone.0.down"].clone()
    fed.round(0)
    assert torch.equal(fed.state.shared["net.backbone.0.down"], before)
    fed.round(0)
    assert not torch.equal(fed.state.shared["net.backbone.0.down"], before)


def test_the_order_of_ranks_changes_no_output():
    """Invariant 3."""
    plain, permuted = (FedSALoRA(adapted(mlp()).double(), optimizer=HEAVY) for _ in range(2))
    with torch.no_grad():
        permuted.net.backbone[0].down.copy_(plain.net.backbone[0].down.flip(0))
    runs = [fit(one, blobs(), 3, precision="64-true") for one in (plain, permuted)]
    down, up = "net.backbone.0.down", "net.backbone.0.up"
    products = [run.kept[1][up] @ run.server.shared[down] for run in runs]
    assert torch.allclose(*products, rtol=0, atol=1e-12)
    heads = [run.kept[1]["net.head.weight"] for run in runs]
    assert torch.allclose(*heads, rtol=0, atol=1e-12)


def test_one_client_trains_alone():
    """Invariant 4: with one client, the mean of A is its own."""
    run, other = (
        fit(method(adapted(mlp()), optimizer=HEAVY), blobs((7,)), 3)
        for method in (FedSALoRA, Local)
    )
    entries = {**run.kept[0], **run.server.shared}
    assert all(torch.equal(entries[name], value) for name, value in other.kept[0].items())


def test_messages_have_the_rows_of_a_alone():
    run = fit(FedSALoRA(adapted(mlp()), optimizer=SGD), blobs(), sampler=UniformSampler(1.0))
    row = run.history[-1]
    assert row["comm/bytes_up"] == row["comm/bytes_down"] == 3 * 4 * 2 * 5
    assert nbytes(run.server.shared) == 4 * 2 * 5


def test_a_network_without_adapters_is_refused():
    with pytest.raises(TypeError, match=parts("FedSALoRA ~ ToyNet ~ LoRA")):
        FedSALoRA(mlp())


def test_a_newcomer_is_the_base_network_until_it_trains():
    """Its B is zero, so that A does not matter."""
    fed = Federation(FedSALoRA(adapted(mlp()), optimizer=SGD), blobs(), rounds=2)
    fed.round(0, 1)
    fed.test(2)
    x = torch.randn(4, 5)
    assert torch.equal(fed.module(x), mlp()(x))


@pytest.mark.parametrize("head", ["kept", "shared"])
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, head):
    fed = by_hand.federation(lambda net, **o: make(net, FedSALoRA, head=head, **o))
    own = {c: adapters.start() for c in range(4)}
    common = [DOWN] if head == "kept" else [n for n in own[0] if n != UP]
    for clients in cohorts:
        sent = []
        for c in clients:
            own[c] = by_hand.descended(own[c], adapters.loss, by_hand.batches(fed, c))
            sent.append({n: own[c][n] for n in common})
        mean = by_hand.averaged(sent, [by_hand.SIZES[c] for c in clients])
        fed.round(*clients)
        for c in range(4):
            own[c] = {**own[c], **mean}
            adapters.compare_tested(fed, c, own[c])


def test_a_step_and_a_mean_by_hand():
    """Invariant 1: y = 3, dB = 12, dA = (2, 2); A = (0.8, 1.8), then (1.4, 1.2) as the mean.

    W = 0, A = (1, 2), B = 0.5, s = 2 and x = (1, 1).
    """
    layer = adapters.line(0.0, [1.0, 2.0], 0.5)
    y = layer(torch.ones(1, 2))
    assert y.item() == 3
    ((y - 1).square() / 2).sum().backward()
    assert layer.up.grad.tolist() == [[12.0]]
    assert layer.down.grad.tolist() == [[2.0, 2.0]]
    a = layer.down.detach() - 0.1 * layer.down.grad
    b = layer.up.detach() - 0.1 * layer.up.grad
    mean = (a + 3 * torch.tensor([[1.6, 1.0]])) / 4
    assert mean.flatten().tolist() == pytest.approx([1.4, 1.2])
    assert (2 * b @ mean).flatten().tolist() == pytest.approx([-1.96, -1.68])
