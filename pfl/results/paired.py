"""Paired comparisons of two settings, over clients and over replicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from pfl.results.runs import Floats

CONFIDENCE = 0.95
# Scores are stored with the noise of single precision; differences below this are none.
_DIGITS = 6


@dataclass(frozen=True)
class Paired:
    """What the differences between two settings say.

    Attributes:
        pairs: n.
        difference: Mean difference.
        low: Lower end of the 95% confidence interval of the mean difference (t distribution).
        high: Upper end.
        effect: Size of the effect; see the function that made it.
        p: Two-sided p-value.
        better: Pairs with a positive difference.
        worse: Pairs with a negative one.
    """

    pairs: int
    difference: float
    low: float
    high: float
    effect: float
    p: float
    better: int
    worse: int


def over_clients(ours: Floats, theirs: Floats) -> Paired | None:
    """Wilcoxon's signed-rank test; ``None`` with fewer than two pairs.

    The effect is the matched-pairs rank-biserial correlation: from the ranks of the absolute
    differences, (favourable - unfavourable) / all, from -1 to 1 (Kerby, 2014).

    Args:
        ours: (n,) values.
        theirs: (n,) values of the same clients.
    """
    differences = np.round(ours - theirs, _DIGITS)
    if len(differences) < 2:
        return None
    moved = differences[differences != 0]
    ranks = stats.rankdata(np.abs(moved))
    favourable = float(ranks[moved > 0].sum())
    effect = (2 * favourable - ranks.sum()) / ranks.sum() if len(moved) else 0.0
    p = float(stats.wilcoxon(moved).pvalue) if len(moved) else 1.0
    return _paired(differences, float(effect), p)


def over_replicates(ours: Floats, theirs: Floats) -> Paired | None:
    """Student's paired t test; ``None`` with fewer than two pairs.

    The effect is Cohen's d of the differences: mean over standard deviation; infinite where they
    are all the same.

    Args:
        ours: (n,) means over clients, one for each seed.
        theirs: (n,) the same for the same seeds.
    """
    differences = np.round(ours - theirs, _DIGITS)
    if len(differences) < 2:
        return None
    mean, spread = float(differences.mean()), float(differences.std(ddof=1))
    if spread == 0:
        return _paired(differences, np.sign(mean) * np.inf if mean else 0.0, float(mean == 0))
    p = float(stats.ttest_1samp(differences, 0).pvalue)
    return _paired(differences, mean / spread, p)


def _paired(differences: Floats, effect: float, p: float) -> Paired:
    count, mean = len(differences), float(differences.mean())
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1))
    margin = quantile * float(differences.std(ddof=1)) / np.sqrt(count)
    return Paired(
        pairs=count,
        difference=mean,
        low=mean - margin,
        high=mean + margin,
        effect=effect,
        p=p,
        better=int((differences > 0).sum()),
        worse=int((differences < 0).sum()),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted for having made several tests (Holm, 1979), in the order given.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    factors = np.arange(len(p_values), 0, -1)
    raised = np.maximum.accumulate(np.asarray(p_values, np.float64)[order] * factors)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(raised, 1)
    return adjusted.tolist()
