"""What runs differ by, and how wide an interval that makes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

from pfl.extras.papers.agreement import half as half_of
from pfl.results.statistics import CONFIDENCE, Deviation

LEVEL = CONFIDENCE


@dataclass(frozen=True, eq=False)
class Noise:
    """The standard deviation of single runs; two of equal size are still two measurements.

    Attributes:
        sd: The standard deviation, as a fraction.
        df: Its degrees of freedom.
        rule: The rule by which it judges: a key of ``rules.yaml``.
    """

    sd: float
    df: float
    rule: str


def half(weights: Mapping[Noise, float] | None, level: float = LEVEL) -> float | None:
    """Return half the interval of a sum of means, by Student's t.

    Args:
        weights: For each noise the sum of 1 / runs over the means that it is in. Several noises
            have the degrees of freedom of Welch and Satterthwaite. ``None`` if one is not known.
        level: The level of the interval.

    Example:
        One run against a mean of 5 whose standard error is 1: 2.776 sqrt(6).

        >>> round(half({Noise(5**0.5, 4, "printed"): 1 + 1 / 5}), 2)
        6.8
    """
    if weights is None:
        return None
    parts = [(Deviation(noise.sd, noise.df), weight) for noise, weight in weights.items()]
    return half_of(parts, level)


def pooled(noises: Sequence[Noise], rule: str) -> Noise | None:
    """Return the common noise of some; ``None`` if Bartlett's test finds that they differ."""
    df = sum(noise.df for noise in noises)
    variance = sum(noise.df * noise.sd**2 for noise in noises) / df
    alike = len(noises) == 1 or bartlett(noises, df, variance) >= 1 - LEVEL
    return Noise(math.sqrt(variance), df, rule) if alike else None


def bartlett(noises: Sequence[Noise], df: float, variance: float) -> float:
    """Return the p-value of Bartlett's test that noises are the same.

    Args:
        noises: At least two.
        df: Their degrees of freedom together.
        variance: Their pooled variance.
    """
    if not all(noise.sd for noise in noises):
        return 0.0
    apart = sum(noise.df * math.log(variance / noise.sd**2) for noise in noises)
    count = len(noises) - 1
    correction = 1 + (sum(1 / noise.df for noise in noises) - 1 / df) / (3 * count)
    return float(stats.chi2.sf(apart / correction, count))
