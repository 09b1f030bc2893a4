"""Fairness: how evenly the personal models' scores are spread over the clients.

C. Gini, "Variabilità e mutabilità", 1912; R. Jain et al., "A Quantitative Measure of Fairness and
Discrimination for Resource Allocation in Shared Computer Systems", DEC-TR-301, 1984.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pfl.federation.evaluation import Evaluation, Shown

if TYPE_CHECKING:
    from pfl.federation.evaluator import Evaluated
    from pfl.federation.run import Row


@dataclass(frozen=True)
class Fairness(Evaluation):
    """Worst client, Gini coefficient and Jain's index of the clients' main scores.

    The scores are those of personal models, at the run's first point of evaluation.
    """

    shown: ClassVar[Shown] = Shown(
        name="fairness",
        title="Fairness over clients",
        columns=lambda score: {
            "worst client": "fairness/worst",
            "Gini": "fairness/gini",
            "Jain": "fairness/jain",
        },
        plain=("Gini", "Jain"),
        note=(
            "Personal models, last round. Gini coefficient: 0 if all clients have the same score, "
            "(N - 1)/N if one of N has all. Jain's index: 1 if all are the same, 1/N if one has "
            "all."
        ),
        facts={
            "fairness/worst": "score of the worst client",
            "fairness/gini": "Gini coefficient of the clients' scores (0: all the same)",
            "fairness/jain": "Jain's index of the clients' scores (1: all the same)",
        },
    )

    def measure(self, tested: Evaluated) -> Row:
        """Return ``fairness/worst``, ``fairness/gini`` and ``fairness/jain``."""
        name, more = next(iter(tested.evaluator.scorer.better.items()))
        column = f"test/personal/{name}"
        scores = [row[column] for row in tested.rows.values() if column in row]
        if not scores:
            return {}
        worst = math.nan if any(map(math.isnan, scores)) else (min if more else max)(scores)
        return {
            "fairness/worst": worst,
            "fairness/gini": gini(scores),
            "fairness/jain": jain(scores),
        }


def gini(scores: Sequence[float]) -> float:
    """Return the Gini coefficient: the mean difference of two scores by twice their mean.

    It is NaN if a score is negative or NaN, for which it is not defined.

    Args:
        scores: (N,) scores of clients, at least one.
    """
    if not all(score >= 0 for score in scores):
        return math.nan
    count, total = len(scores), sum(scores)
    ranked = sum(rank * score for rank, score in enumerate(sorted(scores), 1))
    return 2 * ranked / (count * total) - (count + 1) / count if total else 0.0


def jain(scores: Sequence[float]) -> float:
    """Return Jain's index: the squared sum by N times the sum of squares; see :func:`gini`."""
    if not all(score >= 0 for score in scores):
        return math.nan
    squares = sum(score * score for score in scores)
    return sum(scores) ** 2 / (len(scores) * squares) if squares else 1.0
