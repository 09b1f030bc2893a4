"""Comparison of entries, attributes and random streams before and after a call."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pfl.core.batch_norms import norm_statistics
from pfl.core.client import ClientModule
from pfl.core.state import clone
from pfl.core.types import State
from pfl.testing.compare import difference
from pfl.testing.promise import BrokenPromiseError

# Entries are compared separately, and logged values are not state.
_NO_ATTRIBUTES = ("_parameters", "_buffers", "_modules", "_logged")


@contextmanager
def leaves_alone(
    who: str, module: ClientModule, function: Callable[..., Any], norms: bool = False
) -> Iterator[None]:
    """Check that calls in this scope change neither entries nor attributes of a module.

    ``who`` names the function in messages. Variables that it closes over must not change either;
    ``norms`` allows changes of the running statistics of batch norms.

    Raises:
        BrokenPromiseError: Something has changed.
    """
    entries = _entries(module, norms)
    before, marks = clone(entries), _marks(module, function)
    yield
    if name := difference(before, _entries(module, norms)):
        raise BrokenPromiseError(f"{who} changes the entry {name!r}")
    after = _marks(module, function)
    for name in {**marks, **after}:
        if marks.get(name) != after.get(name):
            raise BrokenPromiseError(f"{who} changes {name}")


def _entries(module: nn.Module, norms: bool) -> State:
    left_out = norm_statistics(module) if norms else {}
    entries = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: value for name, value in entries.items() if name not in left_out}


def _marks(module: nn.Module, function: Callable[..., Any]) -> dict[str, object]:
    """Return marks of a module's attributes and a function's variables, by their names."""
    marks: dict[str, object] = {}
    for path, child in module.named_modules():
        for name, value in vars(child).items():
            if name not in _NO_ATTRIBUTES:
                owner = f"{path}." if path else ""
                marks[f"the attribute '{owner}{name}'"] = _mark(value)
    marks |= {f"the variable {name!r}": _mark(value) for name, value in _held(function).items()}
    return marks


def _held(function: Callable[..., Any]) -> dict[str, object]:
    """Return the variables that a function closes over, or the arguments of a partial."""
    if isinstance(function, partial):
        positional = {str(index): value for index, value in enumerate(function.args)}
        return {**positional, **function.keywords, **_held(function.func)}
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars if cells else ()
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


def _mark(value: object, depth: int = 3) -> object:
    """Return a mark that changes if a value is replaced or modified, down to some depth."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, dict) and depth:
        return tuple((key, _mark(item, depth - 1)) for key, item in value.items())
    if isinstance(value, list | tuple | set | deque) and depth:
        return tuple(_mark(item, depth - 1) for item in value)
    return id(value)


def streams() -> dict[str, object]:
    """Return the states of the global random streams, by their owner in messages."""
    numpy = np.random.get_state(legacy=False)["state"]
    return {
        "torch's": torch.get_rng_state().numpy().tobytes(),
        "NumPy's": (numpy["pos"], numpy["key"].tobytes()),
        "Python's": random.getstate(),
    }
