"""FedROD: the invariants in docs/methods."""

import math
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lightning_modules.fedavg import FedAvg
from lightning_modules.fedrod import FedROD
from lightning_modules.nets import LoRA, SplitNet
from pfl.core.seeds import scoped
from pfl.core.task import Classification
from pfl.core.types import Batch, Broadcast, ClientInfo
from pfl.federation.sampling import UniformSampler
from pfl.training import client_round
from tests.helpers.federation import HEAVY, SGD, close, context, equal, fit, follow, job
from tests.helpers.messages import parts
from tests.helpers.toy import ToyData, blobs, mlp, normed


def received(module, *counts):
    """Start the round of a client with such class counts, from the module's own network."""
    state = module.state_dict()
    sent = Broadcast({name: state[name].clone() for name in module.shared_names()})
    with torch.no_grad():
        module.receive(sent, ClientInfo(0, sum(counts), torch.tensor(counts)))
    return module


def blank(classes=3):
    """Return a network whose logits are its head's bias, zeros."""
    net = mlp(num_classes=classes)
    nn.init.zeros_(net.head.weight)
    nn.init.zeros_(net.head.bias)
    return net


def sample(y):
    return Batch(torch.ones(1, 5), torch.tensor([y]))


def heads(state, stem):
    return {n.removeprefix(stem): v for n, v in state.items() if n.startswith(stem)}


@pytest.mark.parametrize(
    ("gamma", "y", "expected"),
    [
        (1.0, 0, math.log(4 / 3)),  # 3 of 4
        (1.0, 1, math.log(4)),
        (2.0, 0, math.log(10 / 9)),  # 9 of 10
        (0.0, 0, math.log(3)),
        (0.0, 2, math.log(3)),  # 0 to the power of 0 is 1
    ],
)
def test_the_generic_loss_by_hand(gamma, y, expected):
    """Invariant 6: g = 0 and N = (3, 1, 0)."""
    module = received(FedROD(blank(), gamma=gamma), 3, 1, 0)
    assert module.losses(sample(y))["generic"].item() == pytest.approx(expected, abs=1e-6)


def test_the_gradient_of_the_generic_loss_by_hand():
    """Invariant 6. Shares (3/4, 1/4, 0) less the label's (0, 1, 0)."""
    module = received(FedROD(blank()), 3, 1, 0)
    (slope,) = torch.autograd.grad(module.losses(sample(1))["generic"], module.net.head.bias)
    assert slope.tolist() == pytest.approx([0.75, -0.75, 0.0])


def test_the_personal_loss_by_hand():
    """Invariant 6.

    g = (1, 0), u = 0, y = 1: log(1 + e); its gradient is the personal head's alone.
    """
    net = blank(classes=2)
    net.head.bias.data[0] = 1.0
    module = received(FedROD(net), 3, 1)
    loss = module.losses(sample(1))["personal"]
    assert loss.item() == pytest.approx(math.log(1 + math.e))
    inputs = [module.personal.bias, *module.net.parameters()]
    slope, *others = torch.autograd.grad(loss, inputs, allow_unused=True)
    assert slope.tolist() == pytest.approx([0.73106, -0.73106], abs=1e-5)
    assert others == [None] * 4


@pytest.mark.parametrize("net", [mlp, normed])
def test_the_personal_head_does_not_touch_the_global_model(net):
    """Invariant 1. Bitwise, with momentum and weight decay."""
    sampler = UniformSampler(0.7)
    zero, copied = (
        fit(FedROD(net(), optimizer=HEAVY, head_init=init), blobs(), sampler=sampler)
        for init in ("zero", "copy")
    )
    assert equal(zero.server.shared, copied.server.shared)
    assert zero.history[-1]["test/global/loss"] == copied.history[-1]["test/global/loss"]
    assert zero.history[-1]["test/personal/loss"] != copied.history[-1]["test/personal/loss"]


def test_equal_counts_of_all_classes_change_nothing():
    """Invariant 2. Two samples of each class on one client, three on the other."""

    def data():
        pairs = blobs(sizes=(6, 9)).splits["train"]
        return ToyData([(x, torch.arange(len(x)) % 3) for x, _ in pairs])

    rod = fit(FedROD(mlp(), optimizer=SGD), data())
    assert close(rod.server.shared, fit(FedAvg(mlp(), optimizer=SGD), data()).server.shared)


def test_a_personal_head_of_zero_predicts_what_the_generic_one_does():
    """Invariant 3. Such is a client's before its first round; no counts are added in a test."""
    sampler = UniformSampler(0.4)
    _, (first,) = follow(FedROD(mlp(), optimizer=SGD), blobs(), 1, sampler=sampler)
    for row in first.clients:
        same = row["test/personal/loss"] == row["test/global/loss"]
        assert same is (row["client"] not in first.trained)


