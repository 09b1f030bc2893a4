"""Building blocks of partitioners: pure functions of labels, shares and an rng."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from datamodules.targets import Ints


def apportion(total: int, weights: NDArray[np.float64] | Ints) -> Ints:
    """Apportion ``total`` into whole numbers in proportion to ``weights`` (largest remainders).

    Args:
        total: Sum of the whole numbers.
        weights: (k,) non-negative weights, not all zero.

    Example:
        >>> apportion(10, np.array([1.0, 1.0, 2.0])).tolist()
        [3, 2, 5]
    """
    exact = total * np.asarray(weights, dtype=np.float64) / np.sum(weights)
    shares: Ints = np.floor(exact).astype(np.int64)
    # The sort is stable: among equal remainders, the first gets the unit.
    first = np.argsort(-(exact - shares), kind="stable")[: total - int(shares.sum())]
    shares[first] += 1
    return shares


def cut(positions: Ints, sizes: Ints) -> list[Ints]:
    """Cut into consecutive pieces of the given sizes, which sum to ``len(positions)``."""
    return np.split(positions, np.cumsum(sizes)[:-1])


def members(labels: Ints, rng: np.random.Generator) -> list[Ints]:
    """Return the shuffled positions of each class that occurs, classes ascending."""
    return [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]


def join(pieces: Sequence[Sequence[Ints]]) -> list[Ints]:
    """Concatenate each client's pieces into one array."""
    return [np.concatenate([np.empty(0, np.int64), *dealt]) for dealt in pieces]


def by_shares(
    drawn: Iterable[tuple[Ints, NDArray[np.float64]]], num_clients: int, count: int, *, cap: bool
) -> list[Ints] | None:
    """Divide each class among the clients by its own shares.

    Args:
        drawn: The positions of each class, and each client's share of them, (N,).
        num_clients: Number of clients, N.
        count: Number of samples of all classes, n.
        cap: Give clients that already have n/N samples nothing from the remaining classes.

    Returns:
        The positions of each client, or ``None`` if every client below the cap has a share of zero.
    """
    pieces: list[list[Ints]] = [[] for _ in range(num_clients)]
    sizes = np.zeros(num_clients, dtype=np.int64)
    for positions, shares in drawn:
        if cap:
            shares = shares * (sizes < count / num_clients)
        if not shares.sum() > 0:
            return None
        cuts = (np.cumsum(shares / shares.sum())[:-1] * len(positions)).astype(np.int64)
        for client, piece in enumerate(np.split(positions, cuts)):
            pieces[client].append(piece)
            sizes[client] += len(piece)
    return join(pieces)
