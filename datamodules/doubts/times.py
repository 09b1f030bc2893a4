"""Times: windows lost to gaps, by cause, with the key that helps; and times far from all others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from datamodules.record import Record, Times, Windows

YEAR = 365.25 * 86400

_FEW, _MOST = 20, 500

_HELP = {
    "week ends": "calendar: business leaves week ends out",
    "nights": "calendar: rows takes each row as the next step",
    "days off": "calendar: rows takes each row as the next step",
    "missing values": "missing values have to be filled in, or features given without their column",
    "the hour that summer time skips": "write times in UTC, or with their zone",
    "unequal steps": "calendar: rows takes each row as the next step, or sum up to equal steps",
    "gaps of numbers": "date_format reads numbers that are dates; calendar: rows takes each row as "
    "the next step",
    "missing rows": "add their rows, or let calendar: rows take each row as the next step",
}


def of_windows(record: Record) -> Iterator[str]:
    """Yield how many windows are lost to which cause, and what to do."""
    windows = record.windows
    if windows is None:
        return
    yield from (f"{record.source}: {line}" for line in _lost(windows))
    if windows.without:
        yield (
            f"{record.source}: {len(windows.without)} of {len(windows.courses)} clients have no "
            f"{_gapless(windows)} and are left out, the first is {windows.without[0]}"
        )


def _gapless(windows: Windows) -> str:
    """Return what a window needs, in words."""
    return f"{windows.length} rows without a gap (past + horizon)"


def _lost(windows: Windows) -> list[str]:
    """Return how many windows are lost to each cause, and what to do."""
    return [
        f"{lost:,} of {windows.possible:,} windows are lost to {cause}, the first "
        f"{windows.where[cause]}: {_HELP[cause]}"
        for cause, lost in windows.lost.items()
    ]


def none_left(source: str, windows: Windows) -> str:
    """Return the message for series without any window, with the causes and what to do."""
    short = [] if windows.possible else ["each has fewer rows: lower past or horizon"]
    what = f"{source}: no client has {_gapless(windows)}"
    return "; ".join([what, *short, *_lost(windows)])


def of_times(record: Record) -> Iterator[str]:
    """Yield times that stand far from the others, or say nothing of an order."""
    times = record.times
    if times is None or len(times.values) < 10:
        return
    yield from _swapped(record, times)
    values = np.sort(times.values)
    if not times.given:
        yield from _out_of_order(record, times)
        return
    if values[0] == values[-1]:
        yield f"{times.name!r} is the same in all rows: it gives no order"
        return
    yield from _elsewhere(times)
    steps = np.diff(values)
    place = int(steps.argmax())
    usual = values[-1] - values[0] - steps[place]
    # Few times beyond a gap that is far longer than all the others together.
    few = min(place + 1, len(values) - place - 1)
    far = steps[place] > max(3 * usual, 5 * YEAR if times.kind == "dates" else 0.0)
    if far and usual > 0 and 20 * few <= len(values):
        value = values[0] if place + 1 == few else values[-1]
        yield (
            f"{times.name!r} is {shown(float(value), times.kind)} in {few} rows, far from all "
            "others: is it a slip, or does it say that there is no time?"
        )


def _elsewhere(times: Times) -> Iterator[str]:
    """Yield a client whose dates are decades from those of all others."""
    if times.clients is None or times.kind != "dates":
        return
    names, codes = np.unique(times.clients, return_inverse=True)
    if not 2 <= len(names) <= _MOST:
        return
    spans = np.array([(own.min(), own.max()) for own in (times.values[codes == one]
                     for one in range(len(names)))])  # fmt: skip
    for place, name in enumerate(names):
        others = np.delete(spans, place, 0)
        gap = max(others[:, 0].min() - spans[place, 1], spans[place, 0] - others[:, 1].max())
        if gap > max(20 * YEAR, 3 * np.ptp(others)):
            yield (
                f"{times.name!r} of {str(name)!r} is around "
                f"{shown(float(spans[place, 0]), 'dates')}, {gap / YEAR:.0f} years from that of "
                "all other clients: check the century"
            )
            return


def _swapped(record: Record, times: Times) -> Iterator[str]:
    """Yield dates whose order is that of the file once day and month change places."""
    if times.kind != "dates" or len(times.values) < _FEW:
        return
    order = np.arange(len(times.values))
    if times.clients is not None:
        order = np.argsort(times.clients, kind="stable")
    own = (
        np.ones(len(order) - 1, bool)
        if times.clients is None
        else (times.clients[order][1:] == times.clients[order][:-1])
    )
    days = times.values[order].astype("datetime64[s]").astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    day, month = (days - months).astype(int) + 1, months.astype(int) % 12 + 1
    years = days.astype("datetime64[Y]")
    turned = (years.astype("datetime64[M]") + (day - 1)).astype("datetime64[D]") + (month - 1)
    meant = np.where(day <= 12, turned, days)
    back = (np.diff(days).astype(int) < 0) & own
    if back.any() and not ((np.diff(meant).astype(int) < 0) & own).any():
        place = record.place(int(order[1:][back][0]))
        yield (
            f"{times.name!r} goes back {back.sum()} times in the file (first {place}), and never "
            "if day and month of days up to the twelfth change places: a spreadsheet may have "
            "swapped them; export the dates again, as 2026-03-31"
        )


def _out_of_order(record: Record, times: Times) -> Iterator[str]:
    """Yield rows that are taken in order though a column of dates says otherwise."""
    if record.windows is None or times.clients is None:
        return
    order = np.argsort(times.clients, kind="stable")
    clients, values = times.clients[order], times.values[order]
    back = (np.diff(values) < 0) & (clients[1:] == clients[:-1])
    if back.any():
        yield (
            f"{record.source}: without time_column rows are taken in the order of the file, but "
            f"{times.name!r} goes back {back.sum()} times: give time_column: {times.name}"
        )


def shown(value: float, kind: str) -> str:
    """Return a time as text."""
    if kind != "dates":
        return f"{value:.15g}"
    stamp = np.datetime64(round(value * 1000), "ms")
    text = str(stamp.astype("datetime64[s]"))
    return text.removesuffix("T00:00:00")
