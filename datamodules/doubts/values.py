"""Values of columns: what stands for no value, says nothing, or says what another says."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import takewhile

import numpy as np

from datamodules.record import Record, Use, Values
from datamodules.targets import Floats, Ints

# Numbers that often stand for a missing value.
_SENTINELS = (
    *(-1, -2, -7, -8, -9, -66, -77, -88, -99, -100, -777, -888, -997, -998, -999, -9999, -99999),
    *(77, 88, 98, 99, 777, 888, 997, 998, 999, 7777, 8888, 9998, 9999, 99999, 999999, 9999999),
    *(-999999, -99.9, -999.9, -9999.9, 999.9, 9999.9),
    *(-32768, 32767, 65535, -2147483648, 2147483647, 1e20, -1e20, 1e30, -1e30, 1e34, -1e34),
    *(9.96921e36, -3.40282347e38, 3.40282347e38),
)
# Codes of surveys for what was not known, not asked or refused.
_UNKNOWN = (7.0, 8.0, 9.0)
# So few numbers say nothing of what is usual among them.
_FEW = 20
_SOME = 10
# So many numbers of an end may each stand for a reason.
_ENDS = 5


def of_missing(record: Record) -> Iterator[str]:
    """Yield what is missing so often that what is left is another data set."""
    for column in record.of("feature"):
        total = len(column.numbers) or len(column.codes)
        gone = sum(column.missing.values())
        if total >= _FEW and 2 * gone > total:
            yield (
                f"{column.name!r} is missing in {gone} of {total} rows: give features without it, "
                "or keep its rows by missing: mean"
            )


def of_numbers(record: Record) -> Iterator[str]:
    """Yield what is doubtful about the numbers of each column."""
    for column in record.of("feature", "target"):
        numbers = column.numbers[np.isfinite(column.numbers)]
        if column.crowded:
            yield (
                f"{column.name!r} has numbers that single precision does not tell apart: "
                "standardise them"
            )
        if column.kind == "numbers" and len(numbers):
            yield from _constant(column, numbers)
            yield from _sentinels(column, numbers)
        elif len(column.present) == 1 and column.use == "feature":
            yield f"{column.name!r} is {next(iter(column.present))!r} in all rows: it says nothing"


def _constant(column: Values, numbers: Floats) -> Iterator[str]:
    # Numbers beyond the precision of floats differ as texts.
    constant = numbers.min() == numbers.max() and len(column.present) <= 1
    if constant and len(numbers) >= _SOME:
        what = "nothing can be learnt" if column.use == "target" else "it says nothing"
        yield f"{column.name!r} is {numbers[0]:g} in all rows: {what}"


def is_sentinel(value: float) -> bool:
    """Return ``True`` if a number often stands for a missing value."""
    # Not numpy's isclose, which takes a hundred times as long for single numbers.
    return any(math.isclose(value, one, rel_tol=1e-5, abs_tol=1e-8) for one in _SENTINELS)


def _sentinels(column: Values, numbers: Floats) -> Iterator[str]:
    """Yield a number for which a value may be missing: at an end, and apart from the others."""
    if column.listed:
        return
    usual = [*_ends(numbers)]
    for value in {*usual, float(numbers.min()), float(numbers.max()), 0.0}:
        equal = np.isclose(numbers, value, rtol=1e-6, atol=0)
        others, count = numbers[~equal], int(equal.sum())
        if not count or not len(others):
            continue
        small = value == 0 and _never_small(others, count)
        coded = value in _UNKNOWN and _beside_codes(value, others, count)
        if value in usual or small or coded:
            yield (
                f"{column.name!r} is {value:g} in {count} rows (first {_first(column, value)}), "
                f"far from its other values: {column.cure}"
            )


def _ends(numbers: Floats) -> Iterator[float]:
    """Yield usual sentinels at the ends, apart from the others: one, or several beyond a gap."""
    values = np.unique(numbers)
    for end in (values[:_ENDS], values[::-1][:_ENDS]):
        found = [*takewhile(is_sentinel, end[: len(values) - 1].tolist())]
        for number in range(len(found), 0, -1):
            some = found[:number]
            if (some[0] < 0) != (some[-1] < 0):
                continue
            gone = np.isclose(numbers[:, None], some, rtol=1e-6, atol=0).any(1)
            others = numbers[~gone]
            if (
                len(others)
                and _apart(some[-1], others, int(gone.sum()))
                and (number == 1 or _beyond(some, others))
            ):
                yield from some
                break


def _beyond(several: Sequence[float], others: Floats) -> bool:
    """Return ``True`` if all of several numbers of one end are beyond a gap."""
    least, most = float(others.min()), float(others.max())
    gap = max(least - max(several), min(several) - most)
    return gap >= max(5.0, 0.1 * (most - least))


def _first(column: Values, value: float) -> str:
    rows = np.flatnonzero(np.isclose(column.numbers, value, rtol=1e-6, atol=0))
    return column.place(int(rows[0]))


def _apart(value: float, others: Floats, count: int) -> bool:
    """Return ``True`` if a usual sentinel is outside the range of others."""
    least, most = float(others.min()), float(others.max())
    room = max(most - least, 1.0)
    gap = least - value if value < least else value - most
    if gap > 2 * room:
        return True
    distinct = len(np.unique(others[:5000]))
    if distinct < _SOME:
        return False
    if value < 0 <= least:
        # The only negative number of a column of amounts.
        return most >= _FEW or bool((others % 1 != 0).any())
    return count >= 3 and gap >= 0.1 * room


def _beside_codes(value: float, others: Floats, count: int) -> bool:
    """Return ``True`` if a number stands apart from others that count from 0 or 1, as codes do."""
    found = np.unique(others)
    first = found[: 1 + int(np.argmin(np.append(np.diff(found) == 1, False)))]
    numbered = 2 <= len(first) <= 6 and first[0] in (0, 1) and value >= first[-1] + 3
    rest = found[len(first) :]
    return numbered and bool(np.isin(rest, _UNKNOWN).all()) and count >= max(3, 0.01 * len(others))


def _never_small(others: Floats, count: int) -> bool:
    """Return ``True`` if a zero is no amount: all others are far from it, as blood pressures."""
    least, most = float(others.min()), float(others.max())
    distinct = len(np.unique(others[:5000]))
    return count >= 2 and distinct >= _SOME and least > 0 and least >= 0.25 * (most - least)


def of_equals(record: Record) -> Iterator[str]:
    """Yield features that are the target itself, or another feature."""
    for name, codes, texts in answers(record):
        for column in record.of("feature"):
            own, words = _coded(column)
            if len(codes) < _SOME or len(own) != len(codes) or not 2 <= len(words) == len(texts):
                continue
            pairs = len(np.unique(own * len(texts) + codes))
            # Few values, each of which is often a class: another name of it.
            often = len(texts) <= 20 and np.bincount(codes).min() >= 10
            if pairs == len(texts) and (often or {*words} == {*texts}):
                yield (
                    f"{column.name!r} is {name!r} in every row, or tells it: give features "
                    "without it, or the answer is among the inputs"
                )
    # Labels have two values.
    uses: tuple[tuple[Use, int], ...] = (("feature", _SOME), ("target", 2))
    for use, least in uses:
        seen: dict[tuple[bytes, tuple[str, ...]], str] = {}
        for column in record.of(use):
            own, words = _coded(column)
            if len(words) >= least:
                other = seen.setdefault((own.tobytes(), tuple(words)), column.name)
                if other != column.name:
                    yield (
                        f"{column.name!r} is {other!r} in every row: give one of them alone, if "
                        "it is a copy"
                    )


def answers(record: Record) -> Iterator[tuple[str, Ints, Sequence[str]]]:
    """Yield name, codes and values of what is predicted."""
    for target in record.of("target"):
        yield (target.name, *_coded(target))
    found = record.division
    if record.arrays and not record.of("target") and found.labels is not None:
        values, codes = np.unique(found.labels, return_inverse=True)
        yield "y", codes, [*map(str, values)]


def _coded(column: Values) -> tuple[Ints, Sequence[str]]:
    """Return (n,) codes of a column's values, and the values as texts."""
    if len(column.texts):
        return column.codes, column.texts
    values, codes = np.unique(column.numbers, return_inverse=True)
    return codes, [f"{value:.17g}" for value in values.tolist()]


def of_targets(record: Record) -> Iterator[str]:
    """Yield targets of classes with nearly as many classes as samples."""
    found = record.division
    if found.labels is None:
        return
    for column in record.of("target"):
        fractions = column.numbers[np.isfinite(column.numbers)] % 1 != 0
        if column.kind == "numbers" and fractions.any():
            yield (
                f"{column.name!r} has fractional numbers, and each of the "
                f"{len(found.names.get('class', {}))} would be a class; use task: regression to "
                "predict numbers"
            )
            return
    counts = [*found.names.get("class", {}).values()]
    present = sum(count > 0 for count in counts)
    if len(found.labels) >= _FEW and 2 * present > len(found.labels):
        yield (
            f"{present} of {len(found.labels)} samples have a class of their own: numbers to "
            "predict are task: regression, and identifiers are no classes"
        )
