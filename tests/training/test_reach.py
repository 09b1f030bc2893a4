"""What a network remembers in objects of Python's own, or outside of itself, is seen."""

import array
import contextvars
import decimal
import enum
import io
import logging
import threading
import types
import weakref
from collections import ChainMap, OrderedDict, UserList
from collections.abc import Mapping
from dataclasses import dataclass
from functools import singledispatch

import numpy as np
import pytest
import torch
from torch import nn

from lightning_modules import FedAvg
from pfl import FederatedLoop
from pfl.core.seeds import scoped
from pfl.training.reach import Reach
from tests.helpers.toy import blobs

OF_CONTEXT = contextvars.ContextVar("of_context", default=0)
OF_THREAD = threading.local()


class Elsewhere:
    """A class that only the code of a network names."""

    steps = 0


class Helper:
    steps = 0

    def count(self):
        type(self).steps += 1
        return self.steps


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.line, self.kind = nn.Linear(5, 3), kind
        self.held = HELD[kind]()

    def count(self):
        held = self.held
        if self.kind == "array":
            held[0] += 1
            return held[0]
        if self.kind == "bytes":
            held.append(0)
            return len(held)
        if self.kind == "namespace":
            held.steps += 1
            return held.steps
        if self.kind == "stream":
            held.write(b"x")
            return held.tell()
        if self.kind == "bound":
            held(1)
            return len(held.__self__)
        if self.kind == "decimal":
            self.held = held + 1
            return self.held
        if self.kind == "reference":
            held().steps += 1
            return held().steps
        if self.kind == "helper":
            return held.count()
        if self.kind == "class":
            Elsewhere.steps += 1
            return Elsewhere.steps
        if self.kind == "thread":
            OF_THREAD.steps = getattr(OF_THREAD, "steps", 0) + 1
            return OF_THREAD.steps
        OF_CONTEXT.set(OF_CONTEXT.get() + 1)
        return OF_CONTEXT.get()

    def forward(self, x):
        return self.line(x) * (1 + 0.1 * float(self.count()) if self.training else 1.0)


KEPT = types.SimpleNamespace(steps=0)
HELD = {
    "array": lambda: array.array("d", [0.0]),
    "bytes": bytearray,
    "namespace": lambda: types.SimpleNamespace(steps=0),
    "stream": io.BytesIO,
    "bound": lambda: [].append,
    "decimal": lambda: decimal.Decimal(0),
    "reference": lambda: weakref.ref(Elsewhere),
    "helper": Helper,
    "class": lambda: None,
    "thread": lambda: None,
    "context": lambda: None,
}


@pytest.mark.parametrize("kind", HELD)
def test_what_a_network_remembers_anywhere_is_refused_by_name(kind):
    with scoped(0):
        net = Net(kind)
    with pytest.raises(TypeError, match=r"changes while FedAvg trains or tests, and what follows"):
        FederatedLoop(rounds=2, progress=False).fit(FedAvg(net), blobs((8, 6, 4)))


@pytest.mark.parametrize("kind", ["array", "bytes", "stream", "namespace"])
def test_what_lies_outside_of_a_network_gets_its_values_back(kind):
    held = HELD[kind]()

    class Uses(nn.Linear):
        def forward(self, x):
            return super().forward(x) if held else x

    net = Uses(1, 1)
    before = Reach(net)
    other = Net(kind)
    other.held = held
    for _ in range(3):
        other.count()
    assert before.places != Reach(net).places
    before.restore()
    assert before.places == Reach(net).places
    assert torch.is_tensor(net(torch.ones(1, 1)))


class Colour(enum.Enum):
    RED = 1
    NUMBERS = (1, 2)


class Slots:
    __slots__ = ("steps", "table")

    def __init__(self):
        self.steps, self.table = 0, {}


@dataclass(frozen=True, slots=True)
class Settings:
    steps: int = 0
    names: tuple[str, ...] = ("a",)


class Sealed(type):
    def __setattr__(cls, name, value):
        raise AttributeError(f"{name} of {cls.__name__} is fixed")


class Constants(metaclass=Sealed):
    rate = 0.5


class View(Mapping):
    def __getitem__(self, key):
        return {"a": 1}[key]

    def __iter__(self):
        return iter("a")

    def __len__(self):
        return 1


class Makes(OrderedDict):
    """A table of classes that gives objects of them."""

    def __getitem__(self, key):
        return super().__getitem__(key)()


def unwritten():
    numbers = np.arange(3)
    numbers.flags.writeable = False
    return numbers


# What code names, and what no one may replace, refill or compare as it does other values.
NAMED = {
    "enumeration": lambda: Colour.RED,
    "class of an enumeration": lambda: Colour,
    "flags": lambda: enum.Flag("Flags", "A B")(3),
    "slots": Slots,
    "frozen slots": Settings,
    "sealed class": lambda: Constants,
    "view of a table": lambda: types.MappingProxyType({"a": [1]}),
    "view of the user's": View,
    "table that makes what it gives": lambda: Makes(relu=nn.ReLU),
    "layers of tables": lambda: ChainMap({"a": 1}, {"b": 2}),
    "list of the user's": lambda: UserList([1]),
    "single dispatch": lambda: singledispatch(str),
    "generic": lambda: list[int],
    "array that is not written": unwritten,
    "sparse": lambda: torch.eye(2).to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    "meta": lambda: torch.empty(2, device="meta"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
@pytest.mark.parametrize("kind", NAMED)
def test_what_code_names_is_left_as_it_is(kind):
    named = NAMED[kind]()
    before = repr(named)

    class Names(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(5, 3)

        def forward(self, x):
            return self.line(x) if named is not None else x

    net = Names()
    reach = Reach(net)
    reach.restore()
    assert Reach(net).places == reach.places
    assert repr(named) == before
    FederatedLoop(rounds=1, progress=False).fit(FedAvg(net), blobs())


def test_slots_and_layers_that_code_has_changed_get_their_values_back():
    slots, layers = Slots(), ChainMap({"a": 1}, {"b": 2})

    def change(module, given):
        slots.steps += 1
        slots.table[len(slots.table)] = 1
        layers["a"] = 2

    net = nn.Linear(5, 3)
    net.register_forward_pre_hook(change)
    reach = Reach(net)
    net(torch.ones(1, 5))
    reach.restore()
    assert (slots.steps, slots.table, layers["a"], layers["b"]) == (0, {}, 1, 2)


def test_a_logger_of_the_code_does_not_lead_to_all_others(monkeypatch):
    log, other = logging.getLogger("of_network"), logging.getLogger("of_somebody_else")
    monkeypatch.setattr(other, "steps", 12345, raising=False)

    class Logs(nn.Linear):
        def forward(self, x):
            log.debug("a pass")
            return super().forward(x)

    places = Reach(Logs(5, 3)).places.values()
    assert 12345 not in [leaf.value for place in places for leaf in place.leaves.values()]