def test_the_generic_row_of_an_absent_class_rests():
    """Invariant 4. Bitwise; FedAvg pushes it down, and so does the personal head with its own."""
    data = blobs(sizes=(9,))
    x, _ = data.splits["train"][0]
    data.splits["train"][0] = (x, torch.arange(len(x)) % 2)
    up = {}
    for method in (FedROD, FedAvg):
        result = client_round.train(
            context(method(mlp(), optimizer=SGD), data), _sent(method, data)
        )
        up[method] = result
    start = mlp().head
    rod, fedavg = (heads(up[m].upload.shared, "net.head.") for m in (FedROD, FedAvg))
    assert torch.equal(rod["weight"][2], start.weight[2])
    assert torch.equal(rod["bias"][2], start.bias[2])
    assert not torch.equal(rod["bias"][:2], start.bias[:2])
    assert fedavg["bias"][2] < start.bias[2]
    assert up[FedROD].kept["personal.bias"][2] < 0


def _sent(method, data):
    """Return a job that starts from the initial network."""
    module = method(mlp())
    state = module.state_dict()
    return job(data, broadcast=Broadcast({n: state[n] for n in module.shared_names()}))


def test_only_shares_matter():
    """Invariant 5."""
    slopes = []
    for counts in ((3, 1, 2), (21, 7, 14)):
        module = received(FedROD(mlp()), *counts)
        loss = module.losses(Batch(*blobs().splits["train"][0]))["generic"]
        slopes.append(torch.autograd.grad(loss, list(module.net.parameters())))
    torch.testing.assert_close(*slopes)


def test_a_client_of_one_class_sends_back_what_it_received():
    """Invariant 7. Its generic loss is zero; only its personal head learns."""
    data = blobs(sizes=(9,))
    x, _ = data.splits["train"][0]
    data.splits["train"][0] = (x, torch.ones(len(x), dtype=torch.long))
    sent = _sent(FedROD, data)
    result = client_round.train(context(FedROD(mlp(), optimizer=SGD, epochs=3), data), sent)
    assert equal(result.upload.shared, sent.broadcast.shared)
    assert result.train["local/generic"] == 0
    assert result.kept["personal.bias"].argmax() == 1


def test_two_optimisers_give_the_same_numbers():
    """Invariant 9. Full batches, each head and the body as they are before the step."""
    data, net = blobs(sizes=(9,), batch_size=99), mlp()
    result = client_round.train(
        context(FedROD(mlp(), optimizer=SGD, epochs=4, head_init="copy"), data), _sent(FedROD, data)
    )
    personal, split = nn.Linear(6, 3), data.split(0, "train")
    personal.load_state_dict(net.head.state_dict())
    prior = torch.bincount(split.targets, minlength=3).log()
    optimizers = [SGD(net.parameters()), SGD(personal.parameters())]
    for _ in range(4):
        z = net.backbone(split.x)
        g = net.head(z)
        losses = [
            cross_entropy(g + prior, split.targets),
            cross_entropy(g.detach() + personal(z.detach()), split.targets),
        ]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    assert close(heads(result.upload.shared, "net."), dict(net.state_dict()))
    assert close(heads(result.kept, "personal."), dict(personal.state_dict()))


def test_a_head_of_two_layers_starts_at_zero_and_learns():
    """Only its last layer is zero, or nothing would ever reach the first."""

    def net():
        with scoped(1):
            layers = OrderedDict(fc=nn.Linear(6, 4), relu=nn.ReLU(), out=nn.Linear(4, 3))
            return SplitNet(mlp().backbone, nn.Sequential(layers))

    module = FedROD(net(), optimizer=SGD, epochs=3)
    assert equal(heads(module.state_dict(), "personal.fc."), dict(net().head.fc.state_dict()))
    run, (first, *_) = follow(module, blobs(), 2)
    for kept in run.kept.values():
        assert not torch.equal(kept["personal.fc.weight"], net().head.fc.weight)
    # The generic head alone is the global model.
    own, data = net(), blobs()
    own.load_state_dict(heads(first.server.shared, "net."))
    for client in range(3):
        split = data.split(client, "test")
        loss = cross_entropy(own(split.x), split.targets).item()
        assert first.clients[client]["test/global/loss"] == pytest.approx(loss)


def test_smoothed_labels_are_refused():
    with pytest.raises(ValueError, match=parts("FedROD ~ label_smoothing")):
        FedROD(mlp(), task=Classification(label_smoothing=0.1))


@pytest.mark.parametrize("init", ["zero", "copy"])
def test_a_head_that_cannot_be_zero_is_refused(init):
    """Under LoRA its weights are frozen, and only their change is trained."""
    net = LoRA(SplitNet(nn.Flatten(), nn.Linear(5, 3)), rank=1, trained=[])
    with pytest.raises(ValueError, match=parts("last linear layer ~ zero ~ weight, bias")):
        FedROD(net, head_init=init)
