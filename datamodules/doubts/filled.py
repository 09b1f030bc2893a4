"""Numbers that were filled in, mistyped, or computed from the answer, as the others show."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise

import numpy as np

from datamodules.doubts.scales import clients_of
from datamodules.doubts.values import answers, is_sentinel
from datamodules.record import Record, Values
from datamodules.targets import Floats, Ints

_FEW = 20
_SOME = 10
# What is so rare by chance (in bits) is none.
_BITS = 18
# The same for one number among many that could be as frequent.
_RARE = 13
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
            told: list[str] = []
            if names and len(known) == len(clients):
                parts = [column.numbers[(clients == one) & known] for one in range(len(names))]
                told = [*_turned(column, parts, names)]
                # Targets of series have a course.
                if record.windows is None or column.use == "feature":
                    yield from _of_one(column, parts, names)
            every = [np.arange(len(known))]
            if names and len(known) == len(clients):
                every += [np.flatnonzero(clients == one) for one in range(len(names))]
            found = (line for rows in every for line in _turned_rows(column, rows))
            yield from told or islice(found, 1)


def _middle(column: Values, numbers: Floats) -> Iterator[str]:
    """Yield a number that alone is frequent, and is the mean or the median of the others."""
    values, counts = np.unique(numbers, return_counts=True)
    value, count = float(values[counts.argmax()]), int(counts.max())
    others = numbers[numbers != value]
    if count < max(5, 0.02 * len(numbers)) or len(values) - 1 < 0.8 * len(others):
        return
    if np.isclose(value, values[[0, -1]], rtol=1e-5, atol=0).any() and len(others) >= _SOME:
        yield from _at_an_end(column, value, count)
    elif len(others) >= _SOME and _is_middle(value, others) and _is_rare(value, count, others):
        row = int(np.flatnonzero(column.numbers == value)[0])
        yield (
            f"{column.name!r} is {value:g} in {count} rows (first {column.place(row)}), which is "
            "the middle of the others, and no other number is so frequent: was it filled in for "
            "missing values? Leave them empty, and give missing: mean or drop, or the test "
            "samples are part of it"
        )


def _is_middle(value: float, others: Floats) -> bool:
    """Return ``True`` if a number is the mean or the median of others, as near as they are."""
    # Where some are far away, those around it say what is near.
    spread = min(float(others.std()), 1.5 * float(np.median(np.abs(others - value))))
    return min(abs(value - float(others.mean())), abs(value - float(np.median(others)))) < (
        0.02 * spread
    )


def _is_rare(value: float, count: int, others: Floats) -> bool:
    """Return ``True`` if so many numbers are hardly equal by chance, as those near them tell."""
    step = float(np.diff(np.unique(others)).min())
    if abs((value - others[0]) / step % 1 - 0.5) < 0.49:
        return True  # the others are whole numbers of steps, and it is not
    near = np.sort(np.abs(others - value))[:_SOME]
    # How many are expected at each number that may be written, in a range of this size.
    expected = len(near) * step / (2 * near[-1])
    bits = float(np.log2(np.arange(1, count + 1) / expected).sum())  # of expected**count / count!
    return bits >= _RARE


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
    """Yield a client that has a single number, or whole ones, where those of others vary."""
    if len(np.unique(np.concatenate(parts))) < _FEW:
        return
    still = [n for n, part in enumerate(parts) if len(part) >= _SOME and np.ptp(part) == 0]
    whole = [float((part % 1 == 0).mean()) if len(part) >= _SOME else 0.5 for part in parts]
    if still and 2 * len(still) < len(names):
        part, name = parts[still[0]], names[still[0]]
        yield (
            f"{column.name!r} is {part[0]:g} in all {len(part)} rows of {name!r}, and varies at "
            f"other clients: {column.cure}"
        )
    elif whole.count(1.0) == 1 and sorted(whole)[-2] < 0.3:
        yield (
            f"{column.name!r} of {names[whole.index(1.0)]!r} has whole numbers alone, and that of "
            "all other clients has not: was it rounded there? Give it as exactly as elsewhere, or "
            "round all alike"
        )


def _turned(column: Values, parts: list[Floats], names: list[str]) -> Iterator[str]:
    """Yield a client whose numbers are those of all others with another sign."""
    below = [n for n, part in enumerate(parts) if len(part) and part.max() < 0]
    above = [float(np.median(part)) for part in parts if len(part) > 0 and part.min() > 0]
    if len(below) == 1 and len(above) == len(names) - 1 and _like(parts[below[0]], above):
        yield (
            f"{column.name!r} of {names[below[0]]!r} is below zero in all rows, and above it at "
            "all other clients: turn its sign if it counts the other way"
        )


def _turned_rows(column: Values, rows: Ints) -> Iterator[str]:
    """Yield a run among some rows whose numbers are those of the others with another sign."""
    known = rows[np.isfinite(column.numbers[rows]) & (column.numbers[rows] != 0)]
    numbers = column.numbers[known]
    starts = np.flatnonzero(np.diff(np.sign(numbers)) != 0) + 1
    if len(np.unique(numbers)) < _FEW or not 1 <= len(starts) <= 2:
        return
    end = starts[1] if len(starts) > 1 else len(numbers)
    sizes, start = np.abs(numbers), starts[0]
    own, other = sizes[start:end], np.append(sizes[:start], sizes[end:])
    # Those that pass zero gradually are near it.
    far = min(len(own), len(other)) >= _SOME and own.min() > 0.3 * np.median(own)
    if far and _like(own, [float(np.median(other))]):
        rest = f" for {len(own)} rows" if end < len(numbers) else ""
        yield (
            f"the sign of {column.name!r} changes from {column.place(int(known[start]))} on{rest}, "
            "and its size does not: turn it if it counts the other way there"
        )


def _like(numbers: Floats, middles: list[float]) -> bool:
    """Return ``True`` if numbers are of the size of others, whose middles are given."""
    return min(middles) / 1.5 < abs(float(np.median(numbers))) < 1.5 * max(middles)


def of_lacking(record: Record) -> Iterator[str]:
    """Yield a column of which a client has no value, where others have most."""
    clients, names = clients_of(record)
    for column in record.of("feature"):
        if not names or len(column.codes) != len(clients) or not _kept(record, column):
            continue
        gone = column.gone
        counts = np.bincount(clients, minlength=len(names))
        shares = np.bincount(clients, gone, len(names)) / np.maximum(counts, 1)
        whole = np.flatnonzero((shares == 1) & (counts >= _SOME))
        if 0 < 2 * len(whole) < len(names) and np.median(shares[shares < 1]) < 0.3:
            yield (
                f"{column.name!r} is missing in all {counts[whole[0]]} rows of "
                f"{names[whole[0]]!r}, and seldom at most other clients, so that what replaces it "
                "says where a row comes from: give features without it, or leave the client out"
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
            inside = abs(value - middle) < (np.sqrt(2 * np.log(len(numbers))) + 1.75) * usual
            if inside and np.sort(np.abs(turned * numbers - value))[1] < 2 * usual:
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
    """Yield features that tell the answer: by their numbers, their words, or what they lack."""
    for name, codes, texts in answers(record):
        if not 2 <= len(texts) <= _FEW:
            continue
        for column in record.of("feature"):
            if _parts_apart(column.numbers, codes):
                yield (
                    f"{column.name!r} alone tells the classes of {name!r} apart, with nothing "
                    "between: give features without it, if it follows from the answer"
                )
                continue
            if len(column.codes) != len(codes):
                continue
            gone = column.gone
            # Values that are as many as the classes are told of as another name of them.
            if len(column.present) > len(texts) and _tells(
                column.codes[~gone], codes[~gone], column.numbers[~gone]
            ):
                yield (
                    f"each value of {column.name!r} stands with one value of {name!r} alone: give "
                    "features without it, or the answer is among the inputs"
                )
            elif _kept(record, column) and _tells(gone.astype(np.int64), codes):
                yield (
                    f"{column.name!r} is missing in all rows of some values of {name!r}, and in "
                    "none of the others, so that what is missing tells the answer: give features "
                    "without it"
                )
    yield from _of_other_units(record)


def _of_other_units(record: Record) -> Iterator[str]:
    """Yield features that are a target in another unit."""
    for target in record.of("target") if record.windows is None else ():
        for column in record.of("feature"):
            if len(column.numbers) == len(target.numbers) and linear(
                column.numbers, target.numbers
            ):
                yield (
                    f"{column.name!r} is {target.name!r} in another unit: give features without "
                    "it, or the answer is among the inputs"
                )


def _parts_apart(numbers: Floats, codes: Ints) -> bool:
    """Return ``True`` if each class has numbers of its own, with nothing between."""
    if len(numbers) != len(codes) or len(np.unique(numbers)) < _SOME:
        return False
    parts = [numbers[codes == one] for one in range(int(codes.max()) + 1)]
    return min(map(len, parts)) >= _SOME and _apart(parts)


def _tells(own: Ints, codes: Ints, numbers: Floats | None = None) -> bool:
    """Return ``True`` if each of some values stands with one class alone, and hardly by chance.

    Args:
        own: (n,) the value of each row.
        codes: (n,) its class.
        numbers: (n,) the values as numbers, NaN for others: near ones may have one class anyway.
    """
    if not len(codes):
        return False
    width = 1 + int(codes.max())
    pairs = np.unique(own * width + codes)
    counts = np.bincount(own)
    if len(pairs) > (counts > 0).sum():
        return False
    shares = np.bincount(codes) / len(codes)
    chance = (shares[:, None] ** counts[counts > 0]).sum(0)
    if numbers is not None and np.isfinite(numbers).all():
        _, first = np.unique(numbers, return_index=True)
        agree = float((codes[first][1:] == codes[first][:-1]).sum()) / len(first)
        chance = np.maximum(chance, agree ** (counts[counts > 0] - 1))
    return -float(np.log2(chance).sum()) >= _BITS


def _kept(record: Record, column: Values) -> bool:
    """Return ``True`` if rows in which a value is missing are used."""
    return len(record.division.side) in (0, len(column.codes))


def _apart(parts: list[Floats]) -> bool:
    """Return ``True`` if the numbers of each class are between those of no other."""
    ends = sorted((float(part.min()), float(part.max())) for part in parts)
    return all(one[1] < other[0] for one, other in pairwise(ends))


def linear(one: Floats, other: Floats) -> bool:
    """Return ``True`` if numbers follow a line but for their rounding."""
    known = np.isfinite(one) & np.isfinite(other)
    one, other = one[known], other[known]
    if min(len(np.unique(one)), len(np.unique(other))) < _FEW:
        return False
    return 1 - float(np.corrcoef(one, other)[0, 1]) ** 2 < 1e-5
