"""Options of somebody's network, of the types that people declare: from a file, and once more."""

from __future__ import annotations

import pathlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, MutableMapping
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import NamedTuple, NewType
from uuid import UUID

import pytest
import yaml
from torch import nn

from pfl.cli.config import Experiment

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
