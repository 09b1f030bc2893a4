"""Paired comparisons of two settings, over clients or over replicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from pfl.results.files import Floats
from pfl.results.statistics import margin

# Stored scores are rounded to single precision: differences beyond these digits are zero.
_DIGITS = 6


@dataclass(frozen=True)
class Paired:
    """The differences between two settings, and Student's paired t test of their mean.

    Interval and p-value belong to the same test: zero is outside the interval if p is below 0.05.

    Attributes:
        pairs: Number of pairs, n.
        difference: Mean difference.
        low: Lower end of the 95% confidence interval of the mean difference.
        high: Upper end.
        effect: Cohen's d: mean over standard deviation; infinite if all differences are equal.
        p: Two-sided p-value.
        p_holm: p-value, adjusted for all tests that were made together.
        positive: Number of pairs with a positive difference.
        negative: Number of pairs with a negative difference.
    """

    pairs: int
    difference: float
    low: float
    high: float
    effect: float
    p: float
    p_holm: float
    positive: int
    negative: int


def paired(ours: Floats, theirs: Floats) -> Paired | None:
    """Test the mean difference of pairs; ``None`` for fewer than two, or if one is not finite.

    Args:
        ours: (n,) scores of clients, or means over clients for each seed.
        theirs: (n,) the other setting's scores, for the same clients or seeds.
    """
    differences = np.round(ours - theirs, _DIGITS)
    count = len(differences)
    if count < 2 or not np.isfinite(differences).all():
        return None
    mean, spread = float(differences.mean()), float(differences.std(ddof=1))
    if np.ptp(differences) == 0:
        spread, effect = 0.0, float(np.sign(mean)) * np.inf if mean else 0.0
        p = float(mean == 0)
    else:
        effect, p = mean / spread, float(stats.ttest_1samp(differences, 0).pvalue)
    half = margin(spread / np.sqrt(count), count - 1)
    return Paired(
        pairs=count,
        difference=mean,
        low=mean - half,
        high=mean + half,
        effect=effect,
        p=p,
        p_holm=p,
        positive=int((differences > 0).sum()),
        negative=int((differences < 0).sum()),
    )


def adjusted(tests: Sequence[Paired | None]) -> list[Paired | None]:
    """Return tests that were made together, with Holm's adjusted p-values."""
    raised = iter(holm([test.p for test in tests if test is not None]))
    return [None if test is None else replace(test, p_holm=next(raised)) for test in tests]


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple tests (Holm, 1979); the order is kept.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    factors = np.arange(len(p_values), 0, -1)
    raised = np.maximum.accumulate(np.asarray(p_values, np.float64)[order] * factors)
    adjusted_values = np.empty(len(p_values))
    adjusted_values[order] = np.minimum(raised, 1)
    return adjusted_values.tolist()
