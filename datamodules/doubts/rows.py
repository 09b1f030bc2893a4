"""Rows that are no records: repeated headers, totals, units, and an end that was cut off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from datamodules.record import Record, Values

TOTALS = frozenset(
    (
        *("total", "totals", "grand total", "subtotal", "sub-total", "sum", "average", "avg"),
        *("mean", "median", "overall", "all", "min", "max", "std", "count", "totale", "totaal"),
        *("gesamt", "insgesamt", "summe", "mittelwert", "durchschnitt", "somme", "moyenne"),
        *("ensemble", "suma", "promedio", "media", "soma", "média", "łącznie", "итого", "合计"),
    )
)
UNITS = frozenset(
    (
        *("kg", "g", "mg", "lb", "lbs", "cm", "mm", "m", "km", "in", "inch", "s", "sec", "min"),
        *("h", "hr", "hours", "days", "d", "years", "yrs", "yr", "y", "%", "percent", "unit"),
        *("units", "°c", "c", "°f", "k", "bpm", "mmhg", "mg/dl", "mmol/l", "kwh", "kw", "w", "v"),
        *("usd", "eur", "€", "$", "n", "-", "[-]", "text", "string", "int", "float", "char"),
    )
)


def is_unit(text: str) -> bool:
    """Return ``True`` if a text is a unit or the name of a type."""
    return text.casefold().strip("()[] .") in UNITS


def of_headers(record: Record) -> Iterator[str]:
    """Yield lines below the header that repeat it, or that hold units."""
    named: Counter[int] = Counter()
    units: list[Values] = []
    for column in record.columns:
        name = column.name.strip()
        for text in {name, name.lower(), name.upper(), name.title()}:
            named.update(column.rows(text).tolist())
        if _only_first(column):
            units.append(column)
    repeated = [row for row, count in named.items() if count >= max(2, len(record.columns) // 2)]
    if repeated and record.columns:
        places = record.columns[0].place(min(repeated))
        more = f" and {len(repeated) - 1} more lines" if len(repeated) > 1 else ""
        yield f"{record.source}, {places}{more}: the header is repeated; remove it"
    elif units:
        first = units[0]
        yield (
            f"{record.source}, {first.place(0)}: {first.texts[first.codes[0]]!r} in "
            f"{first.name!r} may be a unit, and this line no row; remove it"
        )


def _only_first(column: Values) -> bool:
    """Return ``True`` if the first cell alone is no number, or is a unit among other words."""
    if len(column.codes) < 3:
        return False
    text = column.texts[column.codes[0]]
    if column.present.get(text) != 1:
        return False
    if column.kind == "both":
        return bool(np.isnan(column.numbers[0]) and np.isfinite(column.numbers[1:]).any()) and (
            is_unit(text) or not np.isnan(column.numbers[1:]).any()
        )
    return column.kind == "words" and is_unit(text)


def of_totals(record: Record) -> Iterator[str]:
    """Yield rows that sum up others: by their name, or by their numbers."""
    for column in record.columns:
        if column.kind not in ("words", "both"):
            continue
        for text, count in column.present.items():
            others = [number for other, number in column.present.items() if other != text]
            name = text.casefold().strip(" .:()").removesuffix("s")
            if (
                {name, text.casefold()} & TOTALS
                and others
                and 2 * count < max(2.1, np.median(others))
            ):
                row = int(column.rows(text)[0])
                yield (
                    f"{record.source}, {column.place(row)}: {text!r} in {column.name!r} "
                    f"({count} of {len(column.codes)} rows) may sum up other rows; remove it"
                )
    yield from _sums(record)


def _sums(record: Record) -> Iterator[str]:
    numbers = [one for one in record.columns if one.kind == "numbers" and len(one.numbers) >= 10]
    numbers = [one for one in numbers if np.isfinite(one.numbers).all() and one.codes.any()]
    numbers = [one for one in numbers if one.numbers.min() != one.numbers.max()]
    if len(numbers) < 2:
        return
    for what, of in (("sum", np.sum), ("mean", np.mean)):
        equal = [np.isclose(of(one.numbers[:-1]), one.numbers[-1], rtol=1e-4) for one in numbers]
        if all(equal):
            place = numbers[0].place(len(numbers[0].numbers) - 1)
            yield (
                f"{record.source}, {place}: its numbers are the {what} of the rows above; remove it"
            )


def of_cut_ends(record: Record) -> Iterator[str]:
    """Yield a last row that may have been cut off."""
    if record.lines is None or not record.lines.unfinished:
        return
    # A reader may append columns of numbers.
    worded = [one for one in record.columns if one.kind in ("words", "both", "dates")]
    if not worded or (row := len(worded[-1].codes) - 1) < 3:
        return
    last = worded[-1]
    text = last.texts[last.codes[row]]
    longer = [other for other in last.present if other != text and other.startswith(text)]
    if last.present.get(text) == 1 and longer:
        yield (
            f"{record.source}, {last.place(row)}: the file ends within the line, and its last "
            f"value {text!r} may be {longer[0]!r}, cut off: copy it again"
        )
