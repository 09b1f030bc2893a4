"""Partitioners, which divide the samples among the clients.

A partitioner is a frozen dataclass of its settings. Called with targets, a number of clients and an
rng, it returns one array of positions per client; every sample occurs exactly once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from datamodules.checks import require
from datamodules.partition import draws
from datamodules.targets import Ints, Targets
from pfl.core.checks import at_least_one, check_arguments
from pfl.core.ranges import AtLeastOne, NotNegative, Range
from pfl.core.seeds import derive


class Partitioner(ABC):
    """Base class of partitioners; a subclass implements :meth:`draw`.

    Attributes:
        ordered: Whether a client's samples have a drawn order, which the division into training and
            test samples keeps; otherwise that draws its own.
    """

    ordered: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_arguments(self)

    def __call__(self, targets: Targets, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        """Divide the samples among the clients.

        Returns:
            The (n_i,) positions in ``targets`` of each client's samples.

        Raises:
            ValueError: The settings do not fit the data, or the result is not a partition.
        """
        at_least_one(num_clients=num_clients)
        count, name = len(targets), type(self).__name__
        require(
            num_clients <= count,
            f"num_clients is {num_clients}, but there are only {count} samples to divide",
        )
        shares = self.draw(targets, num_clients, rng)
        right = len(shares) == num_clients
        require(right, f"{name} made {len(shares)} shares for {num_clients} clients")
        dealt = np.concatenate([np.asarray(share, np.int64) for share in shares])
        inside = not dealt.size or (dealt.min() >= 0 and dealt.max() < count)
        require(inside, f"{name} assigned a position outside 0..{count - 1}")
        times = np.bincount(dealt, minlength=count)
        none, several = int((times == 0).sum()), int((times > 1).sum())
        lost = f"{none} have no client and {several} more than one"
        require(none == several == 0, f"{name} is not a partition: of {count} samples, {lost}")
        return shares

    @abstractmethod
    def draw(self, targets: Targets, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        """Divide the samples; ``__call__`` checks the result."""

    def rng(self, seed: int) -> np.random.Generator:
        """Return the random generator for a split seed."""
        return np.random.default_rng(derive(seed, "partition"))

    def groupings(self, targets: Targets) -> Sequence[Ints]:
        """Return the groupings by which official test samples are matched to training samples.

        By default there is one grouping: by subclass, or by class if there are no subclasses. A
        partitioner that uses domains includes them.

        Returns:
            (n,) group numbers for each grouping, the finest first. Test samples of a group without
            training samples are divided by the next grouping.
        """
        return [targets.finest]


@dataclass(frozen=True)
class IID(Partitioner):
    """A uniformly random division into equal sizes (they differ by at most one)."""

    def draw(self, targets: Targets, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        """Divide the samples; ``__call__`` checks the result."""
        return np.array_split(rng.permutation(len(targets)), num_clients)


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Label skew: each class is divided among the clients by its own draw from Dir(alpha * 1).

    Clients differ in class proportions and size; those of :class:`ClientDirichlet` have equal
    sizes. The whole draw is repeated until every client has enough samples. Papers use a minimum of
    40 (FedAS), 1 (PFAKD) or 10 (UniVarFL) samples, all with ``cap``.

    Args:
        alpha: Concentration; below 0.1 a client has few classes, from 100 on, the division is
            nearly IID.
        min_samples: Minimum number of samples of a client.
        cap: Give clients that already have n/N samples nothing from the remaining classes, as in
            the papers' released code.
        max_tries: Maximum number of draws.

    Raises:
        ValueError: A number is out of range.
    """

    alpha: Annotated[float, Range("(0, inf)")] = 0.1
    min_samples: NotNegative[int] = 10
    cap: bool = True
    max_tries: AtLeastOne = 1000

    def draw(self, targets: Targets, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        """Divide the samples; ``__call__`` checks the result."""
        alphas = np.full(num_clients, self.alpha)

        def draw() -> list[Ints] | None:
            members = draws.members(targets.classes, rng)
            drawn = ((positions, rng.dirichlet(alphas)) for positions in members)
            return draws.by_shares(drawn, num_clients, len(targets), cap=self.cap)

        return self.enough(targets, num_clients, draw)

    def enough(
        self, targets: Targets, num_clients: int, draw: Callable[[], list[Ints] | None]
    ) -> list[Ints]:
        """Repeat a draw until every client has ``min_samples``.

        Raises:
            ValueError: No draw gave every client enough.
        """
        require(
            num_clients * self.min_samples <= len(targets),
            f"{num_clients} clients cannot each have min_samples={self.min_samples} of "
            f"{len(targets)} samples; lower min_samples or num_clients",
        )
        best = 0
        for _ in range(self.max_tries):
            shares = draw()
            if shares is None:
                continue
            smallest = min(len(share) for share in shares)
            if smallest >= self.min_samples:
                return shares
            best = max(best, smallest)
        raise ValueError(
            f"none of {self.max_tries} draws of {type(self).__name__}(alpha={self.alpha}) gave "
            f"each of {num_clients} clients min_samples={self.min_samples} samples; in the best "
            f"draw the smallest has {best}. Lower min_samples or num_clients, or raise alpha or "
            "max_tries"
        )


@dataclass(frozen=True)
class ClientDirichlet(Partitioner):
    """Clients of equal size, each with its own class proportions from Dir(alpha * frequencies).

    Each client draws its proportions, then its samples without replacement; a class without samples
    left is removed from later draws. The last clients therefore depend more on the remaining
    samples than on their own draws; clients are processed in random order.

    Source: Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for
    federated visual classification", 2019, which FedSimSup cites for its Dirichlet partitions.

    Args:
        alpha: Concentration, summed over the classes; small values give a strong skew. Papers
            mostly give the concentration of one class: their Dir(0.1) over C classes is ``alpha:
            0.1 * C``.

    Raises:
        ValueError: ``alpha`` is not a positive number.
    """

    alpha: Annotated[float, Range("(0, inf)")] = 1.0

    def draw(self, targets: Targets, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        """Divide the samples; ``__call__`` checks the result."""
        pools = draws.members(targets.classes, rng)
        counts = np.array([len(pool) for pool in pools])
        left, frequencies = counts.copy(), counts / counts.sum()
        quotas = draws.apportion(len(targets), np.ones(num_clients))
        dealt = np.zeros((num_clients, len(pools)), np.int64)
        for client in rng.permutation(num_clients):
            wanted = rng.dirichlet(self.alpha * frequencies)
            while (missing := int(quotas[client] - dealt[client].sum())) > 0:
                shares = wanted * (left > 0)
                if not shares.sum() > 0:
                    shares = left.astype(np.float64)
                drawn = np.minimum(rng.multinomial(missing, shares / shares.sum()), left)
                dealt[client] += drawn
                left -= drawn
        by_class = [draws.cut(pool, sizes) for pool, sizes in zip(pools, dealt.T, strict=True)]
        return draws.join(list(zip(*by_class, strict=True)))


@dataclass(frozen=True)
class Shards(Partitioner):
    """Label skew by shards: samples sorted by class are cut into shards of equal size.

    The shards are assigned to the clients at random.

    Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized
    data", AISTATS 2017; FedSimSup's shards are 2 or 5 (CIFAR-10), 5 or 20 (CIFAR-100).

    Args:
        shards_per_client: Number of shards per client. It limits the number of classes: a shard has
            one class, or two at a boundary.

    Raises:
        ValueError: ``shards_per_client`` is smaller than 1.
    """

    shards_per_client: AtLeastOne = 2

    def draw(self, targets: Targets, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        """Divide the samples; ``__call__`` checks the result."""
        total = num_clients * self.shards_per_client
        require(
            total <= len(targets),
            f"{num_clients} clients with shards_per_client={self.shards_per_client} need {total} "
            f"samples, but there are {len(targets)}",
        )
        pieces = np.array_split(np.concatenate(draws.members(targets.classes, rng)), total)
        order = rng.permutation(total).reshape(num_clients, self.shards_per_client)
        return draws.join([[pieces[piece] for piece in dealt] for dealt in order])


@dataclass(frozen=True)
class ByDomain(Partitioner):
    """Feature shift: every client has one domain or a part of one.

    Client i belongs to domain i modulo the number of domains. If there are fewer clients than
    domains (such as writers), whole domains are assigned to the clients in random order.

    Args:
        within: Partitioner of a domain among its clients; ``None`` for IID.
    """

    within: Partitioner | None = None

    def groupings(self, targets: Targets) -> Sequence[Ints]:
        """Return two groupings: by class and domain, and by domain."""
        return [targets.kinds(), _domains(targets)]

    def draw(self, targets: Targets, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        """Divide the samples; ``__call__`` checks the result."""
        domains = _domains(targets)
        groups = [np.flatnonzero(domains == d) for d in np.unique(domains)]
        if num_clients < len(groups):
            order = rng.permutation(len(groups))
            dealt = (order[client::num_clients] for client in range(num_clients))
            return draws.join([[groups[d] for d in own] for own in dealt])
        within = self.within or IID()
        shares: list[Ints] = [np.empty(0, np.int64)] * num_clients
        for domain, positions in enumerate(groups):
            clients = range(domain, num_clients, len(groups))
            parts = within(targets.take(positions), len(clients), rng)
            for client, part in zip(clients, parts, strict=True):
                shares[client] = positions[part]
        return shares


@dataclass(frozen=True)
class ByColumn(Partitioner):
    """Clients in the order of a column: the first client gets the samples with the smallest values.

    Clients have equal sizes (they differ by at most one). Age groups are an example.

    Args:
        column: Name of the column.
    """

    column: str

    def draw(self, targets: Targets, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        """Divide the samples; ``__call__`` checks the result."""
        order = np.argsort(targets.column(self.column), kind="stable")
        return [np.sort(part) for part in np.array_split(order, num_clients)]


def _domains(targets: Targets) -> Ints:
    if targets.domains is None:
        raise ValueError("ByDomain needs a data set with domains; this one has none")
    return targets.domains
