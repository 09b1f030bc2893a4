"""Operations that stacked clients call: on a GPU each is a kernel to launch."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from datamodules import IID, Synthetic
from lightning_modules.fedavg import FedAvg
from pfl.core import devices
from pfl.engines.sequential import SequentialEngine
from pfl.engines.stack import gather, stack
from pfl.engines.stack import round as stack_round
from pfl.engines.vectorised import VectorisedEngine
from tests.engines.agreement import fit, numbers
from tests.helpers.federation import SGD, context, job
from tests.helpers.toy import blobs, mlp

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


def made(epochs=1, splits=()):
    """Return a context of twenty clients with two steps an epoch, and their jobs."""
    data = blobs((8,) * CLIENTS)
    module = FedAvg(mlp(), optimizer=SGD, epochs=epochs)
    return context(module, data), [job(data, client, splits=splits) for client in range(CLIENTS)]


def counted(call):
    call()  # Constants are made in the first.
    with Calls() as calls:
        call()
    return calls.counts


def test_a_test_of_twenty_clients_is_few_operations():
    """Scores are counted over all clients at once, of two splits as well."""
    one, two = (
        counted(partial(stack_round.test, *made(splits=splits))).total()
        for splits in (("test",), ("test", "train"))
    )
    assert one <= 170
    assert two <= 380


@pytest.fixture(params=["held", "gathered"])
def _way(request, monkeypatch):
    """Samples held as floats, as on a CPU, or read at each step, as on a GPU."""
    monkeypatch.setattr(devices, "roomy", lambda device: request.param == "held")


@pytest.mark.usefixtures("_way")
def test_a_step_of_twenty_clients_is_few_operations_and_none_waits_for_a_number():
    """Eleven epochs have twenty steps more than one; orders cost copies for each client."""
    one, eleven = (counted(partial(stack_round.train, *made(epochs))) for epochs in (1, 11))
    extra = eleven - one
    assert extra.total() / 20 <= 100
    assert not {"_local_scalar_dense", "nonzero", "item"} & extra.keys()


def unequal():
    data = Synthetic(samples=72, size=8, num_clients=4, partition=IID(), batch_size=4)
    data.setup()
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
