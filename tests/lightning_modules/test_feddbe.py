"""FedDBE: the invariants in docs/methods."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

from lightning_modules.fedavg import FedAvg
from lightning_modules.feddbe import FedDBE
from lightning_modules.nets import SplitNet
from pfl.core.state import assign
from pfl.core.types import Batch
from tests.helpers import by_hand
from tests.helpers.federation import SGD, Federation, close, differing, equal
from tests.helpers.toy import blobs, mlp


def plain(beta=1.0):
    """Return the method on a network whose features are its inputs, two of them."""
    net = SplitNet(nn.Identity(), nn.Linear(2, 3))
    module = FedDBE(net, kappa=1.0, beta=beta)
    assign(module, {"consensus": torch.zeros(2)})
    return module


@pytest.mark.parametrize(
    ("beta", "running", "pull", "slope"),
    [(1.0, [1.0, 0.0], 0.25, 0.25), (0.1, [0.1, 0.0], 0.0025, 0.0025)],
)
def test_the_pull_by_hand(beta, running, pull, slope):
    """Invariants 2 and 6: two samples with the mean (1, 0), g = 0; a third one is padding."""
    module = plain(beta)
    x = torch.tensor([[3.0, 2.0], [-1.0, -2.0], [9.0, 9.0]], requires_grad=True)
    batch = Batch(x, torch.tensor([0, 1, 2]), torch.tensor([1.0, 1.0, 0.0]))
    terms, entries, _ = module._step(batch, True)
    torch.testing.assert_close(entries["running"], torch.tensor(running))
    assert terms["pull"].item() == pytest.approx(pull)
    wanted = [x, module.memory, module.net.head.weight]
    (of_x, *others) = torch.autograd.grad(terms["pull"], wanted, allow_unused=True)
    torch.testing.assert_close(of_x, torch.tensor([[slope, 0.0], [slope, 0.0], [0.0, 0.0]]))
    assert others == [None, None]


def test_the_running_mean_goes_on_from_batch_to_batch():
    """0.5 * (2, 4) + 0.5 * 0, and then half of that and half of (4, 0); a constant before."""
    module = plain(beta=0.5)
    for x, expected in (([2.0, 4.0], [1.0, 2.0]), ([4.0, 0.0], [2.5, 1.0])):
        _, entries, _ = module._step(Batch(torch.tensor([x]), torch.tensor([0])), True)
        assert entries["running"].tolist() == expected
        assign(module, entries)


def test_the_gradient_of_the_offset_is_that_of_the_heads_bias_through_its_weights():
    """Invariants 3 and 4."""
    module = plain()
    assign(module, {"memory": torch.tensor([0.5, -1.0])})
    x, y = torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([2, 1])
    head = module.net.head
    shifted = x @ head.weight.T + (head.bias + head.weight @ module.memory)
    torch.testing.assert_close(module(x), shifted)
    loss = module._step(Batch(x, y), True).terms["ce"]
    offset, bias = torch.autograd.grad(loss, [module.memory, head.bias])
    torch.testing.assert_close(offset, head.weight.T @ bias)


def test_the_first_round_finds_the_mean_and_nothing_else():
    """g is the mean by samples of what participants send, and the networks are thrown away."""
    fed = Federation(FedDBE(mlp(), optimizer=SGD), blobs())
    start = fed.state.shared
    results = fed.round(0, 2)
    assert equal(fed.state.shared, start)
    assert all(result.upload.shared == {} for result in results)
    assert all(not fed.kept[client]["memory"].any() for client in (0, 2))
    one, other = (result.upload.extra["running"] for result in results)
    found = fed.state.consensus["consensus"]
    torch.testing.assert_close(found, (9 * one + 4 * other) / 13)
    results = fed.round()
    assert torch.equal(fed.state.consensus["consensus"], found)
    assert results[0].upload.extra == {}
    assert {n.split(".")[0] for n in results[0].upload.shared} == {"net"}


def test_without_pull_and_offset_it_is_fedavg():
    """Invariant 1, from the second round on."""

    class Still(FedDBE):
        def plan(self):
            mean, local = super().plan()
            return [mean, type(local)(**{**vars(local), "trains": ("net.*",)})]

    fed = Federation(Still(mlp(), optimizer=SGD, kappa=0.0), blobs())
    other = Federation(FedAvg(mlp(), optimizer=SGD), blobs())
    fed.round()
    other.number = 1
    for _ in range(2):
        fed.round()
        other.round()
    assert close(fed.state.shared, other.state.shared)


def test_an_absent_clients_offset_stays():
    """Invariant 5."""
    fed = Federation(FedDBE(mlp(), optimizer=SGD), blobs())
    fed.round()
    fed.round()
    before = {client: dict(kept) for client, kept in fed.kept.items()}
    fed.round(0)
    assert differing(before[0], fed.kept[0]) == {"memory"}
    assert equal(before[1], fed.kept[1])


def test_the_global_model_has_no_offset():
    fed = Federation(FedDBE(mlp(), optimizer=SGD), blobs())
    fed.round()
    fed.round()
    fed.context.load(fed.kept[0])
    fed.module.load_global(fed.server.broadcast(fed.state, 0, 3))
    assert not fed.module.memory.any()
    assert fed.kept[0]["memory"].any()


@pytest.mark.parametrize("beta", [1.0, 0.3])
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
def test_a_federation_by_hand(cohorts, beta):
    fed = by_hand.federation(FedDBE, kappa=20.0, beta=beta)
    w, g = by_hand.initial(), None
    memory = dict.fromkeys(range(4), torch.zeros(6).double())

    def loss(state, x, y):
        nonlocal r
        z = by_hand.features(state, x, True)
        r = (1 - beta) * r.detach() + beta * z.mean(0)
        logits = linear(z + state.get("m", 0), state["head.weight"], state["head.bias"])
        pull = 0 if g is None else 20 * (r - g).square().sum() / 6 / 2
        return cross_entropy(logits, y) + pull

    for clients in cohorts:
        trained, means, sizes = [], [], [by_hand.SIZES[c] for c in clients]
        for c in clients:
            r = torch.zeros(6).double()
            steps = by_hand.batches(fed, c, phase="mean" if g is None else "local")
            start = w if g is None else w | {"m": memory[c]}
            trained.append(by_hand.descended(start, loss, steps))
            means.append({"r": r.detach()})
            memory[c] = trained[-1].pop("m", memory[c])
        if g is None:
            g = by_hand.averaged(means, sizes)["r"]
        else:
            w = by_hand.averaged(trained, sizes)
        fed.round(*clients)
        assert by_hand.distance(by_hand.of(fed.state.shared, "net."), w) < 1e-12
        assert by_hand.distance(fed.state.consensus, {"consensus": g}) < 1e-12
        for c, m in memory.items():
            x, _ = by_hand.samples(fed, c, "test")
            logits = linear(by_hand.features(w, x) + m, w["head.weight"], w["head.bias"])
            found = by_hand.predicted(fed, c)
            assert (
                by_hand.distance({"": found, "m": fed.module.memory}, {"": logits, "m": m}) < 1e-12
            )
