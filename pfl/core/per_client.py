"""Networks that differ between clients: a module has several, and plays one client with one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from torch import nn

from pfl.core.data import FederatedData
from pfl.core.state import form_of
from pfl.core.types import State

Assignment: TypeAlias = 'Literal["cycle", "domain"] | list[int]'
# What a network and its stand-in have in common, so that entries have the network's own names.
_ENTRIES = ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules")


class Variants(nn.Module):
    """Several networks, of which each client has one: the networks' places are taken in turn.

    It behaves as the network whose turn it is, and its entries are that one's. Those that travel
    must have the same names and shapes in all of them.

    Attributes:
        number: Which network's turn it is.

    Args:
        nets: The networks, at least one.
        by: Which client has which of k networks: ``cycle`` gives client i number i mod k,
            ``domain`` those of one domain the same (``data.groups``), in the order of domains; a
            list has the number of each client's network.

    Raises:
        ValueError: There is no network, or a number in the list is none of theirs.
    """

    def __init__(self, nets: Sequence[nn.Module], by: Assignment = "cycle") -> None:
        nn.Module.__init__(self)  # also beside a base of networks that takes their parts
        if not nets:
            raise ValueError("nets needs at least one network, got an empty list")
        if not isinstance(by, str) and (wrong := [n for n in by if not 0 <= n < len(nets)]):
            raise ValueError(f"by has the number {wrong[0]}, but there are {len(nets)} networks")
        # As a tuple they are no submodules: only the entries of one at a time are.
        self.nets, self.by, self.number = tuple(nets), by, 0
        self.take(0)

    def take(self, number: int) -> None:
        """Become another of the networks."""
        self.number = number
        for name in _ENTRIES:
            self.__dict__[name] = self.nets[number].__dict__[name]

    def forward(self, *inputs: Any) -> Any:  # noqa: ANN401
        """Return what the network returns whose turn it is."""
        return self.nets[self.number](*inputs)

    def train(self, mode: bool = True) -> Variants:
        """Set the mode, which the network itself reads too."""
        super().train(mode)
        self.nets[self.number].training = mode
        return self

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Return a submodule or an attribute of the network whose turn it is."""
        if "nets" in self.__dict__ and name != "number":
            return getattr(self.nets[self.number], name)
        return super().__getattr__(name)

    @property
    def labels(self) -> tuple[str, ...]:
        """The class of each network, numbered where a class occurs more than once."""
        names = [type(net).__name__ for net in self.nets]
        return tuple(
            name if names.count(name) == 1 else f"{name}-{names[: place + 1].count(name)}"
            for place, name in enumerate(names)
        )

    def check(self, data: FederatedData) -> None:
        """Refuse data whose clients have no network.

        Raises:
            ValueError: They have no domains, or there are more clients than the list has.
        """
        if self.by == "domain" and len(_domains(data)) < data.num_clients:
            raise ValueError("by: domain needs data whose clients have domains (data.groups)")
        if not isinstance(self.by, str) and len(self.by) < data.num_clients:
            raise ValueError(f"by lists {len(self.by)} clients, but there are {data.num_clients}")

    def of_client(self, client: int, data: FederatedData) -> int:
        """Return the number of a client's network."""
        if self.by == "cycle":
            return client % len(self.nets)
        if self.by == "domain":
            return _domains(data)[client] % len(self.nets)
        return self.by[client]


def _domains(data: FederatedData) -> Sequence[int]:
    domains: Sequence[int] = getattr(data, "groups", ((), ()))[1]
    return domains


def variants(module: nn.Module) -> list[Variants]:
    """Return what has several networks within a module.

    Raises:
        ValueError: They differ in their number of networks or in who has which.
    """
    found = [child for child in module.modules() if isinstance(child, Variants)]
    for one in found[1:]:
        if (len(one.nets), one.by) != (len(found[0].nets), found[0].by):
            raise ValueError(
                f"several networks have variants: give all {len(found[0].nets)} of them, and the "
                f"same by, got {len(one.nets)} by {one.by} beside by {found[0].by}"
            )
    return found


def count(module: nn.Module) -> int:
    """Return how many variants a module has, at least one."""
    return max((len(one.nets) for one in variants(module)), default=1)


def named(number: int, name: str) -> str:
    """Return the name of a variant's entry among those of all: ``net.w``, ``1:net.w`` ..."""
    return f"{number}:{name}" if number else name


def of_variant(values: State, number: int) -> State:
    """Return one variant's entries of those of all variants, by the names of :func:`named`."""
    start = f"{number}:" if number else ""
    return {
        name.removeprefix(start): value
        for name, value in values.items()
        if (name.startswith(start) if number else ":" not in name)
    }


def disagreement(first: State, other: State) -> str | None:
    """Return which entry that travels is not alike in two variants; ``None`` if all are."""
    for name in (*first, *other):
        forms = [form_of(one[name]) if name in one else "missing" for one in (first, other)]
        if forms[0] != forms[1]:
            return f"{name} is {forms[0]} in one network and {forms[1]} in another"
    return None
