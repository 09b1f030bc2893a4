"""Arithmetic on state dicts: pure functions of names and tensors."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn

from pfl.core.devices import on_host, widest
from pfl.core.types import Broadcast, Inputs, Patterns, State, Upload
from pfl.disk.container import octets

Name = TypeVar("Name")
# Entries of several states, by the name of the state and that of the entry.
Entries: TypeAlias = dict[tuple[str, str], Tensor]
ReturnT = TypeVar("ReturnT")

# Numbers up to which an operation has one op thread.
_BLOCK = 2**15

RESIDUAL = "residual:"
"""Prefix of what steps of the uplink keep; no entry of a module has a colon."""


def call_with(
    module: nn.Module, state: State, call: Callable[..., ReturnT], *arguments: object
) -> ReturnT:
    """Call a function while other tensors replace a module's entries.

    Args:
        module: The module; its own entries are restored afterwards.
        state: The replacing entries, by their names in the module's state dict; the call may change
            them in place.
        call: The function, usually a method of the module.
        arguments: Arguments of the function.

    Raises:
        KeyError: The module has no entry of a given name.
        RuntimeError: The call replaces an entry, whose new values would be lost.
    """
    # torch.func.functional_call would take most of the time of a client's methods in a stack.
    places = [_place(module, name) for name in state]
    replaced = [entries[leaf] for entries, leaf in places]
    try:
        for (entries, leaf), value in zip(places, state.values(), strict=True):
            entries[leaf] = value
        result = call(*arguments)
        for (entries, leaf), (name, value) in zip(places, state.items(), strict=True):
            if entries.get(leaf) is not value:
                raise RuntimeError(f"the entry {name!r} is assigned anew, not written in place")
        return result
    finally:
        for (entries, leaf), value in zip(places, replaced, strict=True):
            entries[leaf] = value


def each(change: Callable[[Tensor], Tensor], value: Inputs) -> Inputs:
    """Apply a function to a tensor, or to each of several named tensors."""
    if isinstance(value, Tensor):
        return change(value)
    return {name: change(item) for name, item in value.items()}


def joined(join: Callable[[list[Tensor]], Tensor], values: Sequence[Inputs]) -> Inputs:
    """Join tensors, or the tensors of each name, with a function such as ``torch.cat``."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    if tensors:
        return join(tensors)
    named = [value for value in values if not isinstance(value, Tensor)]
    return {name: join([value[name] for value in named]) for name in named[0]}


def matches(name: str, patterns: Patterns) -> bool:
    """Return ``True`` if a name fits one of the shell-style patterns (``"net.head.*"``)."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def constants(module: nn.Module) -> State:
    """Return the non-persistent buffers, which are not trained, sent or kept."""
    entries = module.state_dict()
    return {name: value for name, value in module.named_buffers() if name not in entries}


def select(state: Mapping[str, Tensor], patterns: Patterns) -> State:
    """Select the entries whose names match; the tensors are not copied."""
    return {name: value for name, value in state.items() if matches(name, patterns)}


def clone(state: Mapping[str, Tensor]) -> State:
    """Copy the entries; the copies share no storage and carry no graph."""
    return {name: value.detach().clone() for name, value in state.items()}


def to(state: Mapping[str, Tensor], device: torch.device | str) -> State:
    """Return the entries on a device; an entry already there is not copied."""
    return {name: value.to(device) for name, value in state.items()}


def compact(state: Mapping[Name, Tensor]) -> dict[Name, Tensor]:
    """Copy the entries that are views of a larger storage; return the others as they are.

    ``torch.save`` writes whole storages.
    """
    return {
        name: value.clone() if value.untyped_storage().nbytes() > value.nbytes else value
        for name, value in state.items()
    }


def entry(module: nn.Module, name: str) -> Tensor:
    """Return one entry of a module's state dict, without building the whole dict.

    Raises:
        KeyError: The module has no entry of this name.
    """
    entries, leaf = _place(module, name)
    return entries[leaf].detach()


def _place(module: nn.Module, name: str) -> tuple[dict[str, Tensor], str]:
    """Return the dictionary of a submodule that has an entry, and its name in there."""
    *owners, leaf = name.split(".")
    owner: nn.Module | None = module
    for child in owners:
        owner = None if owner is None else owner._modules.get(child)
    if owner is not None:
        for entries in (owner._parameters, owner._buffers):
            if entries.get(leaf) is not None and leaf not in owner._non_persistent_buffers_set:
                return cast("dict[str, Tensor]", entries), leaf
    raise KeyError(f"{type(module).__name__} has no entry {name!r}")


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensors into others of the same shapes, in one call."""
    if targets:
        with torch.no_grad():
            torch._foreach_copy_(targets, sources)


