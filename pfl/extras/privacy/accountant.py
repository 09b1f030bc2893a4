"""The epsilon of a number of rounds, by privacy loss distributions of ``dp-accounting``.

Each round is the Gaussian mechanism on a Poisson sample of the clients; neighbours differ by one
client. Epsilon is a function of rate, sigma, rounds and delta: a run stores nothing for it.
"""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from importlib import metadata
from typing import Any, TypeAlias

MISSING = "epsilon needs the package dp-accounting: pip install 'pfl-lightning[privacy]'"

Part: TypeAlias = tuple[float, float, int]
"""Rate, sigma and the number of their steps."""


def epsilon(rate: float, sigma: float, rounds: int, delta: float) -> float:
    """Return the epsilon of a number of rounds; infinite without noise.

    Args:
        rate: q, the probability with which a client takes part in a round.
        sigma: Standard deviation of the noise, in units of the sensitivity.
        rounds: Number of rounds.
        delta: The delta that epsilon holds for.

    Raises:
        ModuleNotFoundError: The package ``dp-accounting`` is missing.
    """
    return of_parts(((rate, sigma, rounds),), delta)


@lru_cache(maxsize=64)
def of_parts(parts: tuple[Part, ...], delta: float) -> float:
    """Return the epsilon of steps of several kinds; infinite if any kind has no noise."""
    taken = [part for part in parts if part[2]]
    if any(sigma == 0 for _, sigma, _ in taken):
        return math.inf
    if not taken:
        return 0.0
    losses = [_of_a_round(rate, sigma).self_compose(count) for rate, sigma, count in taken]
    return float(reduce(lambda one, other: one.compose(other), losses).get_epsilon_for_delta(delta))


def described() -> str:
    """Return the package, version and method that compute epsilon."""
    return f"dp-accounting {metadata.version('dp-accounting')}, privacy loss distributions"


@lru_cache(maxsize=64)
def _of_a_round(rate: float, sigma: float) -> Any:  # noqa: ANN401 (the package has no types)
    try:
        from dp_accounting import NeighboringRelation
        from dp_accounting.pld import privacy_loss_distribution
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(MISSING) from error
    return privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=rate, neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE
    )
