"""The state of a client's optimisers between rounds, as named tensors in its kept state.

Files, messages and fingerprints handle only named tensors. Only this module turns the state of an
optimiser, which is ordered by parameter and key, into named tensors and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from pfl.core.types import State

# An optimiser's tensors for each parameter, such as ``momentum_buffer``, by the parameter's name.
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
    """Return the state of a phase's optimiser from a client's kept state; empty at first."""
    stem = f"{_MARK}{phase}:"
    entries: dict[str, State] = {}
    for name, value in kept.items():
        if name.startswith(stem):
            parameter, _, key = name.removeprefix(stem).rpartition(":")
            entries.setdefault(parameter, {})[key] = value
    return entries


def of_all_phases(kept: State) -> State:
    """Return the entries of a client's kept state that belong to its optimisers."""
    return {name: value for name, value in kept.items() if name.startswith(_MARK)}
