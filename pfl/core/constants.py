"""Constant entries of a network: what is not trained, sent or kept.

A constant is a buffer outside the state dict. Engines, servers, optimisers and copies of the state
therefore do not see it, without a rule of their own. While the network computes, what were
parameters are parameters again, as its own code may ask for them (``next(self.parameters())``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pfl.core.batch_norms import batch_norms
from pfl.core.per_client import networks
from pfl.core.state import equal, matches
from pfl.core.types import Patterns

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def hold_constant(net: nn.Module, names: Collection[str]) -> None:
    """Make parameters and buffers of a network constant, in place.

    Args:
        net: The network.
        names: Their names within it.

    Raises:
        ValueError: A parameter among them has a further name, which is not.
    """
    found, names = list[tuple[dict[str, Any], dict[str, Any], str]](), {*names}
    _check_tied(net, names)
    for home, child in net.named_modules():
        if isinstance(child, torch.jit.ScriptModule):
            continue  # Its entries cannot be moved, so that they travel.
        stem = f"{home}." if home else ""
        for table in (child._parameters, child._buffers):
            for name in [name for name in table if f"{stem}{name}" in names]:
                child._non_persistent_buffers_set.add(name)
                if table is child._parameters:
                    # Not register_buffer: a module may answer for others that have the name. The
                    # same object, as a recurrent layer also has its weights in a list.
                    child._buffers[name] = table.pop(name).requires_grad_(False)
                    found.append((table, child._buffers, name))
    if found:
        for part in (net, *net.children()):
            mine = {id(child._buffers) for child in part.modules()}
            if own := [place for place in found if id(place[1]) in mine]:
                loan = Loan(own)
                part.register_forward_pre_hook(loan.give, prepend=True)
                part.register_forward_hook(loan.take, always_call=True)


def _check_tied(net: nn.Module, names: Collection[str]) -> None:
    """Refuse to freeze a parameter under one of its names, as it would be under all of them.

    Raises:
        ValueError: There is such a parameter.
    """
    under = dict[int, dict[bool, str]]()
    for name, value in net.named_parameters(remove_duplicate=False):
        under.setdefault(id(value), {})[name in names] = name
    for one in under.values():
        if len(one) == 2:
            raise ValueError(
                f"{one[True]!r} is to be frozen and {one[False]!r} is not, but they are one "
                "tensor: freeze both or none of them, or give each part weights of its own"
            )


def hold_frozen(net: nn.Module, stays: Patterns = ()) -> None:
    """Make constant what training does not change: frozen parameters and their statistics.

    Args:
        net: The network, or :class:`pfl.core.per_client.Variants` of it; parameters with
            ``requires_grad=False`` are frozen.
        stays: Patterns of names that a client keeps, which are therefore no constants.
    """
    for one in networks(net):
        hold_constant(one, [name for name in _not_trained(one) if not matches(name, stays)])


def detach_computed(net: nn.Module) -> None:
    """Detach what a network computes before each pass, in place: such tensors have no copies.

    ``torch.nn.utils.prune`` and the older ``weight_norm`` and ``spectral_norm`` leave the weight
    that they last computed in the module.
    """
    for part in net.modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                vars(part)[name] = value.detach()


def _not_trained(net: nn.Module) -> Iterator[str]:
    """Yield the names of frozen parameters, and of statistics that stay in eval mode with them."""
    modes = [(child, child.training) for child in net.modules()]
    net.train()
    still = {
        name
        for name in batch_norms(net)
        if not (norm := net.get_submodule(name)).training
        and not any(value.requires_grad for value in norm.parameters())
    }
    for child, mode in modes:
        child.training = mode
    for name, value in net.named_parameters(remove_duplicate=False):
        if not value.requires_grad:
            yield name
    yield from (name for name, _ in net.named_buffers() if name.rpartition(".")[0] in still)


class Loan:
    """Gives the modules of a network their constants back as parameters, while it computes.

    Attributes:
        places: The table of parameters, that of buffers, and the name of each constant.
    """

    def __init__(self, places: list[tuple[dict[str, Any], dict[str, Any], str]]) -> None:
        self.places = places
        self._given: list[list[tuple[dict[str, Any], dict[str, Any], str, Tensor]]] = []

    def give(self, *_: object) -> None:
        """Make constants parameters, unless the module around them has done so."""
        given = [
            (parameters, buffers, name, buffers.pop(name))
            for parameters, buffers, name in self.places
            if name in buffers
        ]
        for parameters, _buffers, name, value in given:
            parameters[name] = value
        self._given.append(given)

    def take(self, *_: object) -> None:
        """Make them constants again."""
        for parameters, buffers, name, _value in self._given.pop():
            buffers[name] = parameters.pop(name)


def frozen_size(net: nn.Module) -> int:
    """Count the numbers in parameters that are constant."""
    return sum(value.numel() for value in _frozen_values(net).values())


def shared_memory(net: nn.Module) -> dict[int, Tensor]:
    """Return copies of the parameters that are constant, by the identities that deepcopy asks for.

    A copy of a network is then not one of its frozen backbone.
    """
    return {
        key: nn.Parameter(lazy_copy(value), requires_grad=False)
        for key, value in _frozen_values(net).items()
        if type(value) is nn.Parameter
    }


def copied(net: ModuleT) -> ModuleT:
    """Return a deep copy of a network, for which what is frozen takes no memory of its own.

    Only if one of the two is written to, its frozen parameters do.
    """
    return copy.deepcopy(net, {**shared_memory(net)})


def lazy_copy(value: Tensor) -> Tensor:
    """Return a copy that has the memory of its original until one of the two is written to."""
    plain = value.layout is torch.strided and not value.is_inference()
    return torch._lazy_clone(value.detach()) if plain else value.detach().clone()


def equal_copies(one: Tensor, other: Tensor) -> bool:
    """Return whether two copies of :func:`lazy_copy` are equal, read only if either was written to.

    See :func:`pfl.core.state.equal`.
    """
    if one.layout is other.layout is torch.strided and _form(one) == _form(other):
        return True
    return equal(one, other)


def _form(value: Tensor) -> tuple[Any, ...]:
    """Return what tensors of equal values have in common that lie in one place."""
    # data_ptr would give a lazy copy memory of its own.
    place = torch._C._data_address(value)  # type: ignore[attr-defined]
    return place, value.device, value.dtype, value.shape, value.stride()


def is_frozen(net: nn.Module, name: str) -> bool:
    """Return whether a buffer of a network is a constant that was a parameter."""
    owner, _, leaf = name.rpartition(".")
    table = net.get_submodule(owner)._buffers
    return any(table is buffers and leaf == one for buffers, one in _frozen(net))


def _frozen_values(net: nn.Module) -> dict[int, Tensor]:
    return {id(buffers[name]): buffers[name] for buffers, name in _frozen(net)}


def _frozen(net: nn.Module) -> Iterator[tuple[dict[str, Any], str]]:
    for part in net.modules():
        for loan in _loans(part):
            yield from ((buffers, name) for _, buffers, name in loan.places)


def _loans(part: nn.Module) -> list[Loan]:
    hooks: list[Callable[..., Any]] = [*part._forward_pre_hooks.values()]
    owners = (getattr(hook, "__self__", None) for hook in hooks)
    return [owner for owner in owners if isinstance(owner, Loan)]


@contextmanager
def as_given(net: nn.Module) -> Iterator[None]:
    """Let a network have its constants as parameters, while its own code runs."""
    loans = _loans(net)
    for loan in loans:
        loan.give()
    try:
        yield
    finally:
        for loan in reversed(loans):
            loan.take()


@contextmanager
def as_held(net: nn.Module) -> Iterator[None]:
    """Let a network have its constants as constants, within a scope of :func:`as_given`."""
    loans = _loans(net)
    for loan in reversed(loans):
        loan.take()
    try:
        yield
    finally:
        for loan in loans:
            loan.give()
