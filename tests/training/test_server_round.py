"""What a run gives to the method's server: a seed for its draws, and public data."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from datamodules import IID, Digits, TensorData
from datamodules.view import Store
from lightning_modules.base import ClientModule
from lightning_modules.nets import MLP
from pfl.core.server import Server
from pfl.engines.guard import disagreement
from pfl.training.declaration import MethodError
from tests.helpers.federation import context, fit
from tests.helpers.messages import parts


class Looks(Server):
    """Reports the public data and the seed that it sees."""

    needs_public = True

    def finish(self, state, folded):
        batch = self.public.batch(torch.arange(len(self.public)))
        seen = {"inputs": float(batch.x.double().sum()), "double": batch.x.dtype == torch.float64}
        after = super().finish(state, folded)
        return replace(after, report={**seen, "count": len(self.public)})


class Public(ClientModule):
    vectorizable = True

    def server(self):
        return Looks()


def tensors(start, stop, **options):
    """Samples whose inputs are their numbers, all for training but the last of five."""
    x = torch.arange(start, stop).float()[:, None]
    data = TensorData(
        {"x": x, "y": torch.arange(stop - start) % 2}, 1, IID(), test_fraction=0.2, **options
    )
    data.setup()
    return data


def test_a_server_sees_the_training_samples_of_the_public_data():
    """The test sample of 100 to 109 is not among them."""
    public = tensors(100, 110)
    run = fit(Public(MLP(2, (1,))), tensors(0, 20, public=public), rounds=1)
    wanted = public.split(0, "train").batch(torch.arange(8)).x.sum()
    report = run.server.report
    assert report == {"inputs": wanted, "double": False, "count": 8}
    assert 800 <= report["inputs"] <= 8 * 109


def test_a_server_that_asks_for_public_data_is_refused_without():
    with pytest.raises(MethodError, match=parts("server of Public ~ data.public")):
        fit(Public(MLP(2, (1,))), tensors(0, 20), rounds=1)


def test_public_data_follow_the_data_to_the_device(monkeypatch):
    moved = []
    monkeypatch.setattr(Store, "to", lambda store, device: moved.append(len(store.targets)))
    tensors(0, 20, public=tensors(0, 10)).to(torch.device("cpu"))
    assert moved == [20, 10]


def test_the_check_before_stacks_gives_the_server_public_data_too():
    """In float64, as all of it."""
    working = context(Public(MLP(2, (1,))), tensors(0, 20, public=tensors(0, 10)))
    assert disagreement(working) is None


def test_public_data_are_prepared_with_the_data(monkeypatch):
    prepared = []
    monkeypatch.setattr(Digits, "prepare_data", lambda self: prepared.append(self))
    public = Digits(num_clients=1, partition=IID())
    Digits(num_clients=2, partition=IID(), public=public).setup()
    assert prepared == [public]


@pytest.mark.parametrize(
    ("verb", "instead"),
    [
        ("aggregate", "finish()"),
        ("merge", "begin() and finish()"),
        ("merge_mean", "of_mean()"),
        ("weights", "weight()"),
        ("with_mean", "finish()"),
    ],
)
def test_a_server_whose_verb_no_run_calls_is_refused(verb, instead):
    """Also one that has it from a class beside ``Server``."""
    beside = type("Beside", (), {verb: lambda self, *arguments: None})
    direct = type("Own", (Server,), {verb: vars(beside)[verb]})
    for server in (direct, type("Own", (beside, Server), {})):
        method = type("Odd", (ClientModule,), {"server": lambda self, kind=server: kind()})
        with pytest.raises(MethodError, match=parts(f"Own.{verb}() ~ {instead}")):
            fit(method(MLP(2, (1,))), tensors(0, 20), rounds=1)
