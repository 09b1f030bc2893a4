"""Operations that stacked clients call: on a GPU each is a kernel to launch."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from lightning.fabric import Fabric
from torch.utils._python_dispatch import TorchDispatchMode

from datamodules import IID, Dirichlet, Synthetic
from lightning_modules.fedavg import FedAvg
from lightning_modules.nets import LeNet5
from lightning_modules.pfedvem import PFedVEM
from pfl.core import devices
from pfl.core.data import info_of
from pfl.core.types import Broadcast, Job
from pfl.engines.sequential import SequentialEngine
from pfl.engines.stack import gather, stack
from pfl.engines.stack import round as stack_round
from pfl.engines.vectorised import VectorisedEngine
from pfl.training.context import Context
from tests.engines.agreement import fit, numbers
from tests.helpers.toy import mlp

CLIENTS = 20


class Calls(TorchDispatchMode):
    """Counts calls of operations, without those that only look at a tensor in another way.

    ``lift_fresh`` makes a tensor of plain numbers, which a GPU has to wait for.
    """

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, call, kinds, args=(), options=None):
        if not call.is_view or call is torch.ops.aten.lift_fresh.default:
            self.counts[call._overloadpacket.__name__] += 1
        return call(*args, **(options or {}))


def uneven():
    return federation(samples=20, partition=Dirichlet(0.5), batch_size=4)


def federation(clients=CLIENTS, samples=40, size=28, **options):
    data = Synthetic(
        samples=2 * clients * samples,
        classes=10,
        size=size,
        domains=1,
        num_clients=clients,
        test_fraction=0.5,
        **{"partition": IID(), "batch_size": 2, **options},
    )
    data.setup()
    return data


def context_of(epochs=1, kind=FedAvg, data=None):
    sgd = partial(torch.optim.SGD, lr=0.01)
    method = kind(LeNet5(10, (1, 28, 28)), optimizer=sgd, epochs=epochs)
    return Context(method, data or federation(), Fabric(accelerator="cpu"))


def jobs_of(context, **options):
    sent = Broadcast({name: value.clone() for name, value in context.template.items()})
    infos = [info_of(context.data, client) for client in range(CLIENTS)]
    return [Job(info, {}, sent, info.client, **options) for info in infos]


def counted(call):
    call()  # Constants are made in the first.
    with Calls() as calls:
        call()
    return calls.counts


def test_a_test_of_twenty_clients_is_few_operations():
    """Without scores, which are counted over all clients at once; with them; of two splits."""
    context = context_of()
    jobs = jobs_of(context, splits=("test",))

    def outputs():
        models = stack_round.tested(context, jobs)
        with torch.inference_mode():
            splits = [context.data.split(job.info.client, "test") for job in jobs]
            stack_round.outputs(models, splits)

    assert counted(outputs).total() < 80
    assert counted(partial(stack_round.test, context, jobs)).total() < 160
    both = jobs_of(context, splits=("test", "train"))
    assert counted(partial(stack_round.test, context, both)).total() <= 300


@pytest.fixture(params=["held", "gathered"])
def _way(request, monkeypatch):
    """Samples held as floats, as on a CPU, or read at each step, as on a GPU."""
    monkeypatch.setattr(devices, "roomy", lambda device: request.param == "held")


@pytest.mark.usefixtures("_way")
def test_a_step_of_twenty_clients_is_few_operations_and_none_waits_for_a_number():
    """Two epochs have twenty steps more than one; an epoch's order costs a step twenty copies."""
    one, two = (
        counted(partial(stack_round.train, context, jobs_of(context)))
        for context in (context_of(1), context_of(2))
    )
    extra = two - one
    assert extra.total() / 20 - 20 <= 100
    assert not {"_local_scalar_dense", "nonzero", "item"} & extra.keys()


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("kind", [FedAvg, PFedVEM])
def test_a_step_of_unequal_clients_takes_no_number_from_the_cpu(kind):
    """Some are done before others and batches are padded: two epochs beside one."""
    one, two = (
        counted(partial(stack_round.train, context, jobs_of(context)))
        for context in (context_of(epochs, kind, uneven()) for epochs in (1, 2))
    )
    assert (two - one).total() > 500
    assert not {"lift_fresh", "_local_scalar_dense", "nonzero", "item"} & (two - one).keys()


def unequal():
    """Clients of unequal size, one without test samples."""
    data = federation(clients=4, samples=9, size=8)
    data.batch_size = 4
    return data


@pytest.mark.parametrize("batch_norm", [False, True])
def test_what_is_gathered_is_what_each_split_gives(batch_norm):
    """Client 1 has nothing, client 2 less than a batch."""
    data = unequal()
    splits = [data.split(client, "train") for client in range(4)]
    parts = [splits[0], _part(splits[1], 0), _part(splits[2], 3), _part(splits[3], 7)]
    together = list(stack.walk(parts, 5, batch_norm))
    apart = list(stack.walk([_Lone(part) for part in parts], 5, batch_norm))
    assert len(together) == len(apart) > 1
    for one, other in zip(together, apart, strict=True):
        assert one.sizes == other.sizes
        torch.testing.assert_close(one.batch.weight, other.batch.weight, rtol=0, atol=0)
        torch.testing.assert_close(one.batch[:2], other.batch[:2], rtol=0, atol=0)


def _part(split, count):
    return type(split)(split._store, split._rows[:count])


class _Lone:
    """A split that cannot be joined with others."""

    augmented = False

    def __init__(self, split):
        self._split = split
        self.batch = split.batch

    def __len__(self):
        return len(self._split)


def test_splits_of_different_stores_are_not_joined():
    splits = [unequal().split(0, "train"), unequal().split(1, "train")]
    assert gather.Gather.over(splits) is None


def test_samples_read_at_each_step_give_the_numbers_of_held_ones(monkeypatch):
    def run(engine):
        data = Synthetic(
            samples=90, num_clients=4, partition=IID(), batch_size=4, quantity_shift=0.5
        )
        net = torch.nn.Sequential(torch.nn.Flatten(), mlp(4, 64))
        method = FedAvg(net, optimizer=partial(torch.optim.SGD, lr=0.1), epochs=2)
        torch.manual_seed(0)
        return fit(method, engine, data=data, precision="64-true")

    held = run(VectorisedEngine())
    monkeypatch.setattr(devices, "roomy", lambda device: False)
    read = run(VectorisedEngine())
    assert numbers(read) == numbers(held)
    alone = run(SequentialEngine())
    torch.testing.assert_close(read.server.shared, alone.server.shared, rtol=1e-10, atol=1e-10)
