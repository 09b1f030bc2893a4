"""Courses of series: sensors that stood still, gaps that were filled, counters, copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from datamodules.contents import hashes
from datamodules.doubts.copies import alike, running
from datamodules.doubts.filled import linear
from datamodules.record import Course, Record, Windows
from datamodules.targets import Floats

_HOUR, _DAY = 3600.0, 86400.0
# So few rows say nothing of a course.
_FEW = 20
# So many rows that follow each other in two places are a block.
_BLOCK = 12
_SOME = 10
_RUNS = 5
# So many rows tell whether a value says something of the next.
_LONG = 40
# Thirty times as large, as a power of ten.
_POWER = 1.5
_MOST = 500
# So many rows later, a feature may be the target.
_AHEAD = 7


def of_courses(record: Record) -> Iterator[str]:
    """Yield clients whose values do not move as those of a series do."""
    windows = record.windows
    if windows is None:
        return
    long = [one for one in windows.courses if len(one.values) >= _FEW]
    for line in (
        *_still(windows.courses),
        *_filled(long, len(windows.courses)),
        *(next(filter(None, map(odd, long)), "") for odd in (_counts, _jumps, _repeats, _between)),
        *_sums(long),
        *_copies(long),
        *_blocks(long),
        *_noise(long),
        *_added_up(windows.courses),
        *_steps(windows.courses, windows.dated),
        *_ahead(windows),
    ):
        if line:
            yield f"{record.source}: {line}"


def _still(courses: Sequence[Course]) -> Iterator[str]:
    """Yield series of which one stands still for long, and moves in other rows or at others."""
    found = [still(one.values[:, 0]) for one in courses]
    whole = [0 < known[1] == len(one.values) for one, known in zip(courses, found, strict=True)]
    for one, (value, rows) in zip(courses, found, strict=True):
        if rows and not all(whole):
            yield (
                f"the first target of {one.name!r} is {value:g} in {rows} rows running, and varies "
                "in others: a sensor may have stood still, so name the value in missing_values or "
                "remove these rows"
            )


def still(first: Floats) -> tuple[float, int]:
    """Return the value and the rows in which a series that varies stands still for long, or 0."""
    if len(first) < _FEW:
        return 0.0, 0
    start, length = _longest(np.diff(first) == 0)
    value, others = float(first[start]), first[first != first[start]]
    if length + 1 == len(first):
        return value, len(first)
    if not len(others):
        return 0.0, 0
    varied = 2 * len(np.unique(others)) > len(others)
    # Zeros are usual in what is counted: rain, sales.
    usual = value == 0 and (first == 0).sum() > length + 1 + 0.02 * len(first)
    long = length + 1 >= _FEW and 10 * (length + 1) > len(first)
    # Of numbers that hardly repeat, fewer are no chance, but for the ends of what is measured.
    fine = len(np.unique(others)) > 0.95 * len(others) and others.min() < value < others.max()
    long = long or (fine and length + 1 >= _RUNS)
    return (value, length + 1) if long and varied and not usual else (0.0, 0)


def _longest(same: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> tuple[int, int]:
    """Return start and length of the longest run of ``True``."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    if not len(edges):
        return 0, 0
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    longest = int(lengths.argmax())
    return int(starts[longest]), int(lengths[longest])


def _filled(courses: Sequence[Course], count: int) -> Iterator[str]:
    found = [(one.name, rows) for one in courses if (rows := straight(one.values[:, 0]))]
    # If many are, it is their nature.
    if found and 2 * len(found) <= max(2, count):
        name, rows = found[0]
        yield (
            f"the first target of {name!r} goes straight in {rows} rows running, and nowhere "
            "else: a gap may have been interpolated, and then it says what came after; leave its "
            "rows out"
        )


def straight(first: Floats) -> int:
    """Return the rows in which a series that bends in other rows rises or falls evenly."""
    steps = np.diff(first)
    scale = np.nanmedian(np.abs(steps)) if np.isfinite(steps).any() else 0.0
    even = (np.abs(np.diff(steps)) <= 1e-3 * scale) & (steps[1:] != 0)
    _, length = _longest(even)
    return length + 2 if length + 2 >= _FEW and even.sum() < 0.9 * len(even) else 0


