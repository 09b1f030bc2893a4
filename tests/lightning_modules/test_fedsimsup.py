"""FedSimSup, the client: two networks, two phases, what travels, and which model is tested."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn

from datamodules import IID, TensorData
from lightning_modules.fedavg import FedAvg
from lightning_modules.fedsimsup import FedSimSup
from pfl.core.types import Batch, Broadcast, ClientInfo, Job
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop
from pfl.testing.toy import ToySplit
from pfl.training import client_round
from tests.helpers import facts
from tests.helpers.draws import normal
from tests.helpers.federation import context
from tests.helpers.toy import ToyData, blobs, mlp

FACTS = {
    FedSimSup: facts.Facts(
        travels=("net.",),
        stays=("supervisor.", "participated"),
        floats=facts.NET,
        fewer={"sup_epochs": 2, "epochs": 1},
        variants=[{"eval_inter": "last_local", "local_unit": "steps"}],
        stacks=[{"local_unit": "steps"}],
        serves={
            "mix_C": ("mix_C", 2.0),
            "mix_gamma": ("mix_gamma", 0.5),
            "absent_rule": ("absent_rule", "size_average"),
            "zero_similarity": ("zero_similarity", "uniform"),
        },
        needs_classes=True,
    ),
}

NET, SUPERVISOR = "net", "supervisor"


def make(net, **options):
    return FedSimSup(net, mlp(hidden=2, seed=7), **options)


def info(client=0, round=1):
    return ClientInfo(client, 9, torch.tensor([3, 3, 3]), round, 10)


def sent(module):
    return Broadcast({n: module.state_dict()[n].clone() for n in module.shared_names()})


def train(module, data=None, kept=None, server=None, client=0, **options):
    job = Job(info(client), kept or {}, server or sent(module), 3, ())
    return client_round.train(context(module, data or blobs()), job)


def fit(module, data=None, rounds=3, fraction=1.0, **loop):
    sampler = loop.pop("sampler", UniformSampler(fraction))
    return FederatedLoop(rounds=rounds, sampler=sampler, progress=False, **loop).fit(
        module, data or blobs()
    )


# The client.


@pytest.mark.parametrize(
    ("options", "moving"),
    [({"sup_epochs": 2, "epochs": 0}, "supervisor."), ({"sup_epochs": 0, "epochs": 2}, "net.")],
)
def test_each_phase_changes_its_own_network_only(options, moving):
    module = make(mlp(), **options)
    server = sent(module)
    module.receive(server, info())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    train(module, server=server)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]) != name.startswith(moving), name


def test_the_supervisor_goes_first_and_the_model_follows_it():
    """One full step each on one sample x = 1 of class 0, both networks one weight vector at zero.

    Supervisor: softmax (1/2, 1/2), gradient (-1/2, 1/2), at a rate of 1 it becomes (1/2, -1/2). The
    model then sees logits (1/2, -1/2), softmax 1 / (1 + e^-1) = 0.731059, and becomes (0.268941,
    -0.268941) at a rate of 1. The other way round the two would be exchanged."""
    inter, supervisor = (nn.Linear(1, 2, bias=False) for _ in range(2))
    for net in (inter, supervisor):
        nn.init.zeros_(net.weight)
    options = {"lr_sup": 1.0, "lr_inter": 1.0, "sup_epochs": 1, "epochs": 1}
    module = FedSimSup(inter, supervisor, supervisor_init="common", **options)
    data = blobs(sizes=(1,))
    data.splits["train"][0] = (torch.ones(1, 1), torch.zeros(1, dtype=torch.long))
    result = train(module, data)
    assert result.kept["supervisor.weight"].flatten().tolist() == pytest.approx([0.5, -0.5])
    found = result.upload.shared["net.weight"].flatten().tolist()
    assert found == pytest.approx([0.268941, -0.268941], abs=1e-6)
    assert result.train["supervisor/ce"] == pytest.approx(0.693147, abs=1e-6)
    assert result.train["inter/ce"] == pytest.approx(0.313262, abs=1e-6)


def test_without_supervisor_it_is_local_sgd_of_the_model():
    """Zeroed and never trained: bitwise FedAvg's client, given the same order of the batches."""
    module = make(mlp(), sup_epochs=0, epochs=1, lr_inter=0.1, supervisor_init="common")
    for parameter in module.supervisor.parameters():
        nn.init.zeros_(parameter)
    plain = FedAvg(mlp(), optimizer=partial(torch.optim.SGD, lr=0.1))
    data = blobs(sizes=(4,))
    found = train(module, data).upload.shared
    expected = train(plain, data, server=Broadcast({})).upload.shared
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_a_constant_moved_from_one_network_to_the_other_changes_nothing():
    module = make(mlp()).double()
    batch = Batch(normal(6, 5), torch.arange(6) % 3)
    logits, loss = module(batch.x), module.losses(batch)["ce"]
    shift = torch.tensor([1.0, -2.0, 0.5])
    with torch.no_grad():
        module.net.head.bias.add_(shift)
        module.supervisor.head.bias.sub_(shift)
    torch.testing.assert_close(module(batch.x), logits)
    torch.testing.assert_close(module.losses(batch)["ce"], loss)


