"""How samples are dealt to clients: pure functions of labels, a number of clients and an rng.

Each returns one array of positions a client. Nothing is checked here but what the draw itself
needs; the partitioners of ``partition.py`` check the outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.targets import Ints

Quantity: TypeAlias = Literal["random_cuts", "equal", "lognormal"]


def apportion(total: int, weights: NDArray[np.float64] | Ints) -> Ints:
    """Whole numbers in proportion to ``weights`` that sum to ``total`` (largest remainders).

    Args:
        total: What is shared out.
        weights: (k,) non-negative weights, not all zero.

    Example:
        >>> apportion(10, np.array([1.0, 1.0, 2.0])).tolist()
        [3, 2, 5]
    """
    exact = total * np.asarray(weights, dtype=np.float64) / np.sum(weights)
    shares: Ints = np.floor(exact).astype(np.int64)
    # A stable sort: of equal remainders the first gets the unit.
    first = np.argsort(-(exact - shares), kind="stable")[: total - int(shares.sum())]
    shares[first] += 1
    return shares


def cut(positions: Ints, sizes: Ints) -> list[Ints]:
    """Consecutive pieces of the given sizes, which sum to ``len(positions)``."""
    return np.split(positions, np.cumsum(sizes)[:-1])


def members(labels: Ints, rng: np.random.Generator) -> list[Ints]:
    """The positions of each class that occurs, classes ascending, each shuffled."""
    return [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]


def join(pieces: Sequence[Sequence[Ints]]) -> list[Ints]:
    """What each client got, piece after piece, as one array a client."""
    return [np.concatenate([np.empty(0, np.int64), *own]) for own in pieces]


def iid(count: int, num_clients: int, rng: np.random.Generator) -> list[Ints]:
    """A uniformly random division into sizes that differ by one at most."""
    return np.array_split(rng.permutation(count), num_clients)


def dirichlet(
    labels: Ints, num_clients: int, alpha: float, rng: np.random.Generator, *, cap: bool
) -> list[Ints] | None:
    """Each class divided over the clients by its own draw from Dir(alpha * 1).

    Args:
        labels: (n,) classes.
        num_clients: Number of clients, N.
        alpha: Concentration; small is skewed.
        rng: Source of the draws.
        cap: Deal nothing of the classes still to come to a client that holds n/N samples already.

    Returns:
        The positions of each client, or ``None`` if all clients that could still take samples drew
        a share of zero (possible for tiny ``alpha``).
    """
    pieces: list[list[Ints]] = [[] for _ in range(num_clients)]
    sizes = np.zeros(num_clients, dtype=np.int64)
    for positions in members(labels, rng):
        shares = rng.dirichlet(np.full(num_clients, alpha))
        if cap:
            shares = shares * (sizes < len(labels) / num_clients)
        if not shares.sum() > 0:
            return None
        cuts = (np.cumsum(shares / shares.sum())[:-1] * len(positions)).astype(np.int64)
        for client, piece in enumerate(np.split(positions, cuts)):
            pieces[client].append(piece)
            sizes[client] += len(piece)
    return join(pieces)
