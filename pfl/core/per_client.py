"""Networks that differ between clients: one module with several, of which one is active."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, BinaryIO, Literal, TypeAlias

from torch import Tensor, nn

from pfl.core.data import FederatedData
from pfl.core.foreign import check_network, trains_itself
from pfl.core.state import digest, form_of
from pfl.core.types import State

Assignment: TypeAlias = 'Literal["cycle", "domain"] | list[int]'
# What is shared with the active network, so that entries have that network's own names.
_ENTRIES = ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules")


class Variants(nn.Module):
    """Several networks, of which each client uses one; one is active at a time.

    It behaves as the active network and has only its entries. Entries that travel must have the
    same names and shapes in all networks.

    Attributes:
        number: Index of the active network.

    Args:
        nets: The networks, at least one.
        by: How clients get their networks: ``cycle`` gives client i the network i mod k; ``domain``
            gives all clients of a domain (``data.groups``) the same one, in the order of domains; a
            list has the number of each client's network.

    Raises:
        ValueError: There is no network, or the list has a number that no network has.
        TypeError: A network has a training of its own.
    """

    def __init__(self, nets: Sequence[nn.Module], by: Assignment = "cycle") -> None:
        nn.Module.__init__(self)  # not super(): another base may take a network's parts
        if not nets:
            raise ValueError("nets needs at least one network, got an empty list")
        if not isinstance(by, str) and (wrong := [n for n in by if not 0 <= n < len(nets)]):
            raise ValueError(f"by has the number {wrong[0]}, but there are {len(nets)} networks")
        for net in nets:
            if trains_itself(net):
                raise TypeError(
                    f"nets of {type(self).__name__} has the LightningModule {type(net).__name__}, "
                    "which trains itself: clients cannot differ in it, give networks without steps"
                )
            check_network(net, "nets", type(self).__name__)
        # In a tuple they are not submodules: only the active network's entries count.
        self.nets, self.by, self.number = tuple(nets), by, 0
        self.take(0)

    def take(self, number: int) -> None:
        """Make another network the active one."""
        self.number = number
        for name in _ENTRIES:
            self.__dict__[name] = self.nets[number].__dict__[name]

    def forward(self, *inputs: Any) -> Any:  # noqa: ANN401
        """Return the outputs of the active network."""
        return self.nets[self.number](*inputs)

    def train(self, mode: bool = True) -> Variants:
        """Set the mode, also of the active network itself."""
        super().train(mode)
        self.nets[self.number].training = mode
        return self

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Return a submodule or an attribute of the active network."""
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
        """Refuse data whose clients cannot be assigned a network.

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
    """Return every :class:`Variants` within a module.

    Raises:
        ValueError: They differ in the number of networks or in ``by``.
    """
    found = [child for child in module.modules() if isinstance(child, Variants)]
    for one in found[1:]:
        if (len(one.nets), one.by) != (len(found[0].nets), found[0].by):
            raise ValueError(
                f"several networks have variants: give all {len(found[0].nets)} of them, and the "
                f"same by, got {len(one.nets)} by {one.by} beside by {found[0].by}"
            )
    return found


def networks(net: nn.Module) -> Sequence[nn.Module]:
    """Return the networks of which clients use one: those of :class:`Variants`, or the only one."""
    return net.nets if isinstance(net, Variants) else (net,)


def count(module: nn.Module) -> int:
    """Return how many variants a module has, at least one."""
    return max((len(one.nets) for one in variants(module)), default=1)


def each_network(module: Any) -> Iterator[None]:  # noqa: ANN401
    """Make a method act as each of its networks in turn, and then as the first.

    Args:
        module: A :class:`pfl.core.client.ClientModule`.
    """
    for number in range(count(module)):
        module.take_variant(number)
        yield
    module.take_variant(0)


def architectures(module: nn.Module) -> list[int]:
    """Return for each variant of a module the first one whose networks have the same architecture.

    Such networks differ in nothing but the values of their entries: they have the same structure,
    options and constants. Networks that cannot be compared are taken to differ.
    """
    forms = [
        [_form(one.nets[number]) or number for one in variants(module)]
        for number in range(count(module))
    ]
    return [forms.index(form) for form in forms]


def _form(net: nn.Module) -> bytes | None:
    """Return what a network is, without its entries' values; ``None`` if this cannot be told."""
    file = io.BytesIO()
    try:
        _Form(file, net.state_dict(keep_vars=True)).dump(net)
    except Exception:  # of any class, as modules may say how they are pickled
        return None
    return file.getvalue()


class _Form(pickle.Pickler):
    """Writes objects for comparison within this process; entries by their names and forms."""

    def __init__(self, file: BinaryIO, entries: Mapping[str, Any]) -> None:
        super().__init__(file)
        self._entries = {id(value): name for name, value in entries.items()}

    def persistent_id(self, value: Any) -> object:  # noqa: ANN401
        """Return what stands for a tensor, class or function; ``None`` for other objects."""
        if isinstance(value, Tensor):
            if name := self._entries.get(id(value)):
                return name, form_of(value)
            return digest({"": value.detach()})
        return id(value) if isinstance(value, type | FunctionType) else None


def named(number: int, name: str) -> str:
    """Return the name of a variant's entry among those of all: ``net.w``, ``1:net.w`` ..."""
    return f"{number}:{name}" if number else name


def of_variant(values: State, number: int) -> State:
    """Select one variant's entries from those of all, by the names of :func:`named`."""
    start = f"{number}:" if number else ""
    return {
        name.removeprefix(start): value
        for name, value in values.items()
        if (name.startswith(start) if number else ":" not in name)
    }


def disagreement(first: State, other: State) -> str | None:
    """Describe an entry that differs in type or shape; ``None`` if there is none."""
    for name in (*first, *other):
        forms = [form_of(one[name]) if name in one else "missing" for one in (first, other)]
        if forms[0] != forms[1]:
            return f"{name} is {forms[0]} in one network and {forms[1]} in another"
    return None
