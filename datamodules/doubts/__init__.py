"""Doubts about data as read: functions of one record, run for all readers.

A doubt is a line that names the place, what is doubted and what to write. Each module holds those
of one concern; a reader has none. :mod:`datamodules.likeness` measures for them what images
look like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from datamodules.doubts import (
    arrays,
    copies,
    courses,
    division,
    filled,
    groups,
    names,
    places,
    rows,
    scales,
    spelling,
    times,
    values,
)
from datamodules.record import Record

_ROOMS = (
    *(places, rows, names, spelling, scales, values, filled, groups, arrays),
    *(times, courses, copies, division),
)
# Each function of theirs that is called so is a doubt.
_ALL: tuple[Callable[[Record], Iterator[str]], ...] = tuple(
    find for room in _ROOMS for name, find in vars(room).items() if name.startswith("of_")
)


def doubts(record: Record) -> tuple[str, ...]:
    """Return all doubts about data as read, each once."""
    return tuple(dict.fromkeys(line for find in _ALL for line in find(record)))