@pytest.mark.parametrize("augmented", [False, True])
def test_a_part_at_rest_is_in_eval_mode_and_asked_once_a_phase(monkeypatch, augmented):
    """Its dropout and batch norm are switched off; augmented samples are new in every step."""
    monkeypatch.setattr(ToySplit, "augmented", augmented)
    module, calls = make(mlp()), []
    for name in (NET, SUPERVISOR):
        network = getattr(module, name)

        def spy(x, name=name, network=network, forward=network.forward):
            calls.append((name, network.backbone.training))
            return forward(x)

        network.forward = spy
    # A first look shows what draws.
    train(module, blobs(sizes=(4,)))
    expected = [(NET, True), (SUPERVISOR, True)]
    for still, moving in [(NET, SUPERVISOR), (SUPERVISOR, NET)]:
        asked, step = (still, False), (moving, True)
        expected += 5 * [asked, step] if augmented else [asked, *5 * [step]]
    assert calls == expected


def test_logits_of_the_part_at_rest_are_those_of_every_step(monkeypatch):
    once = train(make(mlp()), blobs(sizes=(9,)))
    monkeypatch.setattr(ToySplit, "augmented", True)
    anew = train(make(mlp()), blobs(sizes=(9,)))
    torch.testing.assert_close(once.upload.shared, anew.upload.shared)
    torch.testing.assert_close(once.kept, anew.kept)


@pytest.mark.parametrize("verb", ["losses", "forward"])
def test_a_method_of_ones_own_that_changes_a_step_takes_it(verb):
    seen = []

    def own(self, given):
        seen.append(given)
        return getattr(FedSimSup, verb)(self, given)

    module = type("Own", (FedSimSup,), {verb: own})(mlp(), mlp(hidden=2, seed=7))
    train(module, blobs(sizes=(4,)))
    # A first look at what draws calls forward once.
    assert len(seen) == 10 + (verb == "forward")


def test_networks_with_named_inputs_learn_the_same():
    class Named(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x["half"] + x["other"])

    x, y = normal(12, 5).float(), torch.arange(12).numpy() % 3
    whole, half = x.numpy(), (x / 2).numpy()
    common = {"supervisor_init": "common"}
    named = FedSimSup(Named(mlp()), Named(mlp(hidden=2, seed=7)), **common)
    several = TensorData({"x.half": half, "x.other": half, "y": y}, 1, IID(), batch_size=4)
    one = TensorData({"x": whole, "y": y}, 1, IID(), batch_size=4)
    found, expected = fit(named, several, 1), fit(make(mlp(), **common), one, 1)
    for name, value in expected.server.shared.items():
        torch.testing.assert_close(found.server.shared[name.replace("net.", "net.net.", 1)], value)


def test_local_unit_counts_epochs_or_steps():
    """9 samples in batches of 4 are 3 steps an epoch."""
    assert train(make(mlp(), sup_epochs=2, epochs=4)).steps == 3 * (2 + 4)
    assert train(make(mlp(), sup_epochs=2, epochs=4, local_unit="steps")).steps == 2 + 4


def test_two_learning_rates_with_the_rest_of_the_optimiser():
    momentum = partial(torch.optim.SGD, lr=1.0, momentum=0.5)
    first, second = make(mlp(), optimizer=momentum, lr_sup=0.2, lr_inter=0.03).plan()
    groups = [phase.optimizer([torch.zeros(1)]).param_groups[0] for phase in (first, second)]
    assert [(group["lr"], group["momentum"]) for group in groups] == [(0.2, 0.5), (0.03, 0.5)]


