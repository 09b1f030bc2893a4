"""Promises, and the method under test."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, cast

import torch
from torch import nn

from pfl.core.client import ClientModule
from pfl.core.failure import NonFiniteError, error_line, line_of
from pfl.core.foreign import Need, known
from pfl.core.seeds import scoped
from pfl.core.state import named
from pfl.core.task import Task
from pfl.core.types import ClientInfo
from pfl.testing.compare import difference
from pfl.testing.toy import SIZES, ToyData, blobs, mlp, normed
from pfl.training.context import drops_out
from pfl.training.declaration import MethodError

SGD = partial(torch.optim.SGD, lr=0.05)
MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)

Net: TypeAlias = Callable[[], nn.Module]
Formula: TypeAlias = Callable[[ClientModule, ClientInfo], tuple[int, int]]
# Networks on which promises are checked.
ONE: Mapping[str, Net] = {"": mlp}
BOTH: Mapping[str, Net] = {**ONE, " (with batch norm)": normed}


class BrokenPromiseError(AssertionError):
    """A method breaks a promise; the message names it and the place.

    Attributes:
        finding: The finding, without the promise.
    """

    def __init__(self, finding: str, promise: str = "") -> None:
        super().__init__(f"{promise}: {finding}" if promise else finding)
        self.finding = finding


class RaisedError(BrokenPromiseError):
    """A method raised an error while a promise was examined."""


@dataclass(frozen=True)
class Subject:
    """A method under test.

    Attributes:
        method: The class of the method.
        build: Builds the method from a network and options, which it passes on to the constructor;
            ``None`` uses the class itself, on a network that has what the method needs.
        floats: Formula for the numbers of floats that a participant receives and sends in a round;
            ``None`` if there is none.
        task: The task; classification by default.
        net: Makes the network.
    """

    method: type[ClientModule]
    build: Callable[..., ClientModule] | None = None
    floats: Formula | None = None
    task: Task | None = None
    net: Net = mlp

    def data(self, sizes: Sequence[int] = SIZES) -> ToyData:
        """Return data for the task, with these numbers of training samples."""
        return blobs(sizes, task=self.task)

    def module(self, **options: Any) -> ClientModule:
        """Return the method on its network; its optimiser is plain SGD unless options differ."""
        make = self.build or self._on_suited
        # Gives every module the same weights, if the constructor draws them.
        task = {} if self.task is None else {"task": self.task}
        with scoped(0):
            return make(self.net(), **{"optimizer": SGD, **task, **options})

    def _on_suited(self, net: nn.Module, **options: Any) -> ClientModule:
        return self.method(suited(self.method, net), **options)

    def with_momentum(self) -> ClientModule:
        """Return the method with momentum and weight decay, or without if it refuses them."""
        module = self.module(optimizer=MOMENTUM)
        try:
            module.configure_optimizers()
        except ValueError:
            module = self.module()
        return module


def suited(method: type[ClientModule], net: nn.Module) -> nn.Module:
    """Return a network that has what a method declares to need, made from a small one.

    Args:
        method: The class of the method.
        net: A network with a backbone and a head, which may become a part of the other one.
    """
    while missing := lacking(method, net):
        net = cast("Callable[[nn.Module], nn.Module]", missing[0].made)(net)
    return net


def lacking(method: type[ClientModule], net: nn.Module) -> list[Need]:
    """Return what a method declares to need and a network can be made to have, but has not."""
    needs = getattr(method, "needs", ())
    # Where they depend on arguments, the class alone declares none.
    found = map(known, needs if isinstance(needs, tuple) else ())
    return [need for need in found if need.made is not None and not need.has(net)]


@dataclass(frozen=True)
class Promise:
    """One promise that every method makes.

    Attributes:
        name: Name of the function that checks it.
        sentence: The promise, as a clause.
        examine: Checks a method; raises an error if the promise is broken.
        applies: Returns whether the promise applies to a method.
        nets: The networks on which a method is checked, by the suffix of messages about them.
    """

    name: str
    sentence: str
    examine: Callable[[Subject], None]
    applies: Callable[[Subject], bool]
    nets: Mapping[str, Net]

    def hold(self, subject: Subject) -> bool:
        """Check a method; return ``False`` if the promise does not apply to it.

        Raises:
            BrokenPromiseError: The method breaks it.
            RaisedError: The method raises an error; the message says where.
        """
        name, about = subject.method.__name__, ""
        try:
            with _quiet():
                if not self.applies(subject):
                    return False
                for about, net in self.nets.items():  # noqa: B007 (read where an error is told)
                    self.examine(replace(subject, net=net))
        except (BrokenPromiseError, MethodError, NonFiniteError) as error:
            context = f"{name} breaks the promise that {self.sentence}"
            raise BrokenPromiseError(f"{error}{about}", context) from None
        except Exception as error:
            context = f"{name} raises an error in the check that {self.sentence}"
            raise RaisedError(f"{error_line(error)}{line_of(error)}{about}", context) from error
        return True


def promise(
    sentence: str,
    applies: Callable[[Subject], bool] = lambda subject: True,
    nets: Mapping[str, Net] = ONE,
) -> Callable[[Callable[[Subject], None]], Promise]:
    """Turn a function that checks a promise into a :class:`Promise`.

    Args:
        sentence: The promise, as a clause that follows "the promise that".
        applies: As in :class:`Promise`.
        nets: As in :class:`Promise`.
    """

    def made(examine: Callable[[Subject], None]) -> Promise:
        return Promise(examine.__name__, sentence, examine, applies, nets)

    return made


def check_same(ours: Any, theirs: Any, finding: str) -> None:  # noqa: ANN401
    """Compare all tensors and numbers in two values.

    Args:
        ours: A value.
        theirs: Another one.
        finding: The message if they differ, with ``{name}`` or ``{name!r}`` for the first such
            entry.

    Raises:
        BrokenPromiseError: They differ in any bit.
    """
    if name := difference(named(ours), named(theirs)):
        raise BrokenPromiseError(finding.replace("{name!r}", repr(name)).replace("{name}", name))


def vectorizable(subject: Subject) -> bool:
    """Return ``True`` if a method is declared vectorizable and has no dropout.

    Masks depend on the seeds of clients, which functions called one by one do not have.
    """
    module = subject.module()
    return module.vectorizable and not has_dropout(module)


def has_dropout(module: nn.Module) -> bool:
    """Return ``True`` if a module has dropout, which draws from torch's default stream."""
    return any(map(drops_out, module.modules()))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings about tiny clients, and the Trainer's log messages."""
    remarks = logging.getLogger("lightning.pytorch")
    level = remarks.level
    remarks.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        remarks.setLevel(level)
