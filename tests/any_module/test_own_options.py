"""Options of somebody's network, of the types that people declare: from a file, and once more."""

from __future__ import annotations

import pathlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, MutableMapping
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import NamedTuple, NewType
from uuid import UUID

import lightning as L
import pytest
import torch
import yaml
from torch import Tensor, nn

from pfl.cli.config import Experiment
from pfl.cli.explain import UsageError
from tests.helpers.messages import parts

Width = NewType("Width", int)


class Point(NamedTuple):
    x: int
    y: float = 2.0


# Two at once, whose names no statement defines as those of classes.
Even, Odd = (type(name, (nn.Module,), {"__module__": __name__}) for name in ("Even", "Odd"))

# What a file says, and what the network is given.
GIVEN = {
    "place": ("some/weights.txt", pathlib.Path("some/weights.txt")),
    "widths": ([1, 2], [1, 2]),
    "width": (3, 3),
    "point": ({"x": 1}, Point(1)),
    "table": ({"a": 1}, {"a": 1}),
    "more": ({"a": 1.5}, {"a": 1.5}),
    "last": ([1, 2], deque([1, 2])),
    "names": (["a"], {"a"}),
    "pause": ("1 day, 0:00:30", timedelta(days=1, seconds=30)),
    "mark": ("12345678-1234-5678-1234-567812345678", UUID("12345678123456781234567812345678")),
    "steps": ("range(2, 5)", range(2, 5)),
    "layer": (f"{__name__}.Odd", None),
}


class Taking(nn.Module):
    """Hold what it is given."""

    def __init__(
        self,
        num_classes: int,
        place: pathlib.Path = pathlib.Path(),
        widths: Iterable[int] = (),
        width: Width = Width(1),
        point: Point | None = None,
        table: OrderedDict[str, int] | None = None,
        more: MutableMapping[str, float] | None = None,
        last: deque[int] | None = None,
        names: AbstractSet[str] = frozenset(),
        pause: timedelta = timedelta(0),
        mark: UUID | None = None,
        steps: range = range(3),
        norm: Callable[[int], nn.Module] | None = None,
        layer: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.given = {name: value for name, value in locals().items() if name in GIVEN}
        self.norm = None if norm is None else norm(7)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

    def forward(self, x):
        return self.net(x)


def made(file):
    """Return the network of a file, and the file of a run with all that was not given."""
    experiment = Experiment.parse("fit", ["--config", str(file)])
    return experiment.module.net, experiment.text


@pytest.mark.parametrize("seen", [True, False], ids=["spelt", "hidden"])
def test_options_of_a_network_have_the_types_that_it_declares(tmp_path, monkeypatch, seen):
    home = __name__
    if not seen:
        # A module whose source says nothing of the class.
        home = "somewhere"
        (tmp_path / "somewhere.py").write_text(
            f"import {__name__} as other\nglobals()['Taking'] = other.Taking\n"
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
    options = {name: value for name, (value, _) in GIVEN.items()} | {"norm": "torch.nn.BatchNorm1d"}
    net = {"class_path": f"{home}.Taking", "init_args": options}
    model = {"class_path": "FedAvg", "init_args": {"net": net}}
    data = {"class_path": "Digits", "init_args": {"num_clients": 2, "partition": "IID"}}
    file = tmp_path / "own.yaml"
    text = yaml.safe_dump({"model": model, "data": data})
    for _ in range(2):
        file.write_text(text)
        net, text = made(file)
        layer = net.given.pop("layer")
        assert type(layer) is Odd
        assert net.norm.num_features == 7
        assert net.given == {name: value for name, (_, value) in GIVEN.items() if name != "layer"}
        assert type(net.given["point"]) is Point


class Boosted(torch.optim.SGD):
    """An optimizer whose first argument has no type, as most have it."""

    def __init__(self, params, lr: float = 0.05, boost: float = 1.0):
        super().__init__(params, lr=lr * boost)


def momentum(params: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.3, momentum=0.9)


class Lit(L.LightningModule):
    """A module that asks for the number of classes, as Lightning's examples do."""

    def __init__(self, num_classes: int, act: type[nn.Module] = nn.ReLU):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), act(), nn.Linear(8, num_classes))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


FLAGS = ["--data=Digits", "--data.num_clients=2", "--data.partition=IID", "--model=FedAvg"]


@pytest.mark.parametrize(
    ("flags", "kind", "rate"),
    [
        (["Boosted", "--model.optimizer.boost=2"], Boosted, 0.1),
        (["momentum"], torch.optim.SGD, 0.3),
    ],
)
def test_an_optimizer_is_a_class_or_a_function_of_ones_own(tmp_path, flags, kind, rate):
    name, *more = flags
    own = ["--model.net=MLP", f"--model.optimizer={__name__}.{name}", *more]
    experiment = Experiment.parse("fit", [*FLAGS, *own])
    file = tmp_path / "again.yaml"
    file.write_text(experiment.text)
    for one in (experiment, Experiment.parse("fit", ["--config", str(file)])):
        optimizer = one.module.configure_optimizers()
        assert type(optimizer) is kind
        assert optimizer.param_groups[0]["lr"] == rate


def test_a_function_takes_no_options():
    own = [f"--model.optimizer={__name__}.momentum", "--model.optimizer.lr=0.1"]
    with pytest.raises(UsageError, match=parts("--model.optimizer.lr: ~ function ~ name it alone")):
        Experiment.parse("fit", [*FLAGS, "--model.net=MLP", *own])


def test_a_lightning_module_is_given_what_the_data_determine():
    own = [f"--model.net={__name__}.Lit", "--model.net.act=Tanh"]
    net = Experiment.parse("fit", [*FLAGS, *own]).module.net.net
    assert (type(net[2]), net[3].out_features) == (nn.Tanh, 10)


class First:
    """It chooses clients, and says nowhere that it is a sampler."""

    def __call__(self, clients, rng, round):
        return clients[:1]


def test_what_looks_like_a_sampler_is_told_what_it_lacks():
    own = [f"--loop.sampler={__name__}.First"]
    with pytest.raises(UsageError, match=parts("First does not implement Sampler: derive it from")):
        Experiment.parse("fit", [*FLAGS, "--model.net=MLP", *own])
