"""Dictionaries, floats and tokens, and every task: all engines give the sequential numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from datamodules import TensorData
from datamodules.partition.partitioner import IID
from lightning_modules.ditto import Ditto
from lightning_modules.fedavg import FedAvg
from lightning_modules.nets import MLP, SplitNet, TextNet
from lightning_modules.nets.text import MeanEmbedding
from pfl.core.seeds import generator, scoped
from pfl.core.task import MultiLabel, Regression
from pfl.engines.processes import ProcessesEngine
from pfl.engines.threads import ThreadsEngine
from pfl.engines.vectorised import VectorisedEngine
from tests.engines.agreement import fit, numbers, same
from tests.helpers.federation import HEAVY

N = 44


class Both(nn.Module):
    """The mean embedding of a note beside the columns of a table."""

    def __init__(self):
        super().__init__()
        self.note = MeanEmbedding(7, 3)

    def forward(self, x):
        return torch.cat([self.note(x["note"]), x["table"]], -1)


def tokens(rng):
    found = torch.randint(1, 7, (N, 5), generator=rng)
    return found * (torch.arange(5) < torch.randint(1, 6, (N, 1), generator=rng))


def dictionary():
    rng = generator(1, "dictionary")
    table = torch.randn(N, 2, generator=rng, dtype=torch.float64)
    y = table @ torch.tensor([[1.0, 0.5], [-1.0, 0.0]], dtype=torch.float64)
    net = SplitNet(nn.Sequential(Both(), nn.Linear(5, 4), nn.Tanh()), nn.Linear(4, 2))
    return {"x.note": tokens(rng), "x.table": table, "y": y}, net, Regression()


def floats():
    rng = generator(2, "floats")
    x = torch.randn(N, 3, generator=rng)
    return {"x": x, "y": (x[:, :2] > 0).long()}, MLP(2, (3,), hidden=(4, 3)), MultiLabel()


def texts():
    rng = generator(3, "texts")
    x = tokens(rng)
    return {"x": x, "y": x[:, 0] % 3}, TextNet(3, vocabulary=7, embedding=4, hidden=5), None


pytestmark = pytest.mark.usefixtures("one_op_thread")


KINDS = [dictionary, floats, texts]


def run(kind, method, engine, **loop):
    """Run three rounds of four unequal clients."""
    with scoped(1):
        arrays, net, task = kind()
    data = TensorData(arrays, 4, IID(), batch_size=5, test_fraction=0.3)
    module = method(net, optimizer=HEAVY, task=task)
    return fit(module, engine, data=data, **loop)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", [FedAvg, Ditto])
def test_every_engine_and_a_resumed_run_give_the_sequential_numbers(kind, method, tmp_path):
    """Bit for bit, also by messages to another process; stacked in float64."""
    alone = run(kind, method, "sequential")
    for engine, name in ((ThreadsEngine(2), "threads"), (ProcessesEngine(1), "processes")):
        beside = run(kind, method, engine)
        assert beside.header["engine"].startswith(name)
        assert same(beside, alone)
    folder = str(tmp_path)
    broken = run(kind, method, "sequential", rounds=1, default_root_dir=folder)
    assert same(run(kind, method, "sequential", ckpt_path=str(broken.folder)), alone)
    alone, beside = (
        run(kind, method, engine, precision="64-true")
        for engine in ("sequential", VectorisedEngine())
    )
    assert beside.header["engine"].startswith("vectorised")
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(beside.server.shared, alone.server.shared, **close)
    torch.testing.assert_close(dict(beside.kept), dict(alone.kept), **close)
    for one, other in zip(numbers(beside), numbers(alone), strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-5)
