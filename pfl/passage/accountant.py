"""Epsilon of a number of rounds, by privacy loss distributions of ``dp-accounting``.

Each round is the Gaussian mechanism on a Poisson sample of the clients; neighbours differ by one
client. Epsilon is a function of rate, sigma, rounds and delta: a run stores nothing for it.
"""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from importlib import metadata
from typing import Any

MISSING = (
    "loop.privacy needs the package dp-accounting to tell epsilon: pip install "
    "'pfl-lightning[privacy]'"
)


def epsilon(rate: float, sigma: float, rounds: int, delta: float) -> float:
    """Return the epsilon of some rounds; infinite without noise.

    Args:
        rate: q, the probability with which a client takes part in a round.
        sigma: Standard deviation of the noise, in units of the sensitivity.
        rounds: Number of rounds.
        delta: The delta that epsilon holds for.

    Raises:
        ModuleNotFoundError: The package ``dp-accounting`` is missing.
    """
    return of_parts(((rate, rounds),), sigma, delta)


@lru_cache(maxsize=64)
def of_parts(parts: tuple[tuple[float, int], ...], sigma: float, delta: float) -> float:
    """Return the epsilon of steps of several rates, each with how many there are of it."""
    taken = [(rate, count) for rate, count in parts if count]
    if not taken or sigma == 0:
        return math.inf if taken else 0.0
    losses = [_of_a_round(rate, sigma).self_compose(count) for rate, count in taken]
    return float(reduce(lambda one, other: one.compose(other), losses).get_epsilon_for_delta(delta))


def described() -> str:
    """Return how epsilon is computed: package, version and method."""
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
