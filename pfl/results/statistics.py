"""Means of runs, the intervals of these means, and whether two of them agree.

All intervals are two-sided, at 95 %, from Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pfl.results.files import Floats

CONFIDENCE = 0.95
NONE = "-"


class Deviation(NamedTuple):
    """The standard deviation of single runs, and its degrees of freedom."""

    sd: float
    df: float


@dataclass(frozen=True)
class Estimate:
    """A mean of runs, and how far single runs spread; ``None`` if that is unknown."""

    mean: float
    count: int
    spread: Deviation | None

    @classmethod
    def of(cls, values: Floats | Sequence[float]) -> Estimate:
        """Estimate from (runs,) values, one for each run; a single one has no spread."""
        count = len(values)
        spread = Deviation(float(np.std(values, ddof=1)), count - 1) if count > 1 else None
        return cls(float(np.mean(values)), count, spread)

    @property
    def error(self) -> float | None:
        """Standard error of the mean."""
        return None if self.spread is None else self.spread.sd / math.sqrt(self.count)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the mean's interval; ``None`` without a spread."""
        if self.spread is None or self.error is None:
            return None
        half = margin(self.error, self.spread.df)
        return self.mean - half, self.mean + half

    def text(self, scale: float = 1, digits: int = 2) -> str:
        """Format mean and standard error, for instance as ``81.20 ± 0.35``."""
        return NONE if np.isnan(self.mean) else plus_minus(self.mean, self.error, scale, digits)


def plus_minus(value: float, error: float | None, scale: float = 1, digits: int = 2) -> str:
    """Format a number and its error, if it has one, as ``81.20 ± 0.35``."""
    text = f"{scale * value:.{digits}f}"
    return text if error is None else f"{text} ± {scale * error:.{digits}f}"


def margin(error: float, df: float) -> float:
    """Return half the interval of a number with this standard error.

    Example:
        >>> round(margin(1.0, 4), 3)
        2.776
    """
    # Imported here, because tables are read before anything is computed.
    from scipy import stats

    return float(stats.t.ppf((1 + CONFIDENCE) / 2, df)) * error


def half_width(ours: Estimate | None, theirs: Estimate | None) -> float | None:
    """Return half the interval of the difference of two means, if nothing but chance parts them.

    With two spreads it is Welch's. With one, single runs of the other are taken to spread as much:
    then it is the prediction interval of a mean of as many runs.

    Returns:
        Half the width; ``None`` if neither has a spread, or one is not known.

    Example:
        One run against a mean of 5 with the standard error 1: 2.776 * sqrt(6).

        >>> printed = Estimate(0.0, 5, Deviation(5**0.5, 4))
        >>> round(half_width(Estimate(1.0, 1, None), printed), 2)
        6.8
    """
    if ours is None or theirs is None:
        return None
    ours_spread, theirs_spread = ours.spread or theirs.spread, theirs.spread or ours.spread
    if ours_spread is None or theirs_spread is None:
        return None
    parts = ours_spread.sd**2 / ours.count, theirs_spread.sd**2 / theirs.count
    if ours.spread is None or theirs.spread is None:
        return margin(math.sqrt(sum(parts)), ours_spread.df)
    weighed = parts[0] ** 2 / ours_spread.df + parts[1] ** 2 / theirs_spread.df
    return margin(math.sqrt(sum(parts)), sum(parts) ** 2 / weighed) if weighed else 0.0


def agree(ours: Estimate | None, theirs: Estimate | None) -> bool | None:
    """Return whether chance alone may part two means.

    Returns:
        The answer; ``None`` if no spread is known, or a mean is not finite.
    """
    if ours is None or theirs is None:
        return None
    return is_within(ours.mean - theirs.mean, half_width(ours, theirs))


def is_within(difference: float, half: float | None) -> bool | None:
    """Return whether a difference is within half an interval; ``None`` if one is not known.

    Example:
        Both are rounded, because printed numbers are: 0.81 is within 0.80 ± 0.01.

        >>> 0.81 - 0.80 <= 0.01, is_within(0.81 - 0.80, 0.01)
        (False, True)
    """
    if half is None or not math.isfinite(difference - half):
        return None
    return round(abs(difference) - half, 9) <= 0


def in_or_out(inside: bool | None) -> str:
    """Return ``in`` or ``out`` for an answer of :func:`agree`; ``-`` for none."""
    return NONE if inside is None else ("in" if inside else "out")