def assign(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Write values into a module's parameters and buffers, in place.

    Raises:
        KeyError: The module has no entry of a given name.
    """
    entries = {name: entry(module, name) for name in values}
    copy_all(list(entries.values()), list(values.values()))


def averages(value: Tensor) -> bool:
    """Return whether a tensor's values can be averaged: real and complex numbers, not integers."""
    return value.is_floating_point() or value.is_complex()


def as_real(value: Tensor) -> Tensor:
    """Return real numbers as they are, and complex ones as pairs along a last axis of two."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _as_complex(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers in a type, whose pairs :func:`as_real` made if it is complex."""
    return torch.view_as_complex(value.to(dtype.to_real())) if dtype.is_complex else value.to(dtype)


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor], scale: float = 1.0) -> State:
    """Compute ``a + scale * b`` for the names of ``a``; integer entries keep the value of ``a``.

    Raises:
        KeyError: ``b`` lacks a name of ``a``.
    """
    return {
        name: value + scale * b[name] if averages(value) else value.clone()
        for name, value in a.items()
    }


def subtract(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> State:
    """Compute ``a - b`` for the names of ``a``; see :func:`add`."""
    return add(a, b, scale=-1.0)


def weighted_mean(states: Sequence[Mapping[str, Tensor]], weights: Tensor) -> State:
    """Compute ``sum_i weights[i] * states[i]`` by :class:`RunningMean`, adding in the order given.

    Args:
        states: States with the same names and shapes, at least one.
        weights: (len(states),) weights that sum to one.

    Raises:
        ValueError: There is no state, the number of weights differs from that of states, or one
            state has other names than the first.
    """
    if not states or len(states) != len(weights):
        raise ValueError(f"{len(states)} states cannot be averaged with {len(weights)} weights")
    mean = RunningMean()
    for state, weight in zip(states, weights, strict=True):
        mean.add(state, float(weight))
    return mean.value()


def _blocks(total: Tensor, value: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield two tensors in blocks, which on a CPU stay in its caches when they are converted.

    Operations on a block take one op thread: other clients may be using the cores, and several op
    threads would wait for each other.
    """
    if on_host(total.device) and total.is_contiguous() and value.is_contiguous():
        yield from zip(
            torch.split(total.view(-1), _BLOCK), torch.split(value.view(-1), _BLOCK), strict=True
        )
    else:
        yield total, value


class RunningMean:
    """A weighted mean of states that are added one after another, and need not be kept.

    Sums are computed in float64 (float32 on devices without float64), so that averaging equal
    states returns exactly that state. Of complex numbers both parts are averaged. Integers are not
    averaged; the largest is used.
    """

    def __init__(self) -> None:
        self._sums: State | None = None
        self._types: dict[str, torch.dtype] = {}

    def add(self, state: Mapping[str, Tensor], weight: float) -> None:
        """Add a state.

        Args:
            state: Has the names and shapes of the first one.
            weight: Its weight; see :meth:`value`.

        Raises:
            ValueError: The state has other names or shapes than the first; it is not added.
        """
        if self._sums is None:
            self._types = {name: value.dtype for name, value in state.items()}
            self._sums = {
                name: torch.empty_like(as_real(value), dtype=widest(value.device))
                if averages(value)
                else value.clone()
                for name, value in state.items()
            }
            for name, total in self._sums.items():
                if total.is_floating_point():
                    for some, part in _blocks(total, as_real(state[name])):
                        torch.mul(part.to(total.dtype), weight, out=some)
            return
        if apart := state.keys() ^ self._sums.keys():
            raise ValueError(f"{min(apart)!r} cannot be averaged: not every state has it")
        for name, total in self._sums.items():
            if as_real(state[name]).shape != total.shape:
                raise ValueError(f"{name!r} cannot be averaged: its shapes differ")
        for name, total in self._sums.items():
            if total.is_floating_point():
                for some, part in _blocks(total, as_real(state[name])):
                    some.add_(part.to(total.dtype), alpha=weight)
            else:
                torch.maximum(total, state[name], out=total)

    def value(self, total: float = 1.0) -> State:
        """Return the mean, in the types of the first state.

        Args:
            total: The sum of all weights, by which sums are divided unless it is one.

        Raises:
            ValueError: No state was added.
        """
        if self._sums is None:
            raise ValueError("there is no state to average")
        sums = self._sums
        if total != 1:
            sums = {n: v / total if v.is_floating_point() else v for n, v in sums.items()}
        return {name: _as_complex(value, self._types[name]) for name, value in sums.items()}


def residuals_of(kept: State) -> State:
    """Select what steps of the uplink keep with a client from its kept state.

    Such an entry has the shape of a module's entry, and its name after :data:`RESIDUAL`.
    """
    return {name: value for name, value in kept.items() if name.startswith(RESIDUAL)}


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """Sum at least one named term, from left to right."""
    first, *rest = terms.values()
    for term in rest:
        first = first + term
    return first


def tensors(values: Mapping[str, Tensor] | Tensor) -> list[Tensor]:
    """Return the tensors of a batch's inputs, or of a state."""
    return [values] if isinstance(values, Tensor) else [*values.values()]


def form_of(value: Tensor) -> str:
    """Return the type and the shape of a tensor in words.

    Example:
        >>> form_of(torch.zeros(2, 3))
        'float32[2, 3]'
    """
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def nbytes(values: Mapping[str, Tensor] | Tensor) -> int:
    """Count the bytes of all entries."""
    return sum(value.numel() * value.element_size() for value in tensors(values))


def message_size(message: Broadcast | Upload) -> int:
    """Return the bytes of a message: its length if it is encoded, or those of its tensors."""
    if message.encoded is not None:
        return message.encoded
    return nbytes(message.shared) + nbytes(message.extra)


def equal(one: Tensor, other: Tensor) -> bool:
    """Return ``True`` for the same form and the same values, of which those that are NaN count."""
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
        return False
    return torch.equal(one, other) or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def finite(state: Mapping[str, Tensor]) -> bool:
    """Return ``True`` if all real and complex numbers are finite (one synchronisation)."""
    values = [as_real(value) for value in state.values() if averages(value)]
    # If a sum is finite, all its terms are; this costs a fraction of checking each term. A sum of
    # finite terms can overflow, so an infinite sum is checked term by term.
    if not values or together([value.sum().float() for value in values]).isfinite().all():
        return True
    return bool(together([value.isfinite().all() for value in values]).all())


def each_sound(
    states: Sequence[Mapping[str, Tensor]], sent: Sequence[Mapping[str, Tensor]]
) -> list[bool]:
    """Return whether all of some states are finite, and what is sent beside each is moderate.

    One synchronisation if all are. See :func:`finite` and :func:`moderate`.
    """
    sums = [
        [*(as_real(value).sum().float() for value in state.values()), *_scaled_norms(message)]
        for state, message in zip(states, sent, strict=True)
    ]
    sound = together([together(row or [torch.zeros(())]).sum() for row in sums]).isfinite().tolist()
    return [
        known or (finite(state) and moderate(message))
        for known, state, message in zip(sound, states, sent, strict=True)
    ]


def moderate(state: Mapping[str, Tensor]) -> bool:
    """Return ``True`` if the norm of each entry of real or complex numbers is below 2**64 (1.8e19).

    Then squares of its numbers are finite in float32, so that a server can compute distances and
    variances, and one client cannot make the others' next round infinite.
    """
    norms = _scaled_norms(state)
    return not norms or bool(together(norms).isfinite().all())


def _scaled_norms(state: Mapping[str, Tensor]) -> list[Tensor]:
    """Return a number for each floating-point entry, finite if its norm is below 2**64."""
    values = [value for value in state.values() if value.numel() and averages(value)]
    return [norm.float() * 2.0**64 for norm in map(torch.linalg.vector_norm, values)]


def together(numbers: Sequence[Tensor]) -> Tensor:
    """Stack n single numbers into (n,), n at least 1, off the host if any of them is.

    An optimiser's counters may be on the host.
    """
    devices = [number.device for number in numbers]
    device = next((device for device in devices if not on_host(device)), devices[0])
    return torch.stack([number.to(device) for number in numbers])


def named(value: Any, name: str = "", numbers: bool = True) -> State:  # noqa: ANN401
    """Return all tensors in nested records, dicts and sequences, by their path.

    Args:
        value: The records, dicts and sequences.
        name: Path of the value.
        numbers: Whether numbers are returned too, as tensors.

    Example:
        >>> named({"kept": [{"w": torch.zeros(2)}], "round": 3}).keys()
        dict_keys(['kept.0.w', 'round'])
    """
    if isinstance(value, Tensor):
        return {name: value}
    if numbers and isinstance(value, bool | int | float):
        return {name: torch.tensor(value, dtype=torch.float64)}
    tensors: State = {}
    for key, item in _items(value):
        tensors |= named(item, f"{name}.{key}" if name else key, numbers)
    return tensors


def _items(value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    if isinstance(value, Mapping):
        yield from ((str(key), item) for key, item in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        yield from value._asdict().items()
    elif isinstance(value, list | tuple):
        yield from ((str(index), item) for index, item in enumerate(value))
    elif is_dataclass(value):
        yield from ((item.name, getattr(value, item.name)) for item in fields(value))


def flattened(states: Mapping[str, Mapping[str, Tensor]]) -> Entries:
    """Return the entries of several states in one dictionary."""
    return {(part, name): v for part, state in states.items() for name, v in state.items()}


def unflattened(entries: Entries) -> Mapping[str, State]:
    """Return the states that :func:`flattened` joined; one without entries is empty."""
    states: dict[str, State] = defaultdict(dict)
    for (part, name), value in entries.items():
        states[part][name] = value
    return states


def fingerprint(states: Iterable[Mapping[str, Tensor]]) -> str:
    """Return a hash of names, shapes, types and every bit of the values, in the order given."""
    return _hash(states)[:16]


def digest(state: Mapping[str, Tensor]) -> str:
    """Return the whole SHA-256 of one state, in hexadecimal digits; see :func:`fingerprint`."""
    return _hash([state])


def _hash(states: Iterable[Mapping[str, Tensor]]) -> str:
    hashed = hashlib.sha256()
    for state in states:
        for name in sorted(state):
            value = state[name]
            hashed.update(f"{name}:{value.dtype}:{tuple(value.shape)};".encode())
            hashed.update(octets(value).numpy().tobytes())
    return hashed.hexdigest()
