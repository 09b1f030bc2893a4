"""Numbers that were filled in, mistyped, or computed from the answer, as the others show."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from datamodules.doubts.scales import clients_of
from datamodules.doubts.values import answers, is_sentinel
from datamodules.record import Record, Values
from datamodules.targets import Floats

_FEW = 20
_SOME = 10
# Ends that shares, percents, signs and bytes have by nature.
_ENDS = (-1.0, 0.0, 1.0, 100.0, 255.0)
# Factors between what was meant and what was typed, if a decimal sign is lost or slips.
_SLIPS = (0.01, 0.1, 10.0, 100.0)


def of_numbers_filled_in(record: Record) -> Iterator[str]:
    """Yield numbers that stand where there was none: a mean, or one number of a whole client."""
    clients, names = clients_of(record)
    for column in record.of("feature", "target"):
        if column.kind != "numbers" or column.listed:
            continue
        known = np.isfinite(column.numbers)
        if known.sum() >= _FEW:
            yield from _middle(column, column.numbers[known])
            if names and len(known) == len(clients):
                parts = [column.numbers[(clients == one) & known] for one in range(len(names))]
                yield from _turned(column, parts, names)
                # Targets of series have a course.
                if record.windows is None or column.use == "feature":
                    yield from _of_one(column, parts, names)


def _middle(column: Values, numbers: Floats) -> Iterator[str]:
    """Yield a number that alone is frequent, and is the mean or the median of the others."""
    values, counts = np.unique(numbers, return_counts=True)
    value, count = float(values[counts.argmax()]), int(counts.max())
    others = numbers[numbers != value]
    if count < max(5, 0.02 * len(numbers)) or len(values) - 1 < 0.8 * len(others):
        return
    if np.isclose(value, values[[0, -1]], rtol=1e-5, atol=0).any() and len(others) >= _SOME:
        yield from _at_an_end(column, value, count)
    elif len(others) >= _SOME and min(
        abs(value - others.mean()), abs(value - np.median(others))
    ) < 0.02 * float(others.std()):
        row = int(np.flatnonzero(column.numbers == value)[0])
        yield (
            f"{column.name!r} is {value:g} in {count} rows (first {column.place(row)}), which is "
            "the middle of the others, and no other number is so frequent: was it filled in for "
            "missing values? Leave them empty, and give missing: mean or drop, or the test "
            "samples are part of it"
        )


def _at_an_end(column: Values, value: float, count: int) -> Iterator[str]:
    """Yield an end at which many numbers are equal, unless it is one of a scale."""
    if not np.isclose(value, _ENDS, rtol=1e-5).any() and not is_sentinel(value):
        row = int(np.flatnonzero(column.numbers == value)[0])
        yield (
            f"{column.name!r} is {value:g} in {count} rows (first {column.place(row)}), none is "
            "beyond, and no other number is frequent: was it cut off at the end of a range or of "
            "what can be measured? Leave these rows out, or say so by a column of its own"
        )


def _of_one(column: Values, parts: list[Floats], names: list[str]) -> Iterator[str]:
    """Yield a client that has a single number, where those of others vary."""
    if len(np.unique(np.concatenate(parts))) < _FEW:
        return
    still = [n for n, part in enumerate(parts) if len(part) >= _SOME and np.ptp(part) == 0]
    if still and 2 * len(still) < len(names):
        part, name = parts[still[0]], names[still[0]]
        yield (
            f"{column.name!r} is {part[0]:g} in all {len(part)} rows of {name!r}, and varies at "
            f"other clients: {column.cure}"
        )


def _turned(column: Values, parts: list[Floats], names: list[str]) -> Iterator[str]:
    """Yield a client whose numbers are all below zero, where those of others are all above."""
    below = [n for n, part in enumerate(parts) if len(part) and part.max() < 0]
    above = sum(len(part) > 0 and part.min() > 0 for part in parts)
    if len(below) == 1 and above == len(names) - 1:
        yield (
            f"{column.name!r} of {names[below[0]]!r} is below zero in all rows, and above it at "
            "all other clients: turn its sign if it counts the other way"
        )


def of_slips(record: Record) -> Iterator[str]:
    """Yield a few numbers that would be as all others with another sign or decimal sign."""
    for column in record.of("feature", "target"):
        numbers = column.numbers[np.isfinite(column.numbers)]
        if column.kind != "numbers" or column.listed or len(numbers) < _FEW:
            continue
        turned = -1.0 if np.median(numbers) < 0 else 1.0
        low, high = np.quantile(turned * numbers, (0.04, 0.96)).tolist()
        if not 0 < high < 3 * low:
            yield from _beyond(column, numbers)
            continue
        every, middle = turned * column.numbers, float(np.median(turned * numbers))
        # Between these quantiles of a normal distribution lie 3.5 deviations.
        usual = (high - low) / 3.5
        far = np.flatnonzero((every < low / 1.5) | (every > 1.5 * high))
        if len(far) > max(2, 0.02 * len(numbers)):
            continue
        for row in far:
            value = float(every[row])
            meant = [value + 1900, value + 2000] * (0 < value < 100 and value % 1 == 0)
            meant += [-value, *(factor * value for factor in _SLIPS)]
            # What a normal distribution has at its ends is no slip: of more numbers, further out.
            if abs(value - middle) < (np.sqrt(2 * np.log(len(numbers))) + 1.75) * usual:
                continue
            best = min(meant, key=lambda one: abs(one - middle))
            # Those that are far larger are told elsewhere.
            near = low / 1.5 <= best <= 1.5 * high and value <= 100 * high
            if near and not is_sentinel(turned * value):
                yield (
                    f"{column.name!r} is {turned * value:g} in {column.place(int(row))}, and from "
                    f"{turned * low:g} to {turned * high:g} nearly everywhere: write "
                    f"{turned * best:g} if it is meant"
                )
                break


def _beyond(column: Values, numbers: Floats) -> Iterator[str]:
    """Yield one or two numbers far beyond all others, whose ends are near their middle."""
    ordered = np.sort(numbers)
    for few in (1, 2):
        rest, value = ordered[:-few], float(ordered[-few])
        # Numbers of no upper end, as incomes are, reach far.
        if rest[0] >= 0 and rest[-1] < 2.5 * np.median(rest) and value > 3 * rest[-1]:
            if not is_sentinel(value):
                row = int(np.flatnonzero(column.numbers == value)[0])
                yield (
                    f"{column.name!r} is {value:g} in {column.place(row)}, and at most "
                    f"{rest[-1]:g} elsewhere: check its digits and its unit"
                )
            return


def of_answers(record: Record) -> Iterator[str]:
    """Yield numbers that tell the answer: of one class below all of the other, or in its unit."""
    for name, codes, _ in answers(record):
        for column in record.of("feature"):
            numbers = column.numbers
            if len(numbers) != len(codes) or len(np.unique(numbers)) < _SOME:
                continue
            parts = [numbers[codes == one] for one in range(int(codes.max()) + 1)]
            if len(parts) == 2 and min(map(len, parts)) >= _SOME and _apart(*parts):
                yield (
                    f"{column.name!r} alone tells the classes of {name!r} apart, with nothing "
                    "between: give features without it, if it follows from the answer"
                )
    for target in record.of("target") if record.windows is None else ():
        for column in record.of("feature"):
            if len(column.numbers) == len(target.numbers) and _linear(
                column.numbers, target.numbers
            ):
                yield (
                    f"{column.name!r} is {target.name!r} in another unit: give features without "
                    "it, or the answer is among the inputs"
                )


def _apart(one: Floats, other: Floats) -> bool:
    return bool(one.max() < other.min() or other.max() < one.min())


def _linear(one: Floats, other: Floats) -> bool:
    """Return ``True`` if numbers follow a line but for their rounding."""
    known = np.isfinite(one) & np.isfinite(other)
    one, other = one[known], other[known]
    if min(len(np.unique(one)), len(np.unique(other))) < _FEW:
        return False
    return 1 - float(np.corrcoef(one, other)[0, 1]) ** 2 < 1e-5
