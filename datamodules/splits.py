"""From a partition to each client's training, validation and test samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from datamodules.draws import apportion, cut
from datamodules.targets import Catalogue, Ints, Targets
from pfl.seeds import derive
from pfl.types import Split

TestProtocol: TypeAlias = Literal["pooled", "official_classes", "matched", "global"]
Partition: TypeAlias = Callable[[Targets, int, np.random.Generator], list[Ints]]


@dataclass(frozen=True, eq=False)
class Holding:
    """What one client holds: sample numbers of the data set, in stored order."""

    train: Ints
    val: Ints
    test: Ints

    def of(self, name: Split) -> Ints:
        """The samples of one split."""
        return {"train": self.train, "val": self.val, "test": self.test}[name]


@dataclass(frozen=True, eq=False)
class Division:
    """All clients' holdings, and the test set that belongs to no client.

    Attributes:
        holdings: One a client.
        pooled_test: The complete official test set; ``None`` where it was pooled with the rest.
    """

    holdings: tuple[Holding, ...]
    pooled_test: Ints | None

    @property
    def sizes(self) -> Ints:
        """(N, 3) training, validation and test samples of each client."""
        return np.array([[len(h.train), len(h.val), len(h.test)] for h in self.holdings])

    def samples(self) -> Ints:
        """Every sample that somebody uses, ascending."""
        used = [ids for h in self.holdings for ids in (h.train, h.val, h.test)]
        return np.unique(
            np.concatenate([*used, [] if self.pooled_test is None else self.pooled_test]).astype(
                np.int64
            )
        )


@dataclass(frozen=True)
class Rule:
    """How a data set becomes clients' training, validation and test samples.

    Args:
        test_protocol: Where a client's test samples come from. ``pooled``: official training and
            test samples together are partitioned, and each client sets ``test_fraction`` of its
            own aside (FedAS, PFAKD). The others partition the official training set only.
            ``official_classes``: a client is tested on all official test samples of the kinds
            (class or subclass, and domain) it trains on; clients' test sets overlap (pFedVEM).
            ``matched``: the official test set is divided over the clients, each kind in proportion
            to their training samples (FedSimSup). ``global``: only the complete official test set
            (UniVarFL). A set without an official test set has ``test_fraction`` of each kind of
            its samples set aside for one.
        test_fraction: Share of test samples, in (0, 1).
        val_fraction: Share of a client's remaining training samples that validate, in [0, 1).
        split_seed: Seed of every random choice made here, apart from the training seed.
        max_samples: Use at most so many samples, each kind in proportion.

    Raises:
        ValueError: A number is out of its range.
    """

    test_protocol: TestProtocol = "pooled"
    test_fraction: float = 0.25
    val_fraction: float = 0.0
    split_seed: int = 1
    max_samples: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.test_fraction < 1:
            raise ValueError(f"test_fraction must lie in (0, 1), got {self.test_fraction}")
        if not 0 <= self.val_fraction < 1:
            raise ValueError(f"val_fraction must lie in [0, 1), got {self.val_fraction}")
        if self.max_samples is not None and self.max_samples < 1:
            raise ValueError(f"max_samples must be at least 1, got {self.max_samples}")

    def rng(self, purpose: str, *path: int) -> np.random.Generator:
        """The source of the random choices of one purpose."""
        return np.random.default_rng(derive(self.split_seed, purpose, *path))


def divide(data: Catalogue, partition: Partition, num_clients: int, rule: Rule) -> Division:
    """Give every client its samples.

    Raises:
        ValueError: The data set has too few samples for the recipe.
    """
    train, test = _official(data, rule)
    if rule.test_protocol == "pooled":
        train = np.sort(np.concatenate([train, test]))
    shares = partition(data.targets.take(train), num_clients, rule.rng("partition"))
    owned = [train[share] for share in shares]
    if rule.test_protocol == "pooled":
        return Division(tuple(_pooled(ids, client, rule) for client, ids in enumerate(owned)), None)
    kinds = data.targets.kinds()
    tests = {"official_classes": _same_kinds, "matched": _matched, "global": _none}
    tested = tests[rule.test_protocol](kinds, owned, test, rule.rng("matched"))
    holdings = [
        Holding(*_set_aside(ids, rule.val_fraction, rule.rng("val", client)), test=own)
        for client, (ids, own) in enumerate(zip(owned, tested, strict=True))
    ]
    return Division(tuple(holdings), test)


def _official(data: Catalogue, rule: Rule) -> tuple[Ints, Ints]:
    """The training and the test samples to use, ascending."""
    ids = np.arange(len(data.targets), dtype=np.int64)
    kinds = data.targets.kinds()
    if rule.max_samples is not None and rule.max_samples < len(ids):
        strata = 2 * kinds + (ids >= data.num_train)
        ids = _stratified(ids, strata, rule.max_samples, rule.rng("max_samples"))
    if data.num_train < len(data.targets) or rule.test_protocol == "pooled":
        return ids[ids < data.num_train], ids[ids >= data.num_train]
    count = round(rule.test_fraction * len(ids))
    test = _stratified(ids, kinds[ids], count, rule.rng("test"))
    return np.setdiff1d(ids, test), test


def _stratified(ids: Ints, strata: Ints, count: int, rng: np.random.Generator) -> Ints:
    """``count`` of ``ids``, ascending, each stratum in proportion."""
    order = rng.permutation(len(ids))
    order = order[np.argsort(strata[order], kind="stable")]
    sizes = np.unique(strata, return_counts=True)[1]
    groups = cut(ids[order], sizes)
    shares = apportion(count, sizes)
    return np.sort(np.concatenate([g[:k] for g, k in zip(groups, shares, strict=True)]))


def _set_aside(ids: Ints, fraction: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """What stays, and the ``fraction`` (rounded up) that goes; of anything, one sample stays."""
    order = rng.permutation(ids)
    # The subtracted 1e-9 keeps 0.1 * 30 = 3.0000000000000004 at 3.
    count = min(int(np.ceil(fraction * len(ids) - 1e-9)), max(0, len(ids) - 1))
    return order[count:], order[:count]


def _pooled(ids: Ints, client: int, rule: Rule) -> Holding:
    rest, test = _set_aside(ids, rule.test_fraction, rule.rng("test", client))
    train, val = _set_aside(rest, rule.val_fraction, rule.rng("val", client))
    return Holding(train, val, test)


def _same_kinds(kinds: Ints, owned: list[Ints], test: Ints, rng: np.random.Generator) -> list[Ints]:
    return [test[np.isin(kinds[test], kinds[ids])] for ids in owned]


def _matched(kinds: Ints, owned: list[Ints], test: Ints, rng: np.random.Generator) -> list[Ints]:
    """Each kind of the test set over the clients, in proportion to their training samples."""
    pieces: list[list[Ints]] = [[] for _ in owned]
    for kind in np.unique(kinds[test]):
        own = np.array([np.count_nonzero(kinds[ids] == kind) for ids in owned])
        if not own.any():
            continue
        positions = rng.permutation(test[kinds[test] == kind])
        for client, piece in enumerate(cut(positions, apportion(len(positions), own))):
            pieces[client].append(piece)
    return [np.sort(np.concatenate([np.empty(0, np.int64), *own])) for own in pieces]


def _none(kinds: Ints, owned: list[Ints], test: Ints, rng: np.random.Generator) -> list[Ints]:
    return [np.empty(0, np.int64) for _ in owned]
