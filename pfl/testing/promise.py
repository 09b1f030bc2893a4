"""Promises, and the method that is held to them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from pfl.core.client import Client
from pfl.core.seeds import scoped
from pfl.core.task import Task
from pfl.core.types import ClientInfo
from pfl.testing.toy import SIZES, ToyData, blobs, mlp
from pfl.training.context import DROPOUTS
from pfl.training.declaration import MethodError

SGD = partial(torch.optim.SGD, lr=0.05)
MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)

Net: TypeAlias = Callable[[], nn.Module]
Formula: TypeAlias = Callable[[Client, ClientInfo], tuple[int, int]]


class BrokenPromiseError(AssertionError):
    """A method breaks a promise; the message says which one, and where.

    Attributes:
        finding: What was found, without the promise.
    """

    def __init__(self, finding: str, promise: str = "") -> None:
        super().__init__(f"{promise}: {finding}" if promise else finding)
        self.finding = finding


@dataclass(frozen=True)
class Subject:
    """A method under test.

    Attributes:
        method: Its class.
        build: Makes the method from a network and options, which it hands on to the constructor;
            the class itself unless the constructor wants more.
        floats: How many floats a participant receives and sends in a round; ``None`` if there is no
            formula to compare with.
        task: What is predicted; classification if not given.
    """

    method: type[Client]
    build: Callable[..., Client] | None = None
    floats: Formula | None = None
    task: Task | None = None

    def data(self, sizes: Sequence[int] = SIZES) -> ToyData:
        """Return clients with so many training samples, for the task."""
        return blobs(sizes, task=self.task)

    def module(self, net: Net = mlp, **options: Any) -> Client:
        """Return the method on a network, trained by plain SGD unless the options say otherwise."""
        make = self.build or self.method
        # Weights that a constructor draws are the same in every module.
        with scoped(0):
            return make(net(), **{"optimizer": SGD, **self._told(), **options})

    def _told(self) -> dict[str, Any]:
        return {} if self.task is None else {"task": self.task}

    def with_momentum(self, net: Net = mlp, **options: Any) -> Client:
        """Return the method with momentum and weight decay, or without where it refuses them."""
        module = self.module(net, **{"optimizer": MOMENTUM, **options})
        try:
            module.configure_optimizers()
        except ValueError:
            module = self.module(net, **options)
        return module


@dataclass(frozen=True)
class Promise:
    """One promise that every method makes.

    Attributes:
        name: Of the function that examines it.
        sentence: What is promised, as a clause.
        examine: Raises what it finds.
        applies: Whether the promise says anything about a method.
    """

    name: str
    sentence: str
    examine: Callable[[Subject], None]
    applies: Callable[[Subject], bool]

    def hold(self, subject: Subject) -> bool:
        """Hold a method to the promise; returns whether it says anything about the method.

        Raises:
            BrokenPromiseError: The method breaks it.
        """
        try:
            with _quiet():
                if not self.applies(subject):
                    return False
                self.examine(subject)
        except (BrokenPromiseError, MethodError) as error:
            raise self._broken(subject, str(error)) from None
        except Exception as error:
            first = str(error).partition("\n")[0]
            raise self._broken(subject, f"{type(error).__name__}: {first}") from error
        return True

    def _broken(self, subject: Subject, finding: str) -> BrokenPromiseError:
        name = subject.method.__name__
        return BrokenPromiseError(finding, f"{name} breaks the promise that {self.sentence}")


def promise(
    sentence: str, applies: Callable[[Subject], bool] = lambda subject: True
) -> Callable[[Callable[[Subject], None]], Promise]:
    """Make a promise of a function that examines it.

    Args:
        sentence: What is promised, as a clause that follows "the promise that".
        applies: As in :class:`Promise`.
    """

    def made(examine: Callable[[Subject], None]) -> Promise:
        return Promise(examine.__name__, sentence, examine, applies)

    return made


def vectorizable(subject: Subject) -> bool:
    """Tell whether a method claims that its clients can be stacked, to the same numbers."""
    module = subject.module()
    return module.vectorizable and not has_dropout(module)


def has_dropout(module: nn.Module) -> bool:
    """Tell whether a method has dropout, for which an engine lends torch's default stream."""
    return any(isinstance(child, DROPOUTS) for child in module.modules())


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings about tiny clients, and the Trainer's remarks."""
    remarks = logging.getLogger("lightning.pytorch")
    level = remarks.level
    remarks.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        remarks.setLevel(level)