def _counts(one: Course) -> str:
    """Return a line if values rise as those of a counter, which is reset now and then."""
    times = falls(one.values[:, 0])
    if not times:
        return ""
    return (
        f"the first target of {one.name!r} rises in nearly all rows, and falls far {times} times, "
        "as a counter that is reset: predict its differences (pandas: diff), and leave out those"
    )


def falls(first: Floats) -> int:
    """Return how often a series falls far, if it rises in nearly all other rows."""
    known = np.diff(first)
    known = known[np.isfinite(known)]
    down = known < 0
    rising = (known > 0).sum() > 0.9 * len(known)
    far = rising and down.any() and -known[down].max() > 10 * np.quantile(known[~down], 0.95)
    return int(down.sum()) if far and down.sum() < 0.05 * len(known) else 0


def _sums(courses: Sequence[Course]) -> Iterator[str]:
    """Yield a client whose values never fall, though those of others do in a fifth of rows."""
    steps = [np.diff(one.values[:, 0]) for one in courses]
    never = [bool((of >= 0).all() and 2 * (of > 0).sum() > len(of)) for of in steps]
    often = sum(5 * (of < 0).sum() >= len(of) for of in steps)
    if any(never) and often > sum(never) and often + sum(never) == len(courses):
        yield (
            f"the first target of {courses[never.index(True)].name!r} never falls, and that of "
            "other clients does: is it summed up? Give its differences (pandas: diff)"
        )


def _blocks(courses: Sequence[Course]) -> Iterator[str]:
    """Yield a block of rows that a client has twice, one after the other."""
    for one in courses:
        again = running(alike(hashes(one.values)), _BLOCK)
        if again and len(again) < len(one.values):
            yield (
                f"{len(again)} rows of {one.name!r} have the values of later ones in the same "
                f"order, the first in its row {min(again) + 1}: was a block pasted twice? Leave it "
                "out"
            )


def _jumps(one: Course) -> str:
    """Return a line if values are of another size from one row to the next, and stay so."""
    first = one.values[:, 0]
    if not (first > 0).all():
        return ""
    sizes = np.log10(first)
    place = 1 + int(np.abs(np.diff(sizes)).argmax())
    before, after = sizes[max(0, place - _FEW) : place], sizes[place : place + _FEW]
    power = float(np.median(after) - np.median(before))
    if min(len(before), len(after)) < _RUNS or abs(power) <= _POWER:
        return ""
    return (
        f"the first target of {one.name!r} is around {10 ** np.median(before):.3g}, and from its "
        f"row {place + 1} on around {10 ** np.median(after):.3g}: is it in another unit from there "
        "on?"
    )


def _noise(courses: Sequence[Course]) -> Iterator[str]:
    """Yield a client whose values say nothing of the next, though those of all others do."""
    known = [one for one in courses if len(one.values) >= _LONG]
    memory = np.array([remembered(one.values[:, 0]) for one in known])
    if len(known) < 3 or np.isnan(memory).any():
        return
    place = int(memory.argmin())
    # Three times the standard error of a correlation that is none.
    none = abs(memory[place]) < 3 / np.sqrt(len(known[place].values))
    if none and np.delete(memory, place).min() > 0.7:
        yield (
            f"the first target of {known[place].name!r} changes from row to row as noise does, and "
            "that of all other clients goes on from row to row: was its sensor lost, or were its "
            "rows shuffled? Put them in order, or leave this client out"
        )


def remembered(first: Floats) -> float:
    """Return the correlation of the values of a series with the next ones."""
    one, other = first[:-1], first[1:]
    return float(np.corrcoef(one, other)[0, 1]) if min(np.ptp(one), np.ptp(other)) > 0 else np.nan


def _repeats(one: Course) -> str:
    """Return a line if values stand for the same number of rows each, as if repeated."""
    rows = held(one.values[:, 0])
    if not rows:
        return ""
    return (
        f"each value of the first target of {one.name!r} stands in {rows} rows running, as if "
        "measured so seldom and repeated: give a row for each measurement alone"
    )


def held(first: Floats) -> int:
    """Return the number of rows for which each value of a series stands; 0 if it differs."""
    changes = np.flatnonzero(np.diff(first) != 0)
    lengths = np.diff(changes)
    if len(lengths) < _RUNS:
        return 0
    usual = int(np.median(lengths))
    return usual if usual > 1 and (lengths % usual == 0).mean() > 0.9 else 0


