"""Whether our mean of runs equals a paper's, within a margin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

from pfl.results.statistics import Deviation, Estimate, margin

# Two points of accuracy: what is closer has no consequence for what a table says.
MARGIN = 0.02
Verdict: TypeAlias = Literal["equal", "different", "undecided"]


def pooled(spreads: Sequence[Deviation]) -> Deviation | None:
    """Return the common deviation of runs that are taken to spread alike; ``None`` of none.

    Example:
        Squares of 0.0008 with 2 degrees of freedom, and 0.0002 with 1:

        >>> pooled([Deviation(0.02, 2), Deviation(0.0002**0.5, 1)])
        Deviation(sd=0.018257418583505537, df=3)
    """
    df = sum(spread.df for spread in spreads)
    if not df:
        return None
    return Deviation(math.sqrt(sum(s.df * s.sd**2 for s in spreads) / df), df)


def half_width(spreads: Sequence[Deviation], ours: int, theirs: int) -> float | None:
    """Return half the 95 % interval of the difference of two means, by Student's t.

    All runs are taken to spread alike, so that for a mean and a deviation more runs can only
    narrow it.

    Args:
        spreads: What is known of how single runs spread, on both sides.
        ours: Number of our runs.
        theirs: Number of theirs.

    Returns:
        Half the width; ``None`` if no spread is known.

    Example:
        One run against a mean of 5 with the standard error 1: 2.776 * sqrt(6).

        >>> round(half_width([Deviation(5**0.5, 4)], 1, 5), 2)
        6.8
    """
    spread = pooled(spreads)
    return None if spread is None else half([(spread, 1 / ours + 1 / theirs)])


def half(parts: Sequence[tuple[Deviation, float]]) -> float:
    """Return half the 95 % interval of a sum of means, by Student's t.

    Args:
        parts: Deviations of single runs, each with the sum of 1 / runs over its means. Several have
            the degrees of freedom of Welch and Satterthwaite.
    """
    variances = [spread.sd**2 * weight for spread, weight in parts]
    if not (variance := sum(variances)):
        return 0.0
    degrees = (own**2 / spread.df for own, (spread, _) in zip(variances, parts, strict=True))
    return margin(math.sqrt(variance), variance**2 / sum(degrees))


def verdict(difference: float, half: float | None) -> Verdict:
    """Return ``equal`` if the whole interval is within the margin, ``different`` if it is outside.

    Example:
        Both are rounded, because printed numbers are: 0.60 + 0.01 + 0.01 is within 0.60 ± 0.02.

        >>> verdict(-0.012, 0.003), verdict(-0.012, 0.009), verdict(-0.05, 0.02), verdict(0.0, None)
        ('equal', 'undecided', 'different', 'undecided')
    """
    if half is None or not math.isfinite(difference - half):
        return "undecided"
    apart = abs(difference)
    if round(apart + half - MARGIN, 9) <= 0:
        return "equal"
    return "different" if round(apart - half - MARGIN, 9) > 0 else "undecided"


def compare(ours: Estimate, theirs: Estimate) -> Verdict:
    """Compare our mean with a paper's."""
    spreads = [one.spread for one in (ours, theirs) if one.spread is not None]
    return verdict(ours.mean - theirs.mean, half_width(spreads, ours.count, theirs.count))
