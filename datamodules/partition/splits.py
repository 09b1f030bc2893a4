"""Division of a partition into each client's training, validation and test samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

import numpy as np

from datamodules.checks import require
from datamodules.partition.draws import apportion, cut
from datamodules.partition.partitioner import Partitioner
from datamodules.targets import Catalogue, Ints, Targets
from pfl.core.checks import check_arguments
from pfl.core.ranges import AtLeastOne, Range
from pfl.core.seeds import derive
from pfl.core.types import Split

TestProtocol: TypeAlias = Literal["pooled", "official_classes", "matched", "global", "future"]

# Strata are classes if the median kind (such as one writer's letter) is smaller than this.
_SMALL_KIND = 10


@dataclass(frozen=True, eq=False)
class Holding:
    """The samples of one client, by number in the data set, in stored order."""

    train: Ints
    val: Ints
    test: Ints

    def of(self, name: Split) -> Ints:
        """Return the samples of one split."""
        return {"train": self.train, "val": self.val, "test": self.test}[name]


@dataclass(frozen=True, eq=False)
class Division:
    """The samples of all clients, and the common test set.

    Attributes:
        holdings: Samples of each client.
        pooled_test: The complete official test set; ``None`` if it was pooled with the training
            set.
        apart: The clients that are not of the federation, by what they are there for.
    """

    holdings: tuple[Holding, ...]
    pooled_test: Ints | None
    apart: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def members(self) -> list[Holding]:
        """The samples of each client of the federation."""
        out = {client for clients in self.apart.values() for client in clients}
        return [held for client, held in enumerate(self.holdings) if client not in out]

    @property
    def sizes(self) -> Ints:
        """(N, 3) training, validation and test samples of each client."""
        return np.array([[len(h.train), len(h.val), len(h.test)] for h in self.holdings])

    def of_members(self, name: Split) -> Ints:
        """Return the samples of one split of all clients of the federation."""
        return np.concatenate([held.of(name) for held in self.members])

    def check_tested(self) -> None:
        """Reject a division without test samples.

        Raises:
            ValueError: No client has a test sample, and there is no common test set.
        """
        pooled = () if self.pooled_test is None else self.pooled_test
        require(
            any(len(held.test) for held in self.members) or len(pooled) > 0,
            f"there are no test samples: none of the {len(self.holdings)} clients has a test "
            "sample, and there is no common test set. Give each client more samples (num_clients, "
            "max_samples) or a larger test_fraction",
        )

    def samples(self) -> Ints:
        """Return all samples in use, in ascending order."""
        used = [ids for h in self.holdings for ids in (h.train, h.val, h.test)]
        pooled = [] if self.pooled_test is None else [self.pooled_test]
        return np.unique(np.concatenate([*used, *pooled]).astype(np.int64))


@dataclass(frozen=True)
class Rule:
    """The rule that divides a data set into clients' training, validation and test samples.

    Args:
        test_protocol: Source of a client's test samples. ``pooled``: official training and
            test samples are partitioned together, and each client sets ``test_fraction`` of its own
            samples aside (FedAS, PFAKD). ``future``: as ``pooled``, but each client trains on its
            earlier samples and is tested on its latest, by the column ``time``. The other protocols
            partition only the official training set. ``official_classes``: a client is tested on
            all official test samples of the groups it trains on; clients' test sets overlap
            (pFedVEM). ``matched``: the whole official test set is divided among the clients, each
            group in proportion to their training samples (FedSimSup). Groups are those by which the
            partitioner divides: classes or subclasses, with ``ByDomain`` also domains. ``global``:
            only the complete official test set is used (UniVarFL). If there is no official test
            set, ``test_fraction`` of the samples of each class (and domain) are set aside as one.
        test_fraction: Fraction of test samples, in (0, 1).
        val_fraction: Fraction of a client's remaining training samples used for validation, in [0,
            1).
        split_seed: Seed of every random choice in the division, independent of the training seed.
        max_samples: Use at most this many samples of training and test set together, with all
            classes in proportion.
        max_train_samples: Use at most this many training samples, with all classes in proportion,
            and the whole official test set; not possible with ``pooled``, which combines the two.

    Raises:
        ValueError: A number is out of range, the protocol is not known, or ``max_train_samples`` is
            given with ``pooled``.
    """

    test_protocol: TestProtocol = "pooled"
    test_fraction: Annotated[float, Range("(0, 1)")] = 0.25
    val_fraction: Annotated[float, Range("[0, 1)")] = 0.0
    split_seed: int = 1
    max_samples: AtLeastOne | None = None
    max_train_samples: AtLeastOne | None = None

    def __post_init__(self) -> None:
        check_arguments(self)
        if self.max_train_samples is not None and self.pools:
            raise ValueError(
                f"max_train_samples is {self.max_train_samples}, but test_protocol "
                f"{self.test_protocol} divides "
                "training and test set together: give max_samples or another test_protocol"
            )

    @property
    def pools(self) -> bool:
        """``True`` if official training and test samples are divided together."""
        return self.test_protocol in ("pooled", "future")

    def rng(self, purpose: str, *path: int) -> np.random.Generator:
        """Return the random generator of one purpose."""
        return np.random.default_rng(derive(self.split_seed, purpose, *path))


def divide(data: Catalogue, partition: Partitioner, num_clients: int, rule: Rule) -> Division:
    """Divide a data set among clients.

    Raises:
        ValueError: The data set has too few samples for the partition.
    """
    train, test = _divided(data, rule)
    shares = partition(data.targets.take(train), num_clients, partition.rng(rule.split_seed))
    owned = [train[share] for share in shares]

    def rng(purpose: str, client: int) -> np.random.Generator | None:
        return None if partition.ordered else rule.rng(purpose, client)

    if rule.test_protocol == "future":
        time = data.targets.column("time")
        in_order = (ids[np.argsort(time[ids], kind="stable")] for ids in owned)
        return Division(tuple(_future(ids, rule) for ids in in_order), None)
    if rule.pools:
        pooled = (_pooled(ids, rule, rng("test", i), rng("val", i)) for i, ids in enumerate(owned))
        return Division(tuple(pooled), None)
    groupings = partition.groupings(data.targets)
    tested = [np.empty(0, np.int64)] * len(owned)
    if rule.test_protocol == "official_classes":
        groups = groupings[0]
        tested = [test[np.isin(groups[test], groups[ids])] for ids in owned]
    elif rule.test_protocol == "matched":
        tested = _matched(groupings, owned, test, rule.rng("matched"))
    holdings = [
        Holding(*_set_aside(ids, rule.val_fraction, rng("val", client)), test=tests)
        for client, (ids, tests) in enumerate(zip(owned, tested, strict=True))
    ]
    return Division(tuple(holdings), test)


def natural(data: Catalogue, rule: Rule) -> int:
    """Return the number of natural clients in the samples that :func:`divide` uses."""
    domains = data.targets.domains
    return 0 if domains is None else len(np.unique(domains[_divided(data, rule)[0]]))


def _divided(data: Catalogue, rule: Rule) -> tuple[Ints, Ints]:
    """Return the samples to divide, and the official test samples; both in ascending order."""
    train, test = _official(data, rule)
    return (np.sort(np.concatenate([train, test])) if rule.pools else train), test


def _official(data: Catalogue, rule: Rule) -> tuple[Ints, Ints]:
    """Return the training and the test samples to use, in ascending order."""
    ids = np.arange(len(data.targets), dtype=np.int64)
    strata = _strata(data.targets)
    if rule.max_samples is not None and rule.max_samples < len(ids):
        parts = 2 * strata + (ids >= data.num_train)
        ids = _stratified(ids, parts, rule.max_samples, rule.rng("max_samples"))
    if data.num_train < len(data.targets) or rule.pools:
        train, test = ids[ids < data.num_train], ids[ids >= data.num_train]
    else:
        count = round(rule.test_fraction * len(ids))
        test = _stratified(ids, strata[ids], count, rule.rng("test"))
        train = np.setdiff1d(ids, test)
    limit = rule.max_train_samples
    if limit is not None and limit < len(train):
        train = _stratified(train, strata[train], limit, rule.rng("max_train_samples"))
    return train, test


def _strata(targets: Targets) -> Ints:
    """Return (n,) strata: class and domain, or the class alone if these kinds are tiny.

    Rounding changes the share of a kind by up to one sample, which in tiny kinds would determine
    the chosen classes.
    """
    kinds = targets.kinds()
    sizes = np.unique(kinds, return_counts=True)[1]
    return targets.finest if len(sizes) and np.median(sizes) < _SMALL_KIND else kinds


def _stratified(ids: Ints, strata: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Draw ``count`` of ``ids``, each stratum in proportion; return them in ascending order."""
    groups = list(_grouped(rng.permutation(len(ids)), strata).values())
    shares = apportion(count, np.array([len(group) for group in groups]))
    drawn = np.concatenate([group[:k] for group, k in zip(groups, shares, strict=True)])
    return np.sort(ids[drawn])


