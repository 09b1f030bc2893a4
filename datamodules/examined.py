"""A record of what was read, completed by what is known of every data set once it is divided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from datamodules import record
from datamodules.contents import LIMIT, Rich, collision_bits, digests
from datamodules.doubts.copies import BELONGS
from datamodules.likeness import grey, marks, means, near
from datamodules.partition.splits import Division, Rule
from datamodules.record import Record
from datamodules.targets import Catalogue, Ints
from datamodules.view import Prepared, are_images
from pfl.core.state import nbytes
from pfl.core.types import Inputs


def completed(found: Record, read: Prepared, rule: Rule, natural: bool, chosen: bool) -> Record:
    """Return a record with classes, clients, splits, and the content of the samples.

    Args:
        found: What the reader saw.
        read: The data set, read and divided.
        rule: The rule of the division.
        natural: Whether the clients are those of the data.
        chosen: Whether a file of the user lists the samples of each client.
    """
    contents, division, targets = read.catalogue, read.division, read.catalogue.targets
    divided = record.Division(
        _names(contents),
        targets.labels if targets.has_classes else None,
        targets.domains,
        _sides(division, len(targets)),
        rule.test_protocol,
        _twice(contents.class_names if targets.has_classes else ()),
        shares={n: v for n, v in vars(rule).items() if "fraction" in n and v != vars(Rule)[n]},
        given=("test",) * (contents.num_train < len(targets)),
        natural=natural and targets.domains is not None,
        held=np.array([[len(h.train), len(h.val), len(h.test)] for h in division.members]),
        chosen=chosen,
        official=len(targets) - contents.num_train,
    )
    owners = {n: v for n, v in targets.columns.items() if BELONGS.match(n) and (v % 1 == 0).all()}
    found = replace(found, division=divided, identifiers={**owners, **found.identifiers})
    # Windows of a series overlap, and are no samples of their own.
    return found if found.windows else with_content(found, read.raw, read.lookup.numpy())


def _names(contents: Catalogue) -> dict[str, dict[str, int]]:
    """Return the names of classes, subclasses and clients, with their numbers of samples."""
    targets = contents.targets
    labels = targets.labels if targets.has_classes else None
    kinds = (
        ("class", contents.class_names, labels),
        ("subclass", contents.fine_names, targets.fine),
        ("client", contents.domain_names, targets.domains),
    )
    return {kind: _counts(names, of) for kind, names, of in kinds if of is not None}


def with_content(found: Record, inputs: Inputs, rows: Ints) -> Record:
    """Return a record with hashes of the samples' content.

    Args:
        found: The record.
        inputs: (m, ...) inputs as read.
        rows: (n,) the row of each sample among them, -1 for one that is not in use.
    """
    used = np.flatnonzero(rows >= 0)
    if isinstance(inputs, Tensor) and are_images(inputs) and nbytes(inputs) <= LIMIT:
        found = _with_pixels(found, inputs.numpy(), rows, used)
    seen = found.pictures
    kept = seen.digests if len(seen.digests) else digests(inputs)
    if not len(kept):
        return found

    def spread(of: NDArray[np.uint64]) -> NDArray[np.uint64]:
        # Samples that are not in use are unlike any other.
        every = np.arange(len(rows), dtype=np.uint64)
        every[used] = of[rows[used]]
        return every

    rich = Rich(inputs, kept)
    named = [o for o in (found.division.labels, found.division.clients) if o is not None]
    bits = [collision_bits(np.bincount(one)) for one in named]

    def copied(places: Ints) -> bool:
        """Add what samples of the same class or client have in common."""
        same = (bool((one[places] == one[places[0]]).all()) for one in named)
        return rich(rows[places], sum(b for b, one in zip(bits, same, strict=True) if one))

    mirrored = spread(seen.turned) if len(seen.turned) else seen.turned
    return replace(found, digests=spread(kept), turned=mirrored, rich=copied)


def _with_pixels(found: Record, pixels: NDArray[Any], rows: Ints, used: Ints) -> Record:
    """Return a record with what images look like."""
    place = np.zeros(len(pixels), np.int64)
    place[rows[used]] = used
    found = replace(found, pictures=found.pictures.of(pixels))
    if not len(used) == len(pixels) == len(rows):
        return found
    labels, without = found.division.labels, grey(pixels)
    return replace(
        found,
        near=place[near(pixels)],
        grey=without[rows] if len(without) else found.grey,
        hues=means(pixels)[rows],
        marks={} if labels is None else marks(pixels, labels[place]),
    )


def by_client(
    read: Prepared, names: Sequence[str]
) -> tuple[tuple[str, ...], Mapping[str, Sequence[int]]]:
    """Return the names of the classes, and each client's samples of each, by its name."""
    targets, class_names = read.catalogue.targets, read.catalogue.class_names
    classes = (*map(str, class_names),) if targets.has_classes else ("all",)
    labels = targets.labels if targets.has_classes else np.zeros(len(targets), np.int64)
    clients: dict[str, Sequence[int]] = {}
    for client, held in enumerate(read.division.holdings):
        own = labels[np.concatenate([held.train, held.val, held.test])]
        counts = np.bincount(own, minlength=len(classes)).tolist()
        clients[names[client] if names else str(client)] = counts
    return classes, clients


def _counts(names: Sequence[Any], numbers: Ints) -> dict[str, int]:
    counts = np.bincount(numbers, minlength=len(names)).tolist()
    return dict(zip(map(str, names), counts, strict=True))


def _twice(names: Sequence[Any]) -> list[str]:
    """Return the names that stand twice among some."""
    return [name for name, count in Counter(map(str, names)).items() if count > 1]


def _sides(division: Division, count: int) -> Ints:
    """Return (n,) the split of each sample, as :class:`datamodules.record.Division` has it."""
    side = np.zeros(count, np.int64)
    pooled = () if division.pooled_test is None else (division.pooled_test,)
    tests = [held.test for held in division.members]
    for number, parts in (
        (3, [*tests, *pooled]),
        (2, [held.val for held in division.members]),
        (1, [held.train for held in division.members]),
    ):
        for ids in parts:
            side[ids] = number
    return side
