"""The state of a client's optimisers between rounds, as named tensors among what it keeps.

Files, messages and fingerprints know named tensors only, so the state of a phase's optimiser, by
parameter and key, is given names here, and is read back from names nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from pfl.core.types import State

# By the parameter's name: what the optimiser holds of it, such as ``momentum_buffer``.
OptimizerState: TypeAlias = Mapping[str, State]
_MARK = "optimizer:"


def written(phase: str, state: OptimizerState) -> State:
    """Return the state of a phase's optimiser as named tensors."""
    return {
        f"{_MARK}{phase}:{parameter}:{key}": value
        for parameter, values in state.items()
        for key, value in values.items()
    }


def read(phase: str, kept: State) -> OptimizerState:
    """Return the state of a phase's optimiser from what a client keeps; empty before the first."""
    stem = f"{_MARK}{phase}:"
    found: dict[str, State] = {}
    for name, value in kept.items():
        if name.startswith(stem):
            parameter, _, key = name.removeprefix(stem).rpartition(":")
            found.setdefault(parameter, {})[key] = value
    return found


def of_all_phases(kept: State) -> State:
    """Return the entries of what a client keeps that belong to its optimisers."""
    return {name: value for name, value in kept.items() if name.startswith(_MARK)}
