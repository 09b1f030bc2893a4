"""Steps of time between the rows of series: which are gaps, by which calendar, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from datamodules.checks import require
from datamodules.doubts.times import shown
from datamodules.record import Course, Windows
from datamodules.targets import Floats, Ints

# A step of more than this many usual ones is a gap.
_GAP = 1.5
_DAY, _HOUR = 86400.0, 3600.0
# So many hours of a clock show that it has no others.
_HALF = 6
# 1 January 1970 was a Thursday.
_THURSDAY = 3


def _weekday(times: Floats) -> Ints:
    """Return the days of the week, 0 for Monday."""
    return (np.floor_divide(times, _DAY).astype(np.int64) + _THURSDAY) % 7


def business(times: Floats) -> Floats:
    """Return times in seconds without the week ends."""
    days = np.floor_divide(times, _DAY)
    weeks = np.floor_divide(days + _THURSDAY, 7)
    found: Floats = (days - 2 * weeks) * _DAY + (times - days * _DAY)
    return found


class Gaps:
    """The steps of time of series.

    Args:
        clients: (rows,) clients, sorted.
        times: (rows,) times, sorted for each client.
        kind: ``numbers``, ``dates``, or empty without times.
        calendar: The calendar by which steps are measured.

    Attributes:
        breaks: (rows - 1,) mask of the steps to another client or over a gap.

    Raises:
        ValueError: The calendar does not suit the times.
    """

    def __init__(self, clients: NDArray[Any], times: Floats, kind: str, calendar: str) -> None:
        self.clients, self.times, self.kind, self.calendar = clients, times, kind, calendar
        self._same = clients[1:] == clients[:-1]
        if calendar == "business":
            require(kind == "dates", "calendar: business needs a time_column of dates")
            ends = np.flatnonzero(_weekday(times) > 4)
            require(
                not len(ends),
                f"calendar: business has no week ends, but there are {len(ends)} rows in them, the "
                f"first at {shown(float(times[ends[0]]), kind) if len(ends) else ''}",
            )
        measured = business(times) if calendar == "business" else times
        self.steps = pd.Series(np.diff(measured)).where(self._same)
        self.usual = self.steps.groupby(clients[1:]).transform("median")
        if calendar == "rows" or not kind:
            self.breaks = ~self._same
        else:
            self.breaks = (self.steps.isna() | (self.steps > _GAP * self.usual)).to_numpy()

    def tally(
        self, starts: Ints, empty: Ints, length: int, values: Floats, columns: Sequence[str]
    ) -> Windows:
        """Count the windows that are lost, by cause.

        Args:
            starts: First rows of the windows there are.
            empty: First rows of windows that are left out because a value is missing.
            length: Rows of a window.
            values: (rows, F) numbers of the rows, NaN if missing.
            columns: (F,) names of their columns.
        """
        rows = np.arange(max(0, len(self.clients) - length + 1))
        rows = rows[self.clients[rows] == self.clients[rows + length - 1]]
        gaps = np.flatnonzero(self.breaks & self._same)
        lost, where = dict[str, int](), dict[str, str]()
        if len(gaps):
            # The first gap at or after the first row of a window.
            place = np.searchsorted(gaps, rows)
            known = np.minimum(place, len(gaps) - 1)
            spans = (place < len(gaps)) & (gaps[known] < rows + length - 1)
            causes = self._causes(gaps)
            for cause in dict.fromkeys(causes[known[spans]].tolist()):
                lost[cause] = int((causes[known[spans]] == cause).sum())
                where[cause] = self._place(gaps[causes == cause][0])
        # Some are as the user says; if most of a client are, it is another data set.
        sparse = [own for own in self._parts() if 2 * np.isin(own, empty).sum() > len(own) - length]
        if sparse and len(empty):
            gone = np.intersect1d(np.concatenate(sparse), empty)
            lost |= {"missing values": len(gone)} if len(gone) else {}
            where |= {"missing values": self._place(gone[0])} if len(gone) else {}
        names = np.unique(self.clients)
        return Windows(
            possible=sum(max(0, len(own) - length + 1) for own in self._parts()),
            lost=lost,
            where=where,
            without=[str(name) for name in np.setdiff1d(names, self.clients[starts])],
            length=length,
            calendar=self.calendar,
            dated=self.kind == "dates",
            courses=[self._course(own, values[own]) for own in self._parts()],
            columns=columns,
        )

    def _parts(self) -> list[Ints]:
        """Return the rows of each client."""
        return np.split(np.arange(len(self.clients)), np.flatnonzero(~self._same) + 1)

    def _course(self, rows: Ints, values: Floats) -> Course:
        step = float(self.usual.to_numpy()[rows[0]]) if len(rows) > 1 and self.kind else 0.0
        return Course(str(self.clients[rows[0]]), values, step)

    def _place(self, gap: int) -> str:
        when = shown(float(self.times[gap]), self.kind)
        return f"after {when} ({self.clients[gap]})"

    def _causes(self, gaps: Ints) -> NDArray[np.str_]:
        """Return the causes of gaps, in the words of :mod:`datamodules.doubts.times`."""
        if self.kind == "numbers":
            return np.full(len(gaps), "gaps of numbers", "<U40")
        found = np.full(len(gaps), "missing rows", "<U40")
        before, after = self.times[gaps], self.times[gaps + 1]
        usual = self.usual.to_numpy()[gaps]
        worked = business(after) - business(before)
        nightly = (usual < _DAY / 2) & (worked < _DAY)
        days = np.maximum(1, (self.times[-1] - self.times[0]) / _DAY)
        if self.calendar == "business":
            found[(usual == _DAY) & (worked <= 5 * _DAY)] = "days off"
        if len(gaps) > 0.2 * self._same.sum():
            found[:] = "unequal steps"
        lengths = np.unique(np.round(worked[nightly] / _HOUR), return_counts=True)[1]
        # Nights are of one length, and there is one on most days.
        if nightly.sum() > 0.3 * days and 2 * lengths.max() > nightly.sum():
            found[nightly] = "nights"
        spans = (_weekday(before) <= 4) & (_weekday(after) <= 4)
        ends = (
            spans
            & (worked <= _GAP * usual)
            & (np.floor(after / _DAY) - np.floor(before / _DAY) > 2)
        )
        found[ends] = "week ends"
        sunday = (_weekday(after) == 6) & (np.floor(after / _DAY) == np.floor(before / _DAY))
        spring = pd.to_datetime(after, unit="s").month.isin([3, 4, 9, 10]) & (usual <= _HOUR)
        found[sunday & spring & np.isclose(after - before - usual, _HOUR)] = (
            "the hour that summer time skips"
        )
        return found


def why_again(times: Floats, kind: str, copied: bool) -> str:
    """Return why times may stand in two rows of a client, and what to do.

    Args:
        times: (n,) the times of the second rows.
        kind: ``numbers`` or ``dates``.
        copied: Whether each second row is a copy of another.
    """
    if kind == "dates" and len(times):
        months = pd.to_datetime(times, unit="s").month
        nightly = (times % _DAY < 4 * _HOUR) & (_weekday(times) == 6)
        if (nightly & months.isin([3, 4, 9, 10, 11])).all():
            return (
                "it is in the hour that the clock repeats as summer time ends: write times in UTC, "
                "or with their zone (2026-10-25T02:00+02:00 and +01:00), such as by pandas: "
                "tz_localize(ZONE, ambiguous='infer')"
            )
        hours = pd.to_datetime(times, unit="s").hour
        if len(np.unique(hours)) > _HALF and hours.max() < 12:
            return "all hours are before noon: write them in 24 hours, or with %I and %p"
    if copied:
        return "rows are copied: remove one of each (pandas: drop_duplicates)"
    return (
        "if these are of two series, client_column has to tell them apart; if times lack their "
        "hour, write it"
    )
