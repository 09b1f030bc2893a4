"""Epsilon of private rounds beside known values: ``python -m benchmarks.privacy``.

Each line is a number of rounds of the Gaussian mechanism on Poisson samples, neighbours by one
client more or less. The known values were computed elsewhere, by privacy loss distributions; the
first is exact (Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML
2018, arXiv 1805.06530).
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from pfl.extras.privacy.accountant import epsilon

TOLERANCE = 1e-3


class Oracle(NamedTuple):
    """A known epsilon: of rate q, sigma, rounds and delta."""

    rate: float
    sigma: float
    rounds: int
    delta: float
    epsilon: float


ORACLES = (
    Oracle(1, 1, 1, 1e-5, 4.37718),
    Oracle(0.1, 1, 100, 1e-3, 4.7844),
    Oracle(0.1, 1, 100, 1e-5, 7.0466),
    Oracle(0.2, 2, 50, 1e-3, 2.3555),
    Oracle(0.01, 0.8, 1000, 1e-5, 3.1410),
    Oracle(0.5, 4, 200, 1e-3, 6.5869),
    Oracle(1, 5, 40, 1e-3, 4.2077),
)


def main() -> int:
    """Print known values beside ours; return 1 if one of them differs."""
    print("q     sigma rounds delta  known   ours    difference")
    wrong = 0
    for known in ORACLES:
        ours = epsilon(*known[:4])
        apart = ours - known.epsilon
        wrong += abs(apart) > TOLERANCE
        print(
            f"{known.rate:<5g} {known.sigma:<5g} {known.rounds:<6} {known.delta:<6g} "
            f"{known.epsilon:<7.5g} {ours:<7.5g} {apart:+.5f}"
        )
    print(f"{len(ORACLES) - wrong} of {len(ORACLES)} agree to {TOLERANCE:g}")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