def _between(one: Course) -> str:
    """Return a line if many values lie midway between their neighbours."""
    first = one.values[:, 0]
    scale = float(np.median(np.abs(np.diff(first))))
    # Whole numbers are midway by chance.
    if len(np.unique(first)) < 0.9 * len(first) or not scale:
        return ""
    midway = np.abs(np.diff(first, 2)) <= 1e-3 * scale
    if not 0.25 <= midway.mean() <= 0.6:
        return ""
    return (
        f"{midway.sum()} of {len(first)} values of the first target of {one.name!r} lie midway "
        "between their neighbours: were they interpolated? Each says what comes after it; leave "
        "their rows out"
    )


def _added_up(courses: Sequence[Course]) -> Iterator[str]:
    """Yield a client whose values are the sum or the mean of those of all others."""
    lengths = {len(one.values) for one in courses}
    if not 3 <= len(courses) <= _MOST or len(lengths) > 1 or min(lengths) < _SOME:
        return
    values = np.stack([one.values[:, 0] for one in courses])
    for place, one in enumerate(courses):
        others = np.delete(values, place, 0)
        for what, total in (("sum", others.sum(0)), ("mean", others.mean(0))):
            if np.ptp(total) > 0 and np.allclose(values[place], total, rtol=1e-3, equal_nan=True):
                yield (
                    f"the first target of {one.name!r} is the {what} of those of all other clients "
                    "in each row: leave this client out"
                )
                return


def _copies(courses: Sequence[Course]) -> Iterator[str]:
    seen: dict[int, str] = {}
    for one in courses:
        first = one.values[:, 0]
        bends = np.round(np.diff(first, 2), 9)
        # What follows a rule is equal without being a copy.
        if any(len(np.unique(of)) <= 0.9 * len(of) for of in (first, bends)):
            continue
        other = seen.setdefault(int(hashes(one.values.reshape(1, -1))[0]), one.name)
        if other != one.name:
            yield (
                f"{one.name!r} has the same values as {other!r} in every row: leave one out if it "
                "is a copy"
            )


def _steps(courses: Sequence[Course], dated: bool) -> Iterator[str]:
    known = [one for one in courses if one.step > 0]
    usual = float(np.median([one.step for one in known])) if known else 0.0
    for one in known:
        if not 0.6 < one.step / usual < 1.6:
            yield (
                f"rows of {one.name!r} are {_shown(one.step, dated)} apart, and "
                f"{_shown(usual, dated)} at most clients, so that a window is of another "
                "time: bring all to one step (pandas: resample), or leave these out"
            )
            return


def _shown(step: float, dated: bool) -> str:
    if not dated:
        return f"{step:g}"
    unit, name = (_DAY, "days") if step >= _DAY else (_HOUR, "hours")
    return f"{step / unit:g} {name}" if step >= _HOUR else f"{step / 60:g} minutes"


def _ahead(windows: Windows) -> Iterator[str]:
    """Yield features that are the first target of a later row."""
    values = np.concatenate([one.values for one in windows.courses] or [np.empty((0, 1))])
    first = values[:, 0]
    if len(np.unique(first)) < _FEW:
        return
    for name, column in zip(windows.columns[1:], values[:, 1:].T, strict=False):
        if around := _smoothed(column, first):
            yield (
                f"{name!r} is the mean of the target from {around} rows before to {around} after: "
                "give features without it, or the answer is among the inputs"
            )
        # The last rows of each client have nothing that comes after.
        later = (
            by
            for by in range(1, 1 + _AHEAD)
            if (column[:-by] == first[by:]).mean() > 0.8 or linear(column[:-by], first[by:])
        )
        if by := next(later, 0):
            yield (
                f"{name!r} is the target of {by} rows later: give features without it, or the "
                "answer is among the inputs"
            )


def _smoothed(column: Floats, first: Floats) -> int:
    """Return over how many rows on each side a feature is the mean of a target; 0 if it is not."""
    for around in (1, 2, 3):
        width = 2 * around + 1
        means = np.convolve(first, np.ones(width) / width, "valid")
        if len(means) < _FEW:
            return 0
        near = np.abs(column[around:-around] - means) <= 1e-3 * float(np.nanstd(first))
        if near.mean() > 0.8:
            return around
    return 0
