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
from datamodules.record import Pictures, Record
from datamodules.targets import Catalogue, Ints
from datamodules.view import are_images
from pfl.core.state import nbytes
from pfl.core.types import Inputs


def completed(
    found: Record,
    contents: Catalogue,
    division: Division,
    rule: Rule,
    natural: bool,
    chosen: bool,
    inputs: Inputs,
    rows: Ints,
) -> Record:
    """Return a record with classes, clients, splits, and the content of the samples.

    Args:
        found: What the reader saw.
        contents: All samples, used or not.
        division: The samples of each client.
        rule: The rule of the division.
        natural: Whether the clients are those of the data.
        chosen: Whether a file of the user lists the samples of each client.
        inputs: (m, ...) inputs as read.
        rows: (n,) the row of each sample among them, -1 for one that is not in use.
    """
    targets, columns = contents.targets, contents.targets.columns
    divided = record.Division(
        _names(contents),
        targets.labels if targets.has_classes else None,
        targets.domains,
        _sides(division, len(targets)),
        rule.test_protocol,
        _twice(contents.class_names if targets.has_classes else ()),
        ignored=_ignored(contents, rule),
        natural=natural and targets.domains is not None,
        held=np.array([[len(h.train), len(h.val), len(h.test)] for h in division.members]),
        chosen=chosen,
        official=len(targets) - contents.num_train,
    )
    owners = {n: v for n, v in columns.items() if BELONGS.match(n) and (v % 1 == 0).all()}
    found = replace(found, division=divided, identifiers={**owners, **found.identifiers})
    # Windows of a series overlap, and are no samples of their own.
    return found if found.windows is not None else with_content(found, inputs, rows)


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
    """Return a record with hashes of the samples' content."""
    used = np.flatnonzero(rows >= 0)
    if isinstance(inputs, Tensor) and are_images(inputs) and nbytes(inputs) <= LIMIT:
        found = _with_pixels(found, inputs.numpy(), rows, used)
    seen = found.pictures
    kept = digests(inputs) if seen is None or not len(seen.digests) else seen.digests
    if not len(kept):
        return found

    def spread(of: NDArray[np.uint64]) -> NDArray[np.uint64]:
        # Samples that are not in use are unlike any other.
        every = np.arange(len(rows), dtype=np.uint64)
        every[used] = of[rows[used]]
        return every

    rich = Rich(inputs, kept)
    named = _groupings(found)
    bits = [collision_bits(np.bincount(one)) for one in named]

    def copied(places: Ints) -> bool:
        """Add what samples of the same class or client have in common."""
        same = (bool((one[places] == one[places[0]]).all()) for one in named)
        return rich(rows[places], sum(b for b, one in zip(bits, same, strict=True) if one))

    mirrored = seen.turned if seen is not None and len(seen.turned) else kept[:0]
    return replace(
        found,
        digests=spread(kept),
        turned=spread(mirrored) if len(mirrored) else mirrored,
        rich=copied,
    )


def _groupings(found: Record) -> list[Ints]:
    """Return the class and the client of each sample, as far as they are known."""
    if found.division is None:
        return []
    return [one for one in (found.division.labels, found.division.clients) if one is not None]


def _with_pixels(found: Record, pixels: NDArray[Any], rows: Ints, used: Ints) -> Record:
    """Return a record with what images look like."""
    place = np.zeros(len(pixels), np.int64)
    place[rows[used]] = used
    found = replace(found, pictures=(found.pictures or Pictures()).of(pixels))
    if not len(used) == len(pixels) == len(rows):
        return found
    labels = None if found.division is None else found.division.labels
    without = grey(pixels)
    return replace(
        found,
        near=place[near(pixels)],
        grey=without[rows] if len(without) else found.grey,
        hues=means(pixels)[rows],
        marks={} if labels is None else marks(pixels, labels[place]),
    )


def by_client(
    contents: Catalogue, division: Division, names: Sequence[str]
) -> tuple[tuple[str, ...], Mapping[str, Sequence[int]]]:
    """Return the names of the classes, and each client's samples of each, by its name."""
    targets = contents.targets
    classes = (*map(str, contents.class_names),) if targets.has_classes else ("all",)
    labels = targets.labels if targets.has_classes else np.zeros(len(targets), np.int64)
    clients: dict[str, Sequence[int]] = {}
    for client, held in enumerate(division.holdings):
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


def _ignored(contents: Catalogue, rule: Rule) -> Sequence[str]:
    """Return lines on options that change nothing beside what the data bring."""
    tests = len(contents.targets) - contents.num_train
    if not tests or rule.test_fraction == Rule.test_fraction:
        return ()
    if rule.pools:
        return (
            f"test_fraction: {rule.test_fraction} is of training samples and the {tests:,} "
            f"official test samples together, as test_protocol is {rule.test_protocol}: matched or "
            "official_classes tests on the official ones",
        )
    return (
        f"test_fraction: {rule.test_fraction} changes nothing, as test_protocol: "
        f"{rule.test_protocol} tests on the {tests:,} official test samples: leave it out, or give "
        "test_protocol: pooled",
    )
