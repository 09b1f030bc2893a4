"""Comparison of a run with its repetition: the numbers, and the environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pfl.results.runs import RunFolder
from pfl.verification.verdict import Verdict, judged, places, relative

_MISSING = "not recorded"
# Keys of environment.json for what may change the last bits of results.
_PLACES = ("python", "platform", "processor", "instructions", "op_threads", "tf32")


@dataclass(frozen=True)
class Reproduced:
    """A comparison of a run with its repetition.

    Attributes:
        verdict: The finding.
        environment: Lines on where both ran and how the environments differ.
    """

    verdict: Verdict
    environment: tuple[str, ...]

    def __str__(self) -> str:
        """Return the verdict as a sentence."""
        return str(self.verdict)


def compare(
    first: RunFolder,
    second: RunFolder,
    radius: float | None = None,
    measure: Callable[[], float | None] = lambda: None,
) -> Reproduced:
    """Compare the fingerprints of two runs, and their rows of metrics without the times.

    Args:
        first: The run.
        second: Its repetition.
        radius: The radius that is stored with the run; see :func:`judged`.
        measure: Measures the radius.
    """
    where, largest = largest_of(first, second)
    if np.isinf(largest):
        verdict = Verdict("different", where)
    else:
        same = first.summary.get("fingerprint") == second.summary.get("fingerprint")
        verdict = judged(same, largest, where, radius, measure)
    both = places([_where(first)], _where(second)).splitlines()
    return Reproduced(verdict, (*both, *_environment(first, second)))


def largest_of(first: RunFolder, second: RunFolder) -> tuple[str, float]:
    """Return where two runs differ most, and by how much; infinite if one lacks a number."""
    if first.round != second.round:
        return f"{first.round} rounds then, {second.round} now", np.inf
    then, now = (_counted(run) for run in (first, second))
    if lacking := sorted({*then} ^ {*now}):
        return f"only one run has {', '.join(lacking)}", np.inf
    values = relative(then.to_numpy(), now[then.columns].to_numpy())
    apart = pd.DataFrame(values, then.index, then.columns)
    name = str(apart.max().idxmax())
    largest = float(apart[name].max())
    return f"{name} after round {apart[name].idxmax()}" if largest else "", largest


def _counted(run: RunFolder) -> pd.DataFrame:
    """Return the columns of metrics that are not times, in the order of their names."""
    return run.metrics[sorted(name for name in run.metrics.columns if not name.startswith("time/"))]


def _environment(first: RunFolder, second: RunFolder) -> Iterator[str]:
    then, now = _places(first), _places(second)
    for name in dict.fromkeys((*then, *now)):
        old, new = (values.get(name, _MISSING) for values in (then, now))
        if old != new:
            yield f"{name.replace('_', ' ')}: {old} then, {new} now"


def _places(run: RunFolder) -> dict[str, Any]:
    """Return the recorded versions, processor, device and engine, by name."""
    environment, header = run.environment, run.environment.get("header", {})
    places = {key: environment.get(key, _MISSING) for key in _PLACES}
    devices = {key: header.get(key, _MISSING) for key in ("device", "engine")}
    return {**environment.get("packages", {}), **places, **devices}


def _where(run: RunFolder) -> str:
    """Describe processor and versions of a run."""
    packages = run.environment.get("packages", {})
    versions = [f"{name} {packages[name]}" for name in ("torch", "numpy") if name in packages]
    return ", ".join([str(run.environment.get("processor", f"processor {_MISSING}")), *versions])
