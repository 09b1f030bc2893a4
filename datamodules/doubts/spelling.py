"""Cells whose spelling says that they were meant otherwise: words for none, dates, codes, units."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from datamodules.doubts.copies import BELONGS
from datamodules.doubts.names import is_nothing
from datamodules.record import Record, Values
from datamodules.targets import Floats

# So few numbers say nothing of what is usual among them.
FEW = 20
_MOST = 1000
_NUMBERED = re.compile(r"(?i)^(unnamed: ?\d+|index|row|row_?(id|num|number)|id|uuid|.*_id)$")
_MEASURE = re.compile(r"[-+]?\d+(?:\.\d+)?\s*([^\W\d_/.]{1,4}(?:/[a-zA-Z]{1,3})?|°C|°F|%)")
_MARKED = re.compile(r"[='\"`\u2018\u2019#]\d+(?:\.\d+)?")
# Two numbers in a cell: blood pressures, sizes, means with an error, degrees; and fractions, which
# are codes, such as those of genes, if they are few.
_SEVERAL = re.compile(
    r"\d{2,3} ?/ ?\d{2,3}|[\d.,]+ ?(x|\u00d7|±|\+/-) ?[\d.,]+|[\d.]+ \([\d.]+( ?- ?[\d.]+)?\)"
    r"|\d{1,3} ?° ?\d{1,2}[\'\u2032\u2019].{0,9}"
)
_FRACTION = re.compile(r"\d{1,3} ?/ ?\d{1,3}")
# What says how much a row counts.
_WEIGHTS = re.compile(
    r"(?i)^(fnlwgt|[pf]weights?|(sample|survey|case|instance|design|row)[ _.-]?weights?)$"
)
# In a column of codes of two letters, these are codes, too: Namibia, Sodium, North America.
_CODES = frozenset(("NA",))
_MONTHS = "jan|feb|mar|mär|mrz|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez"
_DATES = re.compile(
    rf"\d{{1,2}}[-. ]+({_MONTHS})[a-z]*\.?|({_MONTHS})[a-z]*[-. ]+\d{{1,2}}"
    r"|\d{4}-\d{2}-\d{2}([T ]00:00:00)?|\d{1,2}/\d{1,2}/\d{4}",
    re.IGNORECASE,
)
_SHORTENED = re.compile(r"\d([.,]\d+)?[eE]\+\d{2}")
# Days since 30 December 1899, by which spreadsheets number dates: 1927 to 2064, 2000 to 2030.
_SERIAL, _RECENT = (10_000, 60_000), (36_526, 47_500)
_DATED = re.compile(
    r"(?i)(?<![a-z])(date|datum|fecha|day|dob|birth|born|geburt\w*|admi\w+|discharge\w*|visit\w*"
    r"|death|time|timestamp|onset|when)(?![a-z])|(date|datum|time|stamp)$"
)


def of_words(record: Record) -> Iterator[str]:
    """Yield words that may stand for no value, and values that are missing but may be words."""
    for column in record.of("feature", "target", "client"):
        if column.kind != "numbers":
            for text, count in column.present.items():
                # In + and -, both are values.
                if is_nothing(text) and not (text == "-" and "+" in column.present):
                    yield (
                        f"{column.name!r} has {text!r} in {count} rows, which is read as a value: "
                        f"{column.cure}"
                    )
        yield from _codes(column)
        if column.kind in ("words", "both"):
            yield from _turned_into_dates(column)
        if column.kind == "words" and column.use == "feature" and len(column.texts) <= _MOST:
            yield from _with_signs(column)
    for column in record.columns:
        yield from _shortened(column)


def _with_signs(column: Values) -> Iterator[str]:
    """Yield numbers that are words because of what stands beside them in each cell."""
    present = [*column.present]
    if len(present) > 1 and all(map(_MARKED.fullmatch, present)):
        yield (
            f"{column.name!r} holds numbers after a sign, such as {present[0]!r}, and is read as "
            "categories: remove the sign"
        )
    many = len(present) >= FEW and all(map(_FRACTION.fullmatch, present))
    if many or (len(present) > 1 and all(map(_SEVERAL.fullmatch, present))):
        yield (
            f"{column.name!r} holds two numbers in each cell, such as {present[0]!r}, and is read "
            "as categories: write each into a column of its own"
        )
    found = [_MEASURE.fullmatch(text) for text in present]
    units = {match[1] for match in found if match is not None}
    if len(found) >= 5 and None not in found and len(units) == 1:
        yield (
            f"{column.name!r} holds numbers with the unit {units.pop()!r}, and is read as "
            "categories: write plain numbers"
        )


def _turned_into_dates(column: Values) -> Iterator[str]:
    """Yield dates among other words: spreadsheets make them of 5-9, 1/2 and MARCH1."""
    dates = [text for text in column.present if _DATES.fullmatch(text)]
    if 0 < len(dates) < len(column.present) <= _MOST:
        yield (
            f"{column.name!r} has the date {dates[0]!r} among other words, such as "
            f"{next(text for text in column.present if text not in dates)!r}: a spreadsheet makes "
            "dates of 5-9 or SEPT2; write what was meant, and import the column as text"
        )


def _shortened(column: Values) -> Iterator[str]:
    """Yield identifiers of which a spreadsheet kept the first digits."""
    if column.use not in ("client", "target") and not BELONGS.match(column.name):
        return
    short = [text for text in column.present if _SHORTENED.fullmatch(text)]
    if short and (column.use != "target" or column.listed or column.kind != "numbers"):
        yield (
            f"{column.name!r} has {short[0]!r}, the form in which a spreadsheet shortens long "
            "numbers, so that several are one: export the column as text"
        )


def _codes(column: Values) -> Iterator[str]:
    """Yield codes that were taken for missing values, as NA in a column of countries."""
    taken = [text for text in column.missing if text.isalpha()]
    others = [*column.present]
    coded = len(others) > 1 and all(re.fullmatch("[A-Z]{2}", text) for text in others)
    usual = np.median([*column.present.values()]) if others else np.inf
    for text in taken:
        large = column.use == "client" and 2 * column.missing[text] >= usual
        if (coded and text in _CODES) or large:
            yield (
                f"{column.name!r} is {text!r} in {column.missing[text]} rows, which count as "
                f"missing; if {text} is one of its names, as {others[0]!r} is, give missing_values "
                "without it, such as ['?']"
            )


def of_spelling(record: Record) -> Iterator[str]:
    """Yield numbers that may be dates, codes or thousands, or that say where a row stands."""
    for column in record.of("feature", "time"):
        numbers = column.numbers[np.isfinite(column.numbers)]
        if column.kind == "numbers" and len(numbers) and not column.listed:
            yield from _serial(column, numbers)
    for column in record.of("feature"):
        if _WEIGHTS.match(column.name):
            yield (
                f"{column.name!r} may say how much a row counts, and is an input: give features "
                "without it"
            )
        numbers = column.numbers[np.isfinite(column.numbers)]
        # The columns of an array have no spelling.
        if column.kind == "numbers" and len(numbers) and len(column.texts) and not column.listed:
            for find in (_all_dates, _zeros_before, _thousands, _numbering):
                yield from find(column, numbers)


def _serial(column: Values, numbers: Floats) -> Iterator[str]:
    """Yield dates that a spreadsheet numbered: by the column's name, or all within a decade."""
    least, most = float(numbers.min()), float(numbers.max())
    named = bool(_DATED.search(column.name)) and _SERIAL[0] <= least and most <= _SERIAL[1]
    narrow = _RECENT[0] <= least and most <= _RECENT[1] and most - least < 4000
    if len(np.unique(numbers[:5000])) >= FEW // 2 and (named or narrow):
        day = np.datetime64("1899-12-30") + np.timedelta64(int(least), "D")
        yield (
            f"{column.name!r} is from {least:.0f} to {most:.0f}: a spreadsheet numbers dates so "
            f"({least:.0f} is {day}); write dates, such as by pandas: to_datetime(column, "
            "unit='D', origin='1899-12-30')"
        )


