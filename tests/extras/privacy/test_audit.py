"""An audit: what an attacker learns of a client from the outcome stays below epsilon.

One parameter, one round, all clients take part. The canary sends a difference longer than the clip,
all others send zero, which changes no number (``test_passage.py``). The attacker sees the new
parameter, and says that the canary took part if it is above a threshold that was fixed beforehand.
Of 2,000 rounds with the canary and 2,000 without it, the shares of such answers bound epsilon from
below (Clopper and Pearson, at 95 %): ``epsilon >= ln((true - delta) / false)`` (Jagielski et al.,
"Auditing Differentially Private Machine Learning", NeurIPS 2020, arXiv 2006.07709).
"""

import math

import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import beta, norm

from tests.extras.privacy.toy import passage, played

RUNS, DELTA, EPSILON = 2000, 1e-3, 4.0
START = {"w": torch.zeros(1)}


def delta_of(sigma, epsilon=EPSILON):
    """Return the exact delta of the Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""
    half, shift = 1 / (2 * sigma), epsilon * sigma
    return norm.cdf(half - shift) - math.exp(epsilon) * norm.cdf(-half - shift)


SIGMA = brentq(lambda sigma: delta_of(sigma) - DELTA, 0.3, 10)
CLIENTS, CLIP = 10, 2.0


def outcomes(own, *changes, first=0):
    """Return the new parameter of many rounds with other noise."""
    return torch.cat(
        [
            played(own(seed), *changes, start=START).shared["w"]
            for seed in range(first, first + RUNS)
        ]
    )


def bound(sigma, deviations=2):
    """Return the lower bound of the epsilon of a round with so much noise.

    The attacker's threshold lies so many deviations above what is usual without the canary.
    """

    def own(seed):
        return passage(CLIP, sigma, clients=CLIENTS, seed=seed)

    with_it = outcomes(own, {"w": [100 * CLIP]})
    without = outcomes(own, first=RUNS)
    threshold = deviations * sigma * CLIP / CLIENTS
    true, false = int((with_it > threshold).sum()), int((without > threshold).sum())
    least = beta.ppf(0.025, true, RUNS - true + 1)
    most = beta.ppf(0.975, false + 1, RUNS - false)
    return math.log((least - DELTA) / most)


@pytest.mark.long
def test_the_attacker_learns_less_than_epsilon_and_more_than_a_third_of_it():
    assert 0.3 * EPSILON < bound(SIGMA) < EPSILON
