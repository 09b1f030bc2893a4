"""Means of runs, and the intervals of these means.

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
    """A mean of runs, and the spread of single runs; ``None`` if unknown."""

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
