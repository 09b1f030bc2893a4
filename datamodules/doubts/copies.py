"""Samples of equal content or of one origin: copies, and both sides of a split."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from datamodules.record import Division, Record
from datamodules.targets import Ints

# Names of what several samples may belong to; a volume without a number is a quantity.
BELONGS = re.compile(
    r"(?i)^(.*[ _.-])?(id|uuid|guid|patient|subject|participant|person|lesion|case|animal|donor"
    r"|video|clip|slide|study|scan|volume(?=[ _.-]?[icn])|specimen|speaker|writer)"
    r"([ _.-]?(id|no|nr|num|number|code))?$|^[a-z]+Id$"
)
_FEW = 10
# So many rows that follow each other in two places are no chance.
_RUN = 6
_TWICE = 3


def _sides(rows: Ints, found: Division) -> bool:
    """Return ``True`` if some of the samples are for training, and others for a test."""
    side = found.side[rows] if len(found.side) else found.side
    return bool((side == 1).any() and (side > 1).any())


def alike(values: np.ndarray[tuple[int], np.dtype[np.generic]]) -> list[Ints]:
    """Return the rows of each value that stands in several."""
    if not len(values):
        return []
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    ends = np.append(starts[1:], len(values))
    return [order[a:b] for a, b in zip(starts, ends, strict=True) if b - a > 1]


def of_content(record: Record) -> Iterator[str]:
    """Yield samples whose content is that of others."""
    every = alike(record.digests)
    runs = running(every, _RUN)
    groups = [rows for rows in every if record.rich(rows) or int(rows[0]) in runs]
    if not groups:
        return
    found = record.division
    labels = np.zeros(len(record.digests)) if found.labels is None else found.labels
    crossing = [rows for rows in groups if _sides(rows, found)]
    apart = [rows for rows in groups if (labels[rows] != labels[rows[0]]).any()]
    more = f", {len(crossing)} of them on both sides of a split" if crossing else ""
    more += f", {len(apart)} of them in different classes" if apart else ""
    shown = (apart or crossing or groups)[0]
    # The next row, of another class if there is one.
    second = shown[1:][np.argmax(labels[shown[1:]] != labels[shown[0]])]
    yield (
        f"{sum(map(len, groups)) - len(groups)} samples have the content of another{more} (such as "
        f"{record.place(int(shown[0]))} and {record.place(int(second))}): remove the copies"
    )


def running(groups: list[Ints], run: int) -> set[int]:
    """Return the first rows of groups whose rows follow each other as they do in another place.

    A few rows are equal by chance, but not a run of so many in the same order.
    """
    pairs = {
        (int(one), int(two - one))
        for rows in groups
        # What repeats more often has few values.
        if len(rows) <= _TWICE
        for one, two in combinations(rows, 2)
    }
    starts = [(row, by) for row, by in pairs if all((row + n, by) in pairs for n in range(run))]
    return {row + n for row, _ in starts for n in range(run)}


def of_turned(record: Record) -> Iterator[str]:
    """Yield images that are others, mirrored or turned."""
    found = record.division
    groups = [
        rows
        for rows in alike(record.turned)
        if len(np.unique(record.digests[rows])) > 1 and record.rich(rows)
    ]
    if not groups:
        return
    crossing = [rows for rows in groups if _sides(rows, found)]
    shown = (crossing or groups)[0]
    more = f", {len(crossing)} of them on both sides of a split" if crossing else ""
    yield (
        f"{sum(map(len, groups)) - len(groups)} images are others, mirrored or turned{more} (such "
        f"as {record.place(int(shown[0]))} and {record.place(int(shown[1]))}): remove such copies, "
        "and give augment"
    )


def of_near(record: Record) -> Iterator[str]:
    """Yield images that are others, saved again: packed, resized, cropped, rotated, written on."""
    told = record.turned if len(record.turned) else record.digests
    pairs = [pair for pair in record.near if len(told) and told[pair[0]] != told[pair[1]]]
    if not pairs:
        return
    crossing = [pair for pair in pairs if _sides(pair, record.division)]
    one, other = (crossing or pairs)[0]
    more = f", {len(crossing)} of them on both sides of a split" if crossing else ""
    yield (
        f"{len(pairs)} images are nearly others, as if saved again{more} (such as "
        f"{record.place(int(one))} and {record.place(int(other))}): remove such copies"
    )


def of_identifiers(record: Record) -> Iterator[str]:
    """Yield what has samples on both sides of a split, such as a patient."""
    found = record.division
    if found.protocol == "future":
        return
    for name, values in record.identifiers.items():
        if len(values) != len(found.side) or len(values) < _FEW:
            continue
        _, codes = np.unique(values, return_inverse=True)
        # The same number at two clients is of two.
        if found.clients is not None:
            codes = codes * (1 + int(found.clients.max())) + found.clients
        distinct = len(np.unique(codes))
        groups = [rows for rows in alike(codes) if _sides(rows, found)]
        if not groups or distinct < _FEW // 2:
            continue
        first = groups[0]
        yield (
            f"{len(groups)} of {distinct} values of {name!r} have samples for training and for "
            f"testing (such as {values[first[0]]}): make {name!r} the clients, or give official "
            "test samples, if samples of one are alike"
        )
