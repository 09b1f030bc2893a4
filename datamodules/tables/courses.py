"""The course of a series: where it stands still, goes straight, or falls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from datamodules.contents import hashes
from datamodules.record import Course
from datamodules.targets import Floats

_FEW = 20
_AHEAD = 7


def course(name: str, values: Floats, step: float) -> Course:
    """Return the course of one client's values.

    Args:
        name: The client.
        values: (rows, F) numbers in order of time, the first target first; NaN if missing.
        step: Its usual step of time.
    """
    first = values[:, 0]
    if len(first) < _FEW:
        return Course(name, len(first), step)
    steps, bends = np.diff(first), np.round(np.diff(first, 2), 9)
    varied = len(np.unique(first)) > 0.9 * len(first) and len(np.unique(bends)) > 0.9 * len(bends)
    digest = int(hashes(values.reshape(1, -1))[0]) if varied else None
    return Course(name, len(first), step, digest, _still(first), _straight(steps), _falls(steps))


def _runs(same: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> tuple[int, int]:
    """Return start and length of the longest run of ``True``."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    if not len(edges):
        return 0, 0
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    longest = int(lengths.argmax())
    return int(starts[longest]), int(lengths[longest])


def _still(first: Floats) -> tuple[float, int] | None:
    """Return the value and the rows in which a series that varies stands still for long."""
    start, length = _runs(np.diff(first) == 0)
    value, others = float(first[start]), first[first != first[start]]
    if length + 1 == len(first):
        return value, len(first)
    varied = 2 * len(np.unique(others)) > len(others) > 0
    # Zeros are usual in what is counted: rain, sales.
    usual = value == 0 and (first == 0).sum() > length + 1 + 0.02 * len(first)
    long = length + 1 >= _FEW and 10 * (length + 1) > len(first)
    return (value, length + 1) if long and varied and not usual else None


def _straight(steps: Floats) -> int:
    """Return the rows in which a series that bends in other rows rises or falls evenly."""
    scale = np.nanmedian(np.abs(steps)) if np.isfinite(steps).any() else 0.0
    bends = np.abs(np.diff(steps))
    even = (bends <= 1e-3 * scale) & (steps[1:] != 0)
    _, length = _runs(even)
    return length + 2 if length + 2 >= _FEW and even.sum() < 0.9 * len(even) else 0


def _falls(steps: Floats) -> int:
    """Return how often a series falls far, if it rises in nearly all other rows."""
    known = steps[np.isfinite(steps)]
    falls = known < 0
    rising = (known > 0).sum() > 0.9 * len(known)
    far = rising and falls.any() and -known[falls].max() > 10 * np.quantile(known[~falls], 0.95)
    return int(falls.sum()) if far and falls.sum() < 0.05 * len(known) else 0


def ahead(names: Sequence[str], values: Floats) -> dict[str, int]:
    """Return the columns that are the first one of a later row, and by how many rows.

    Args:
        names: (F,) names of the columns.
        values: (rows, F) numbers of the clients one after the other, each in order of time.
    """
    first, found = values[:, 0], dict[str, int]()
    if len(np.unique(first)) < _FEW:
        return found
    for name, column in zip(names[1:], values[:, 1:].T, strict=True):
        for by in range(1, 1 + _AHEAD):
            # The last rows of each client have nothing that comes after.
            if (column[:-by] == first[by:]).mean() > 0.8:
                found.setdefault(name, by)
    return found