def _grouped(ids: Ints, groups: Ints) -> dict[int, Ints]:
    """Return the ids of each group, groups in ascending order, ids in the given order."""
    if not len(ids):
        return {}
    labels, sizes = np.unique(groups[ids], return_counts=True)
    ordered = ids[np.argsort(groups[ids], kind="stable")]
    return dict(zip(labels.tolist(), cut(ordered, sizes), strict=True))


def _set_aside(ids: Ints, fraction: float, rng: np.random.Generator | None) -> tuple[Ints, Ints]:
    """Split off a ``fraction``, rounded up, leaving at least one sample; return the rest first.

    The order is drawn with ``rng``; without it, the first samples are split off.
    """
    order = ids if rng is None else rng.permutation(ids)
    # Subtracting 1e-9 keeps 0.07 * 100 = 7.000000000000001 at 7.
    count = min(int(np.ceil(fraction * len(ids) - 1e-9)), max(0, len(ids) - 1))
    return order[count:], order[:count]


def _pooled(ids: Ints, rule: Rule, *rngs: np.random.Generator | None) -> Holding:
    rest, test = _set_aside(ids, rule.test_fraction, rngs[0])
    train, val = _set_aside(rest, rule.val_fraction, rngs[1])
    return Holding(train, val, test)


def _future(ids: Ints, rule: Rule) -> Holding:
    """Divide a client's samples in order of time: the last are for testing."""
    tested = min(max(1, round(rule.test_fraction * len(ids))), max(0, len(ids) - 1))
    rest, test = ids[: len(ids) - tested], ids[len(ids) - tested :]
    validated = min(int(np.ceil(rule.val_fraction * len(rest) - 1e-9)), max(0, len(rest) - 1))
    return Holding(rest[: len(rest) - validated], rest[len(rest) - validated :], test)


def _matched(
    groupings: Sequence[Ints], owned: list[Ints], test: Ints, rng: np.random.Generator
) -> list[Ints]:
    """Divide each group of the test set in proportion to the clients' training samples of it.

    Test samples of a group without training samples are divided by the next grouping, and finally
    by the clients' total numbers of training samples.
    """
    clients = np.arange(len(owned))
    train = np.concatenate(owned)
    # The client of each training sample; the loop below adds those of test samples.
    client_of = np.empty(len(groupings[0]), np.int64)
    client_of[train] = np.repeat(clients, [len(ids) for ids in owned])
    left = test
    for groups in (*groupings, np.zeros_like(groupings[0])):
        trained = _grouped(train, groups)
        for group, ids in _grouped(left, groups).items():
            if group in trained:
                weights = np.bincount(client_of[trained[group]], minlength=len(owned))
                client_of[rng.permutation(ids)] = np.repeat(clients, apportion(len(ids), weights))
        left = left[~np.isin(groups[left], list(trained))]
    return [test[client_of[test] == client] for client in clients]
