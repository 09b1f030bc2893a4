"""Agreement of our means with a paper's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pfl.results.statistics import CONFIDENCE, NONE, Deviation, Estimate, margin


def half_width(ours: Estimate | None, theirs: Estimate | None) -> float | None:
    """Return half the interval of the difference of two means under chance alone.

    With two spreads it is Welch's. With one, the other mean's runs are assumed to spread equally,
    which gives the prediction interval of a mean of as many runs.

    Returns:
        Half the width; ``None`` if neither has a spread or one is unknown.

    Example:
        One run against a mean of 5 with the standard error 1: 2.776 * sqrt(6).

        >>> printed = Estimate(0.0, 5, Deviation(5**0.5, 4))
        >>> round(half_width(Estimate(1.0, 1, None), printed), 2)
        6.8
    """
    if ours is None or theirs is None:
        return None
    spreads = [one.spread for one in (ours, theirs) if one.spread is not None]
    weights = [1 / ours.count, 1 / theirs.count]
    if len(spreads) == 1:
        weights = [sum(weights)]
    return half([*zip(spreads, weights, strict=True)]) if spreads else None


def half(parts: Sequence[tuple[Deviation, float]], level: float = CONFIDENCE) -> float:
    """Return half the interval of a sum of means, by Student's t.

    Args:
        parts: Deviations of single runs, each with the sum of 1 / runs over its means. Several have
            the degrees of freedom of Welch and Satterthwaite.
        level: Level of the interval.
    """
    variances = [spread.sd**2 * weight for spread, weight in parts]
    if not (variance := sum(variances)):
        return 0.0
    degrees = (own**2 / spread.df for own, (spread, _) in zip(variances, parts, strict=True))
    return margin(math.sqrt(variance), variance**2 / sum(degrees), level)


def agree(ours: Estimate | None, theirs: Estimate | None) -> bool | None:
    """Return whether chance alone explains the difference of two means.

    Returns:
        The answer; ``None`` if no spread is known or a mean is not finite.
    """
    if ours is None or theirs is None:
        return None
    return is_within(ours.mean - theirs.mean, half_width(ours, theirs))


def is_within(difference: float, half: float | None) -> bool | None:
    """Return whether a difference is within half an interval; ``None`` if either is unknown.

    Example:
        Both are rounded, because printed numbers are: 0.81 is within 0.80 ± 0.01.

        >>> 0.81 - 0.80 <= 0.01, is_within(0.81 - 0.80, 0.01)
        (False, True)
    """
    if half is None or not math.isfinite(difference - half):
        return None
    return round(abs(difference) - half, 9) <= 0


def in_or_out(inside: bool | None) -> str:
    """Return ``in`` or ``out`` for an answer of :func:`agree`; ``-`` for ``None``."""
    return NONE if inside is None else ("in" if inside else "out")
