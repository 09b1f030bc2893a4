"""Op threads: by the network and the user, never by the load; a resumed run keeps its number."""

from __future__ import annotations

import json

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.nn.utils import parametrizations

from lightning_modules.fedavg import FedAvg
from pfl.core.seeds import scoped
from pfl.engines import op_threads
from pfl.engines.op_threads import OpThreads, multiplications
from pfl.training.context import Context
from tests.engines.agreement import fit
from tests.helpers.federation import SGD
from tests.helpers.toy import blobs, mlp, normed


@pytest.fixture
def torchs(monkeypatch):
    """Two op threads, as if that were torch's own number, whatever the tests run with."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(op_threads, "_DEFAULT", 2)
    with op_threads.using(2):
        yield monkeypatch


def context(module=None):
    return Context(module or FedAvg(mlp()), blobs((6, 6)), Fabric(accelerator="cpu", devices=1))


def test_short_operations_have_one_and_others_torchs_number(torchs):
    """The network has operations of 30 and 18 multiplications: 24 on average."""
    assert multiplications(context()) == (48, 24)
    torchs.setattr(op_threads, "SHORT_OPERATION", 24)
    assert op_threads.choose(context()).count == 1
    torchs.setattr(op_threads, "SHORT_OPERATION", 23)
    assert op_threads.choose(context()).count == 2


def test_a_recurrent_network_has_many_short_operations(torchs):
    """Its total is large; each of its steps is small."""

    class Recurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = torch.nn.GRU(1, 20, batch_first=True)
            self.head = torch.nn.Linear(20, 3)

        def forward(self, x):
            return self.head(self.gru(x.repeat(1, 20)[..., None])[1][0])

    counted = multiplications(context(FedAvg(Recurrent())))
    assert counted.total > 100 * 20 * 60
    assert counted.operation < 2 * 20 * 60 + 100 * 60 / 3


@pytest.mark.parametrize(
    ("norm", "least"),
    [
        # A norm is no multiplication of the list; an orthogonal matrix has several.
        (parametrizations.weight_norm, 48),
        (parametrizations.spectral_norm, 48),
        (parametrizations.orthogonal, 49),
    ],
)
@pytest.mark.parametrize("engine", ["sequential", "threads", "processes"])
def test_weights_that_are_computed_from_others_are_counted(norm, least, engine, torchs):
    def net():
        with scoped(0):
            layers = nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)
            return nn.Sequential(norm(layers[0]), layers[1], norm(layers[2]))

    assert multiplications(context(FedAvg(net()))).total >= least
    alone, found = (fit(FedAvg(net(), optimizer=SGD), one, 1) for one in ("sequential", engine))
    assert found.fingerprint == alone.fingerprint


def test_the_first_client_with_data_is_counted_as_in_a_test():
    """A batch norm in training mode refuses a batch of one sample."""
    data = blobs((0, 6))
    found = Context(FedAvg(normed()), data, Fabric(accelerator="cpu", devices=1))
    assert multiplications(found) == multiplications(context(FedAvg(normed())))


def test_a_network_that_multiplies_nothing_has_short_operations(torchs):
    torchs.setattr(op_threads, "SHORT_OPERATION", 0)
    assert multiplications(context(FedAvg(torch.nn.Flatten()))) == (0, 0)
    assert op_threads.choose(context(FedAvg(torch.nn.Flatten()))).count == 1


def test_in_double_precision_the_count_is_the_same():
    fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
    found = Context(FedAvg(mlp()).double(), blobs((6, 6)), fabric)
    assert multiplications(found) == (48, 24)


@pytest.mark.parametrize("engine", ["auto", "sequential", "vectorised"])
def test_every_engine_computes_with_the_chosen_number_and_gives_it_back(engine, torchs):
    class Notes(FedAvg):
        def receive(self, broadcast, info):
            found.add(torch.get_num_threads())
            super().receive(broadcast, info)

    found = set()
    run = fit(Notes(mlp(), optimizer=SGD), engine, rounds=1, data=blobs((6,) * 5))
    assert found == {1}
    assert torch.get_num_threads() == 2
    expected = "1, as the network's operations are too short for several"
    assert run.header["op threads"] == expected


def test_what_the_user_sets_is_taken(torchs):
    torchs.setenv("MKL_NUM_THREADS", "2")
    assert op_threads.choose(context()) == OpThreads(2, "set by MKL_NUM_THREADS")
    torchs.setenv("OMP_NUM_THREADS", "2")
    assert op_threads.choose(context(), began=2) == OpThreads(2, "set by OMP_NUM_THREADS")
    with op_threads.using(3):
        assert op_threads.choose(context()) == OpThreads(3, "set by torch.set_num_threads")
        differs = op_threads.choose(context(), began=1).why
    assert differs.endswith("the run began with 1: the rounds from here may differ in last bits")


def test_a_resumed_run_keeps_its_number(torchs, tmp_path):
    torchs.setattr(op_threads, "SHORT_OPERATION", 0)
    folder = {"default_root_dir": str(tmp_path), "name": "r"}
    first = fit(FedAvg(mlp(), optimizer=SGD), "sequential", rounds=1, **folder)
    assert json.loads((first.folder / "environment.json").read_text())["op_threads"] == 2
    torchs.setattr(op_threads, "SHORT_OPERATION", 100)
    again = fit(
        FedAvg(mlp(), optimizer=SGD), "sequential", rounds=2, ckpt_path=str(first.folder), **folder
    )
    assert again.header["op threads"].startswith("2, as the run began")