def _all_dates(column: Values, numbers: Floats) -> Iterator[str]:
    if len(numbers) >= FEW and column.seconds:
        yield (
            f"{column.name!r} is read as numbers, but all of them are dates, such as "
            f"{numbers[0]:.0f}"
        )


def _zeros_before(column: Values, numbers: Floats) -> Iterator[str]:
    first = (text for text in column.present if text[0] == "0")
    code = next((text for text in first if re.match(r"0\d\d", text)), "")
    if code:
        yield (
            f"{column.name!r} is read as numbers, but {code!r} may be a code: categories: "
            f"[{column.name}] names it"
        )


def _thousands(column: Values, numbers: Floats) -> Iterator[str]:
    """Yield numbers whose decimal sign may separate thousands."""
    every = column.present
    pointed = [text for text in every if "." in text]
    grouped = pointed and all(re.fullmatch(r"[1-9]\d{0,2}(\.\d{3})+", text) for text in pointed)
    if grouped and len(pointed) < len(every) and any(text.endswith("0") for text in pointed):
        yield (
            f"{column.name!r} is read as numbers below a thousand, but {pointed[0]!r} may be "
            f"{pointed[0].replace('.', '')}: give thousands: '.'"
        )


def _numbering(column: Values, numbers: Floats) -> Iterator[str]:
    """Yield numbers of the rows."""
    if len(numbers) < FEW:
        return
    whole, named = bool((numbers % 1 == 0).all()), bool(_NUMBERED.match(column.name))
    steps = np.diff(numbers)
    even = steps[0] != 0 and bool((steps == steps[0]).all())
    # Of files that were joined, it begins anew.
    anew = ((steps == 1) | (numbers[1:] == numbers[0])).all() and (steps == 1).mean() > 0.8
    if even or (named and whole and (anew or len(np.unique(numbers)) == len(numbers))):
        yield (
            f"{column.name!r} numbers the rows: as an input it says where a row stands; give "
            "features without it"
        )
