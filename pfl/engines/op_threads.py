"""The number of op threads: how many threads compute one operation of torch on a CPU.

It changes how sums are rounded, so it depends on the network and on the user, never on timings or
the machine's load. A resumed run keeps its number.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from pfl.core.data_view import an_input
from pfl.core.devices import on_host
from pfl.engines import cores
from pfl.training.context import Context

SHORT_OPERATION = 20_000
"""Multiplications per sample, on average over the operations that multiply, up to which they are
too short for several op threads."""

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# Torch's own number, unless the user has set one before.
_DEFAULT = torch.get_num_threads()


class Multiplications(NamedTuple):
    """The multiplications of a network for one sample.

    Attributes:
        total: Of all operations.
        operation: Of an operation that multiplies, on average.
    """

    total: int
    operation: float


@dataclass(frozen=True)
class OpThreads:
    """A number of op threads, and the reason for it."""

    count: int
    why: str

    def __str__(self) -> str:
        """Return a line for the header of a run."""
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        if self.count == 1 or load <= cores.usable() + 1:
            return f"{self.count}, {self.why}"
        return (
            f"{self.count}, {self.why}; {load:.0f} programs want {cores.usable()} cores now, so "
            "OMP_NUM_THREADS=1 may be faster"
        )


def choose(context: Context, began: int | None = None) -> OpThreads:
    """Choose the number of op threads of a run.

    Args:
        context: Context with the network and the clients' data.
        began: The number that a resumed run started with; ``None`` if unknown.
    """
    now = torch.get_num_threads()
    if not on_host(context.fabric.device):
        return OpThreads(now, "torch's number")
    if (by_user := _chosen(now)) is not None:
        differs = f"; the run began with {began}: the rounds from here may differ in last bits"
        return OpThreads(now, by_user + (differs if began not in (None, now) else ""))
    if began is not None:
        return OpThreads(began, "as the run began")
    if multiplications(context).operation <= SHORT_OPERATION:
        return OpThreads(1, "as the network's operations are too short for several")
    return OpThreads(now, "torch's number")


@contextmanager
def using(count: int) -> Iterator[None]:
    """Compute with a number of op threads in this scope."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def multiplications(context: Context) -> Multiplications:
    """Count the network's multiplications for one sample of the first client with data.

    They are unknown, and taken to be many, of a network that trains itself.
    """
    if context.own_nets:
        return Multiplications(2**62, math.inf)
    context.set_mode(None)
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = _Whole()  # type: ignore[assignment]
    calls = _Calls()  # type: ignore[no-untyped-call]
    with torch.inference_mode(), context.fabric.autocast(), calls, counter:
        context.module(an_input(context.data))
    total = counter.get_total_flops() // 2
    return Multiplications(total, total / max(1, calls.counted))


class _Whole:
    """Stands in for torch's tracker of modules: all operations are those of the whole network.

    That tracker asks the inputs of modules for their gradients, which parameters do not have here
    that other weights are computed from (``torch.nn.utils.parametrize``).
    """

    parents = frozenset({"Global"})

    def __enter__(self) -> None:
        """Begin to count."""

    def __exit__(self, *_: object) -> None:
        """End."""


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that multiply, as seen by torch's counter of multiplications.

    It is entered before that counter, and so receives the operations after decomposition.
    """

    counted = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Run an operation."""
        self.counted += func.overloadpacket in flop_registry
        return func(*args, **(kwargs or {}))


def _chosen(now: int) -> str | None:
    """Return how the user set the number; ``None`` if it is torch's default."""
    named = [name for name in _VARIABLES if os.environ.get(name)]
    if now != _DEFAULT:
        return "set by torch.set_num_threads"
    return f"set by {named[0]}" if named else None
