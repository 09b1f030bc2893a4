"""What forward assigns anew is the client's own, and no client starts with another's."""

import operator
from dataclasses import replace

import pytest
import torch
from torch import nn

from lightning_modules import FedAvg, FedPer
from lightning_modules.nets import PerClient, SplitNet
from pfl.core.state import clone
from pfl.core.types import Broadcast
from pfl.engines.sequential import SequentialEngine
from pfl.engines.threads import ThreadsEngine
from pfl.engines.vectorised import VectorisedEngine
from pfl.training import client_round
from pfl.training.declaration import MethodError
from pfl.training.structure import Structure
from tests.engines.agreement import fit, same
from tests.helpers.federation import SGD, context, job
from tests.helpers.toy import blobs


class Averages(nn.Module):
    """Adds a moving average of its inputs, which ``change`` stores in the buffer ``ema``."""

    def __init__(self, change, modes=(True,)):
        super().__init__()
        self.register_buffer("ema", torch.zeros(5))
        self.change, self.modes = change, modes

    def forward(self, x):
        if self.training in self.modes:
            self.change(self, 0.5 * self.ema + 0.5 * x.detach().mean(0))
        return x + self.ema


def written(net, value):
    net.ema.copy_(value)


def bound(net, value):
    net.ema = value


def pointed(net, value):
    net.ema.data = value


def network(change, modes=(True,)):
    torch.manual_seed(0)
    body = nn.Sequential(Averages(change, modes), nn.Linear(5, 4))
    return SplitNet(body, nn.Linear(4, 3))


class Keeps(FedPer):
    """The backbone stays with the client."""

    @property
    def shared(self):
        return ("net.head.*",)

    @property
    def kept(self):
        return ("net.backbone.*",)


@pytest.mark.parametrize("change", [bound, pointed])
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("modes", [(True,), (True, False)])
@pytest.mark.parametrize("engine", [SequentialEngine, lambda: ThreadsEngine(2), VectorisedEngine])
def test_an_entry_that_is_assigned_has_the_numbers_of_one_written_in_place(
    keeps, change, modes, engine
):
    method = Keeps if keeps else FedAvg
    in_place = fit(method(network(written, modes), optimizer=SGD), SequentialEngine(), rounds=2)
    assert same(fit(method(network(change, modes), optimizer=SGD), engine(), rounds=2), in_place)


def test_networks_of_clients_assign_their_own_entries():
    one, other = (
        fit(
            Keeps(PerClient([network(change), network(change)]), optimizer=SGD),
            SequentialEngine(),
            2,
        )
        for change in (written, bound)
    )
    assert same(one, other)


def test_a_stack_is_refused_by_the_name_of_the_entry():
    run = fit(Keeps(network(bound), optimizer=SGD), VectorisedEngine(), rounds=1)
    assert "'net.backbone.0.ema' is assigned anew" in run.header["engine"]


def widened(net, value):
    net.ema = value.double()


def grown(net, value):
    net.ema = torch.cat([value, value])[: len(net.ema) + 1].clone()


@pytest.mark.parametrize("change", [widened, grown])
def test_another_form_is_refused_by_name_if_the_entry_stays_or_travels(change):
    class Late(Averages):
        def forward(self, x):
            self.change(self, x.detach().mean(0))
            return x

    net = SplitNet(nn.Sequential(Late(change), nn.Linear(5, 4)), nn.Linear(4, 3))
    data = blobs((4, 4))
    with pytest.raises(MethodError, match=r"makes the entry 'net.backbone.0.ema' float"):
        client_round.train(context(Keeps(net, optimizer=SGD), data), job(data))

    # An entry that neither travels nor stays is reset, whatever form it took.
    class Forgets(Keeps):
        kept = ("net.backbone.1.*",)

    played = context(Forgets(net, optimizer=SGD), data)
    first, second = (client_round.train(played, job(data)) for _ in range(2))
    assert first.train == second.train


def test_a_parameter_that_is_replaced_while_it_is_trained_is_refused_by_name():
    class Replaces(nn.Linear):
        def forward(self, x):
            self.weight = nn.Parameter(self.weight.detach().clone())
            return super().forward(x)

    data = blobs((4, 4))
    ctx = context(FedAvg(Replaces(5, 3), optimizer=SGD), data)
    with pytest.raises(MethodError, match=r"replaces the parameter 'net.weight' while it is"):
        client_round.train(ctx, job(data))


def test_a_parameter_that_is_replaced_before_the_phase_is_the_one_that_is_trained():
    class Replaces(FedAvg):
        def receive(self, broadcast, info):
            super().receive(broadcast, info)
            self.net.weight = nn.Parameter(self.net.weight.detach().clone())

    data = blobs((4, 9))
    first = Replaces(nn.Linear(5, 3), optimizer=SGD)
    plain = FedAvg(nn.Linear(5, 3), optimizer=SGD)
    plain.load_state_dict(first.state_dict())
    runs = [fit(module, SequentialEngine(), 2, data) for module in (plain, first)]
    assert same(*runs)


def test_shared_buffers_and_those_that_were_not_there_are_given_back():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("one", torch.zeros(2))
            self.two = nn.Module()
            self.two.register_buffer("same", self.one)
            self.register_buffer("later", None)
            self.register_buffer("apart", torch.ones(1), persistent=False)

    module = Lazy()
    one, apart = module.one, module.apart
    structure = Structure(module)
    module.one, module.two.same = torch.ones(2), torch.zeros(3)
    module.later, module.apart = torch.ones(1), torch.zeros(1)
    module.register_buffer("new", torch.ones(1))
    assert structure.entries["one"] is module.one
    assert "later" in structure.entries
    structure.restore()
    given = module.one, module.two.same, module.apart, module.later
    assert all(map(operator.is_, given, (one, one, apart, None)))
    assert "new" not in dict(module.named_buffers())


def test_a_global_model_that_changes_in_a_test_is_loaded_for_each_client():
    data = blobs((4, 4, 4))
    for change in (written, bound, pointed):
        ctx = context(FedAvg(network(change, (False,)), optimizer=SGD), data)
        sent = Broadcast(clone({n: ctx.template[n] for n in ctx.module.shared_names()}))
        jobs = [
            replace(job(data, client, sent, splits=("test",)), model="global")
            for client in (0, 1, 2)
        ]
        together = list(client_round.all_answers(lambda client, ctx=ctx: ctx, jobs))
        alone = [client_round.answers(ctx, one) for one in jobs]
        for one, other in zip(together, alone, strict=True):
            assert torch.equal(one["test"][0], other["test"][0])
