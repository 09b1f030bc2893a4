"""Groups of samples against all others: columns that changed places, other scales, other names."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from datamodules.doubts.scales import clients_of
from datamodules.record import Record, Values
from datamodules.targets import Floats, Ints

Rows = NDArray[np.bool_]
# So many rows of a group say enough, and so many columns are compared by pairs.
_FEW, _MOST = 15, 40
# Columns of so few values hold flags or codes.
_CODES = 10
# Parts of a file, such as one that was appended.
_PARTS = ((0.0, 0.5), (0.5, 1.0), (0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))


def of_columns_of_groups(record: Record) -> Iterator[str]:
    """Yield a client or a part of the rows whose columns changed places, or are scaled already."""
    columns = _compared(record)
    if len(columns) < 2:
        return
    values = np.stack([one.numbers for one in columns], 1)
    clients, names = clients_of(record)
    known = names if len(clients) == len(values) else []
    groups = [(f"at the client {name!r}", clients == one) for one, name in enumerate(known)]
    for where, own in [*groups, *_parts(len(values))]:
        if min(own.sum(), (~own).sum()) >= _FEW and (pair := _swapped(values[own], values[~own])):
            first, second = (columns[place].name for place in pair)
            yield (
                f"{first!r} and {second!r} seem to have changed places {where}: each has the "
                "numbers there that the other has elsewhere; put them right"
            )
            return
    yield from _of_another_width(values, clients, known)
    for where, own in groups:
        if min(own.sum(), (~own).sum()) >= _FEW and _scaled_alone(values, own):
            yield (
                f"columns have a mean of 0 and a deviation of 1 {where}, and others elsewhere: "
                "were they standardised there alone? Give all as they were measured"
            )
            return


def _compared(record: Record) -> list[Values]:
    """Return columns of numbers that are long enough to be compared, and as long as each other."""
    columns = [
        one
        for one in record.of("feature", "target")
        if one.kind == "numbers" and not one.listed and len(one.numbers) >= 2 * _FEW
    ]
    return [one for one in columns if len(one.numbers) == len(columns[0].numbers)][:_MOST]


def of_channels_of_clients(record: Record) -> Iterator[str]:
    """Yield a client whose channels changed places, as red and blue do."""
    clients, names = clients_of(record)
    arrays = [(one.name, one.means, one.rows) for one in record.arrays if one.dtype != "uint8"]
    for what, values, rows in (("images", record.hues, np.arange(len(record.hues))), *arrays):
        if not names or not 2 <= values.shape[1] <= _MOST:
            continue
        for one, name in enumerate(names):
            own = clients[rows] == one
            enough = min(own.sum(), (~own).sum()) >= _FEW
            if enough and (pair := _swapped(values[own], values[~own])):
                yield (
                    f"channels {pair[0]} and {pair[1]} of {what} seem to have changed places at "
                    f"the client {name!r} (as in RGB and BGR): put them right"
                )
                return


def _of_another_width(values: Floats, clients: Ints, names: list[str]) -> Iterator[str]:
    """Yield a client whose numbers spread ten times as far, or a tenth, in most columns."""
    parts = [values[clients == one] for one in range(len(names))]
    if not parts or min(map(len, parts)) < _FEW or not (np.nanmin(values, 0) < 0).any():
        return
    widths = np.array([np.nanstd(part, 0) for part in parts])
    logs = np.log10(widths[:, (widths > 0).all(0)])
    for place, name in enumerate(names if logs.shape[1] > 1 else ()):
        others = np.delete(logs, place, 0)
        far = np.abs(logs[place] - np.median(others, 0)) > 1
        # Positive numbers of one column are told of by their unit.
        if 2 * (far & (np.ptp(others, axis=0) < 0.5)).sum() > logs.shape[1]:
            ratio = 10 ** float(np.median(logs[place] - np.median(others, 0)))
            yield (
                f"numbers of the client {name!r} spread {ratio:.3g} times as far as those of all "
                "others in most columns: were they scaled otherwise? Give all alike"
            )
            return


def _parts(count: int) -> list[tuple[str, Rows]]:
    place = np.arange(count) / count
    return [
        (
            f"in rows {int(start * count) + 1} to {int(end * count)}",
            (place >= start) & (place < end),
        )
        for start, end in _PARTS
    ]


def _swapped(own: Floats, others: Floats) -> tuple[int, int] | None:
    """Return two columns of which each is as the other is in other rows."""
    middles = np.nanmedian(own, 0), np.nanmedian(others, 0)
    near = max(0.3, 1.6 * float(np.sqrt(1 / len(own) + 1 / len(others))))
    for pair in combinations(range(own.shape[1]), 2):
        one, two = pair
        # Most pairs are told apart by their middles, and most others by how alike the columns are.
        here, there = (part[[*pair]] for part in middles)
        if np.isnan([*here, *there]).any() or (here[0] < here[1]) == (there[0] < there[1]):
            continue
        if _distance(others[:, one], others[:, two]) <= max(0.6, near):
            continue
        if not all(
            _within(own[:, two if place == one else one], others[:, place]) for place in pair
        ):
            continue
        # Levels of clients differ, but less than columns do.
        apart = 0.3 * abs(there[0] - there[1])
        alike = max(
            min(_distance(own[:, place], others[:, other]), near * abs(shift) / apart)
            for place, other, shift in (
                (one, two, here[0] - there[1]),
                (two, one, here[1] - there[0]),
            )
        )
        if alike < near:
            return pair
    return None


def _within(own: Floats, others: Floats) -> bool:
    """Return ``True`` if numbers are among others, wherever these are flags or codes."""
    values = np.unique(others[np.isfinite(others)])
    return len(values) > _CODES or bool(np.isin(own[np.isfinite(own)], values).all())


def _distance(one: Floats, other: Floats) -> float:
    """Return the largest distance of two distributions (Kolmogorov and Smirnov)."""
    one, other = (np.sort(of[np.isfinite(of)]) for of in (one, other))
    every = np.concatenate([one, other])
    shares = [np.searchsorted(of, every, "right") / max(1, len(of)) for of in (one, other)]
    return float(np.abs(shares[0] - shares[1]).max(initial=0.0))


def _scaled_alone(values: Floats, own: Rows) -> bool:
    """Return ``True`` if most columns are standardised in some rows, and not in the others."""

    def standard(rows: Rows, tight: float) -> Rows:
        middles, widths = np.nanmean(values[rows], 0), np.nanstd(values[rows], 0)
        near: Rows = (np.abs(middles) < tight) & (widths > 1 / (1 + tight)) & (widths < 1 + tight)
        return near

    here = standard(own, max(0.3, 3 / float(np.sqrt(own.sum()))))
    return bool(2 * here.sum() > values.shape[1] and not standard(~own, 3.0)[here].any())


def of_classes_of_clients(record: Record) -> Iterator[str]:
    """Yield a client that names or numbers its classes otherwise than all others."""
    found = record.division
    if found.clients is None:
        return
    names, shown = found.named("client"), found.named("class")
    labels: NDArray[np.generic] | None = found.labels
    if record.goal is not None and record.goal.dense:
        labels, shown = record.goal.y.reshape(len(record.goal.y), -1), []
    if labels is None or not 3 <= len(names) <= 200:
        return
    every = [frozenset(_classes(labels, found.clients, one)) for one in range(len(names))]
    for place, own in enumerate(every):
        others = {*every[:place], *every[place + 1 :]}
        if len(others) != 1 or own in others or len(own) < 2:
            continue
        usual = next(iter(others))
        if len(own) == len(usual):
            here, there = (
                ", ".join(str(shown[one] if shown else one) for one in sorted(of)[:5])
                for of in (own, usual)
            )
            yield (
                f"the client {names[place]!r} has the classes {here}, and each other one has "
                f"{there}: does it number or name the same ones otherwise?"
            )


def _classes(labels: NDArray[np.generic], clients: Ints, client: int) -> list[int]:
    return [int(one) for one in np.unique(labels[clients == client])]
