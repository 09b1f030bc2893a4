"""Comparison of a run with its repetition: the numbers, and the environment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from pfl.results.runs import RunFolder

Verdict: TypeAlias = Literal["same bits", "equal to rounding", "different"]

# Largest difference of a number from its repetition, relative to it if it is above one, that
# counts as rounding. Rounding grows from round to round, so it is far above that of one sum.
ROUNDING = 1e-3
_MISSING = "not recorded"
# What may change the last bits of results, by the keys of environment.json.
_PLACES = ("python", "platform", "processor", "instructions", "op_threads", "tf32")


@dataclass(frozen=True)
class Reproduced:
    """A comparison of a run with its repetition.

    Attributes:
        verdict: What was found.
        largest: The largest difference of a number in ``metrics.csv``; see :data:`ROUNDING`.
        where: The column and round of the largest difference, or what only one run has.
        environment: What differs in the environment, one line each.
    """

    verdict: Verdict
    largest: float
    where: str
    environment: tuple[str, ...]

    def __str__(self) -> str:
        """Return the verdict as a sentence."""
        if self.verdict == "same bits":
            return self.verdict
        if np.isinf(self.largest):
            return f"{self.verdict}: {self.where}"
        return f"{self.verdict} (largest difference {self.largest:.2g}: {self.where})"


def compare(first: RunFolder, second: RunFolder) -> Reproduced:
    """Compare the fingerprints of two runs, and their rows of metrics without the times."""
    where, largest = _largest(first, second)
    same = first.summary.get("fingerprint") == second.summary.get("fingerprint")
    verdict: Verdict = "different"
    if largest <= ROUNDING:
        verdict = "same bits" if same and largest == 0 else "equal to rounding"
    return Reproduced(verdict, largest, where, tuple(_environment(first, second)))


def _largest(first: RunFolder, second: RunFolder) -> tuple[str, float]:
    """Return where two runs differ most, and by how much; infinitely if one lacks something."""
    if first.round != second.round:
        return f"{first.round} rounds then, {second.round} now", np.inf
    names = _counted(first)
    if lacking := sorted(names ^ _counted(second)):
        return f"only one run has {', '.join(lacking)}", np.inf
    where, largest = "the weights alone", 0.0
    for name in sorted(names):
        then, now = first.metrics[name], second.metrics[name]
        scale = np.maximum(1, np.maximum(np.abs(then), np.abs(now)))
        with np.errstate(invalid="ignore"):  # of what is infinite
            apart = np.where(then == now, 0, np.abs(then - now) / scale)
        # A number that only one run has is no rounding.
        apart = np.where(np.isnan(then) & np.isnan(now), 0, np.nan_to_num(apart, nan=np.inf))
        row = int(apart.argmax())
        if apart[row] > largest:
            where = f"{name} after round {first.metrics['round'][row]:g}"
            largest = float(apart[row])
    return where, largest


def _counted(run: RunFolder) -> set[str]:
    """Return the columns of metrics that are no times."""
    return {name for name in run.metrics.columns if not name.startswith("time/")}


def _environment(first: RunFolder, second: RunFolder) -> Iterator[str]:
    then, now = _places(first), _places(second)
    for name in dict.fromkeys((*then, *now)):
        old, new = (values.get(name, _MISSING) for values in (then, now))
        if old != new:
            yield f"{name.replace('_', ' ')}: {old} then, {new} now"


def _places(run: RunFolder) -> dict[str, Any]:
    """Return what is recorded of versions, processor, device and engine, by name."""
    environment, header = run.environment, run.environment.get("header", {})
    places = {key: environment.get(key, _MISSING) for key in _PLACES}
    devices = {key: header.get(key, _MISSING) for key in ("device", "engine")}
    return {**environment.get("packages", {}), **places, **devices}
