"""Random divisions of samples into clients: pure functions of labels, number of clients and rng.

Each returns one array of positions per client. The partitioners of ``partition.py`` check arguments
and results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.targets import Ints

Quantity: TypeAlias = Literal["random_cuts", "equal", "lognormal"]


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
    # The sort is stable: among equal remainders the first gets the unit.
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


def iid(count: int, num_clients: int, rng: np.random.Generator) -> list[Ints]:
    """Divide uniformly at random into sizes that differ by at most one."""
    return np.array_split(rng.permutation(count), num_clients)


def dirichlet(
    labels: Ints, num_clients: int, alpha: float, rng: np.random.Generator, *, cap: bool
) -> list[Ints] | None:
    """Divide each class over the clients by its own draw from Dir(alpha * 1).

    Args:
        labels: (n,) classes.
        num_clients: Number of clients, N.
        alpha: Concentration; small values give a strong skew.
        rng: Random generator.
        cap: A client that already holds n/N samples gets nothing from the remaining classes.

    Returns:
        The positions of each client, or ``None`` if every client below the cap drew a share of zero
        (possible for tiny ``alpha``).
    """
    drawn = (
        (positions, rng.dirichlet(np.full(num_clients, alpha)))
        for positions in members(labels, rng)
    )
    return by_shares(drawn, num_clients, len(labels), cap=cap)


def by_shares(
    drawn: Iterable[tuple[Ints, NDArray[np.float64]]], num_clients: int, count: int, *, cap: bool
) -> list[Ints] | None:
    """Divide each class over the clients by its own shares.

    Args:
        drawn: The positions of each class, and each client's share of them, (N,).
        num_clients: Number of clients, N.
        count: Number of samples of all classes, n.
        cap: A client that already holds n/N samples gets nothing from the remaining classes.

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


def client_dirichlet(
    labels: Ints, num_clients: int, alpha: float, rng: np.random.Generator
) -> list[Ints]:
    """Divide into equal sizes, each client by its own draw from Dir(alpha * class frequencies).

    A class without samples left is removed from later draws. The last clients therefore follow the
    remaining samples more than their own draw; clients are processed in random order.
    """
    pools = members(labels, rng)
    counts = np.array([len(pool) for pool in pools])
    left, frequencies = counts.copy(), counts / counts.sum()
    quotas = apportion(len(labels), np.ones(num_clients))
    dealt = np.zeros((num_clients, len(pools)), np.int64)
    for client in rng.permutation(num_clients):
        wanted = rng.dirichlet(alpha * frequencies)
        while (missing := int(quotas[client] - dealt[client].sum())) > 0:
            shares = wanted * (left > 0)
            if not shares.sum() > 0:
                shares = left.astype(np.float64)
            drawn = np.minimum(rng.multinomial(missing, shares / shares.sum()), left)
            dealt[client] += drawn
            left -= drawn
    by_class = [cut(pool, sizes) for pool, sizes in zip(pools, dealt.T, strict=True)]
    return join(list(zip(*by_class, strict=True)))


def shards(labels: Ints, num_clients: int, per_client: int, rng: np.random.Generator) -> list[Ints]:
    """Sort by class, cut into equal shards and give each client ``per_client`` random ones."""
    pieces = np.array_split(np.concatenate(members(labels, rng)), num_clients * per_client)
    order = rng.permutation(len(pieces)).reshape(num_clients, per_client)
    return join([[pieces[piece] for piece in dealt] for dealt in order])


def cut_points(
    size: int, blocks: int, quantity: Quantity, sigma: float, rng: np.random.Generator
) -> Ints:
    """Draw the points at which ``size`` samples are cut into non-empty blocks.

    Args:
        size: Number of samples, at least ``blocks``.
        blocks: Number of blocks.
        quantity: ``random_cuts`` draws distinct points uniformly, ``equal`` spaces them equally,
            and ``lognormal`` draws sizes proportional to exp(sigma * N(0, 1)).
        sigma: Standard deviation of the logarithm of ``lognormal`` sizes.
        rng: Random generator.

    Returns:
        (blocks - 1,) ascending points in 1..size-1.
    """
    if quantity == "random_cuts":
        return np.sort(rng.choice(np.arange(1, size), blocks - 1, replace=False))
    if quantity == "equal":
        return np.arange(1, blocks) * size // blocks
    weights = np.exp(sigma * rng.standard_normal(blocks))
    return np.cumsum(1 + apportion(size - blocks, weights))[:-1]


def slices(
    classes: Ints,
    owned: Sequence[Ints],
    quantity: Quantity,
    sigma: float,
    rng: np.random.Generator,
    *,
    last_first: bool = False,
) -> list[Ints]:
    """Cut every class at the same points; a client gets the next free block of each class it owns.

    Classes of unequal size are cut at equal fractions: the points are drawn for the smallest class
    and scaled to the others.

    Args:
        classes: (n,) class or subclass of each sample.
        owned: The classes of each client. Every class must be owned equally often.
        quantity: Distribution of block sizes; see :func:`cut_points`.
        sigma: Standard deviation of the logarithm of ``lognormal`` sizes.
        rng: Random generator.
        last_first: The next free block is the last one, not the first.
    """
    pools = dict(zip(np.unique(classes).tolist(), members(classes, rng), strict=True))
    smallest = min(len(pool) for pool in pools.values())
    blocks = sum(map(len, owned)) // len(pools)
    points = cut_points(smallest, blocks, quantity, sigma, rng)
    step = -1 if last_first else 1
    unused = {
        c: iter(np.split(pool, points * len(pool) // smallest)[::step]) for c, pool in pools.items()
    }
    return join([[next(unused[c]) for c in classes_owned.tolist()] for classes_owned in owned])