# The supervisor's first values.


def test_each_client_draws_a_supervisor_of_its_own_once():
    """Two clients differ; the same client draws the same again; training continues from it."""
    drawn = {}
    state = torch.get_rng_state()
    for client in (0, 1, 0):
        module = make(mlp(), sup_epochs=0)
        module.receive(sent(module), info(client))
        value = module.supervisor.head.weight.clone()
        assert torch.equal(drawn.setdefault(client, value), value)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], make(mlp()).supervisor.head.weight)
    kept = train(make(mlp(), sup_epochs=0)).kept
    assert torch.equal(kept["supervisor.head.weight"], drawn[0])
    moved = kept | {"supervisor.head.weight": drawn[0] + 1}
    later = train(make(mlp(), sup_epochs=0), kept=moved)
    assert torch.equal(later.kept["supervisor.head.weight"], drawn[0] + 1)


def test_the_draw_does_not_depend_on_the_precision():
    """A run in 64 bits starts with the supervisors of one in 32 bits, digit for digit."""
    drawn = []
    for module in (make(mlp()), make(mlp()).double()):
        module.receive(sent(module), info(1))
        drawn.append(module.supervisor.head.weight.clone())
    assert drawn[1].dtype == torch.float64
    assert torch.equal(drawn[0].double(), drawn[1])


def test_a_common_supervisor_is_the_given_one():
    module = make(mlp(), supervisor_init="common")
    given = module.supervisor.head.weight.clone()
    module.receive(sent(module), info(1))
    assert torch.equal(module.supervisor.head.weight, given)


@pytest.mark.parametrize("init", ["own", "common"])
def test_a_client_that_never_took_part_can_predict_with_its_model_alone(init):
    module = make(mlp(), sup_zero_init=True, supervisor_init=init)
    module.personalise(sent(module), info(2))
    x = torch.rand(4, 5)
    assert torch.equal(module(x), module.net(x))
    noisy = make(mlp())
    noisy.personalise(sent(noisy), info(2))
    assert not torch.equal(noisy(x), noisy.net(x))


# The model that is tested.


def test_tested_with_the_servers_copy_or_with_the_last_local_one():
    for choice, expected in (("server_copy", 5.0), ("last_local", 2.0)):
        module = make(mlp(), eval_inter=choice)
        result = train(module)
        kept = result.kept | {n: torch.full_like(v, 2) for n, v in sent(module).shared.items()}
        state = {**module.state_dict(), **{n: kept[n] for n in kept if n in module.kept_names()}}
        module.load_state_dict(state)
        server = Broadcast({n: torch.full_like(v, 5) for n, v in sent(module).shared.items()})
        module.personalise(server, info())
        assert module.net.head.bias.unique().item() == expected
        fresh = make(mlp(), eval_inter=choice)
        fresh.personalise(server, info())
        assert fresh.net.head.bias.unique().item() == 5.0


@pytest.mark.parametrize("epochs", [0, 1])
def test_the_sum_of_both_networks_is_tested(epochs):
    """Logits (x, 0) and (x, 3x) of x = 1 and class 1: (2, 3), so the loss is log(1 + 1/e), against
    log(1 + e) of the inter-learning model alone."""
    inter, supervisor = (nn.Linear(1, 2, bias=False) for _ in range(2))
    with torch.no_grad():
        inter.weight.copy_(torch.tensor([[1.0], [0.0]]))
        supervisor.weight.copy_(torch.tensor([[1.0], [3.0]]))
    options = {"lr_sup": 0.0, "lr_inter": 0.0, "sup_epochs": 0, "epochs": epochs}
    module = FedSimSup(inter, supervisor, supervisor_init="common", **options)
    x, y = torch.ones(1, 1), torch.ones(1, dtype=torch.long)
    working = context(module, ToyData([(x, y)], outputs=2))
    job = Job(info(), {}, sent(module), 3, ("test",))
    expected = {"acc": 1.0, "loss": pytest.approx(math.log(1 + 1 / math.e))}
    for scores in (client_round.train(working, job).scores, client_round.test(working, job)):
        assert {name: scores["test"][name] for name in expected} == expected
