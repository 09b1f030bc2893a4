"""The settings of trials, equal for all methods in shared dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pfl.cli.explain import UsageError
from pfl.core.space import Dimension

# Dimensions always drawn, so that the first do not depend on the number used.
MOST = 16
SEED = 38


def settings(dimensions: Sequence[Dimension], trials: int) -> list[dict[str, Any]]:
    """Return the settings of all trials but the first, which has the method's defaults.

    They are points of a scrambled Sobol sequence with a fixed seed. More trials extend the
    sequence, and more dimensions append columns to it.

    Args:
        dimensions: Shared dimensions, then the method's own.
        trials: Number of all trials, T.

    Raises:
        UsageError: There are too many dimensions.
    """
    if len(dimensions) > MOST:
        names = ", ".join(dimension.name for dimension in dimensions)
        raise UsageError(f"a space has at most {MOST} dimensions, got {len(dimensions)}: {names}")
    # Imported here, as it takes a second, which reading a leaderboard does not need.
    from scipy.stats import qmc

    draws = qmc.Sobol(MOST, scramble=True, seed=np.random.default_rng(SEED))
    places = draws.random_base2((max(trials, 2) - 1).bit_length())[: trials - 1, : len(dimensions)]
    return [
        {one.name: one.at(place) for one, place in zip(dimensions, row, strict=True)}
        for row in places.tolist()
    ]


def edges(chosen: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the chosen numbers that are the smallest or largest of those tried.

    A better value may lie beyond them.

    Example:
        >>> edges({"lr": 0.3, "mu": 1.0}, [{"lr": lr, "mu": 1.0} for lr in (0.1, 0.3)])
        {'lr': 'high'}
    """
    at_edge = {}
    for name, value in chosen.items():
        values = {one[name] for one in tried if name in one and _is_number(one[name])}
        if not _is_number(value) or len(values) < 2:
            continue
        if value == min(values):
            at_edge[name] = "low"
        elif value == max(values):
            at_edge[name] = "high"
    return at_edge


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
