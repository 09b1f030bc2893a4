"""Courses of series: sensors that stood still, gaps that were filled, counters, copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from datamodules.record import Course, Record

_HOUR, _DAY = 3600.0, 86400.0


def of_courses(record: Record) -> Iterator[str]:
    """Yield clients whose values do not move as those of a series do."""
    windows = record.windows
    if windows is None:
        return
    for line in (
        *_still(windows.courses),
        *_filled(windows.courses),
        *_counters(windows.courses),
        *_copies(windows.courses),
        *_steps(windows.courses, windows.dated),
    ):
        yield f"{record.source}: {line}"
    for name, by in windows.ahead.items():
        yield (
            f"{record.source}: {name!r} is the target of {by} rows later: give features without "
            "it, or the answer is among the inputs"
        )


def _still(courses: Sequence[Course]) -> Iterator[str]:
    moving = any(one.still is None or one.still[1] < one.rows for one in courses)
    for one in courses:
        if one.still is not None and moving:
            value, rows = one.still
            yield (
                f"the first target of {one.name!r} is {value:g} in {rows} rows running, and varies "
                "in others: a sensor may have stood still, so name the value in missing_values or "
                "remove these rows"
            )


def _filled(courses: Sequence[Course]) -> Iterator[str]:
    found = [one for one in courses if one.straight]
    # If many are, it is their nature.
    if found and 2 * len(found) <= max(2, len(courses)):
        yield (
            f"the first target of {found[0].name!r} goes straight in {found[0].straight} rows "
            "running, and nowhere else: a gap may have been interpolated, and then it says what "
            "came after; leave its rows out"
        )


def _counters(courses: Sequence[Course]) -> Iterator[str]:
    found = [one for one in courses if one.falls]
    if found:
        yield (
            f"the first target of {found[0].name!r} rises in nearly all rows, and falls far "
            f"{found[0].falls} times, as a counter that is reset: predict its differences (pandas: "
            "diff), and leave out those"
        )


def _copies(courses: Sequence[Course]) -> Iterator[str]:
    seen: dict[int, str] = {}
    for one in courses:
        other = one.name if one.digest is None else seen.setdefault(one.digest, one.name)
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
