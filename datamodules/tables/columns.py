"""A column of a table: the spelling and the kind of its cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from datamodules.checks import require
from datamodules.record import Kind, Use, Values
from datamodules.tables.dates import dates_of
from datamodules.targets import Floats, Ints, plain_name

# pandas' texts for a missing value without "None", which is a word in many tables; and "?".
MISSING = (
    *("", "NA", "N/A", "NaN", "-NaN", "null", "<NA>", "?", "#N/A", "#N/A N/A", "#NA"),
    *("1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)
_USUAL = frozenset(word.lower() for word in MISSING)
# Maximum number of categories listed in a line; others are counted.
_NAMED = 8
# Minimum number of rows for ruling out a category by nearly distinct values.
_FEW = 20
# Floats represent all smaller integers exactly.
_EXACT = 2.0**53
# Dates in other forms than ISO 8601, and times of a day.
_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[.,]?"
_DATE = re.compile(
    rf"\d{{1,4}}[-/.]\d{{1,2}}[-/.]\d{{1,4}}.*|\d{{1,2}}:\d{{2}}(?::\d{{2}})?(?: ?[ap]m)?"
    rf"|(?:\d{{1,2}}[-. ]+)?{_MONTH}[- ]+(?:\d{{1,2}},?[- ]+)?\d{{2,4}}",
    re.IGNORECASE,
)
# Numbers with thousands separators or another decimal sign, perhaps with a currency or percent.
_DIGITS = r"[-+]?(?:\d+|\d{1,3}(?:[.,'\u2019\s]\d{2,3})+)(?:[.,]\d+)?"
_NUMBER = re.compile(_DIGITS)
_AMOUNT = re.compile(rf"\(?[-+]?(?:[$€£¥]|[A-Z]{{3}})?\s*{_DIGITS}\s*(?:[$€£¥%‰]|[A-Z]{{3}})?\)?")


@dataclass(frozen=True)
class Spelling:
    """The spelling of a table's cells, with the options of pandas' ``read_csv``.

    Attributes:
        missing_values: Texts or numbers that mark a missing value, instead of the usual ones; an
            empty cell is always missing.
        date_format: Format of dates in Python's codes, such as ``%d.%m.%Y``; by default ISO 8601,
            or integers such as 20260331.
        decimal: Decimal sign.
        thousands: Thousands separator.
        separator: Separator of columns in a text file.

    Raises:
        ValueError: A sign is not a single character, or two are the same.
    """

    missing_values: Sequence[str | float] | None = None
    date_format: str | None = None
    decimal: str = "."
    thousands: str | None = None
    separator: str = ","

    def __post_init__(self) -> None:
        signs = {name: getattr(self, name) for name in ("decimal", "thousands", "separator")}
        for name, sign in signs.items():
            require(sign is None or len(sign) == 1, f"{name} must be one character, got {sign!r}")
        require(self.decimal != self.thousands, f"decimal and thousands are both {self.decimal!r}")

    @cached_property
    def _missing(self) -> tuple[frozenset[str], frozenset[float]]:
        given = self.missing_values or ()
        words = frozenset(str(value).strip() for value in given)
        numbers = frozenset(map(self.number, map(str, given)))
        return words | {""}, frozenset(value for value in numbers if np.isfinite(value))

    @cached_property
    def _grouped(self) -> re.Pattern[str]:
        group, point = re.escape(self.thousands or ""), re.escape(self.decimal)
        return re.compile(rf"[-+]?\d{{1,3}}(?:{group}\d{{3}})+(?:{point}\d*)?")

    def is_missing(self, text: str) -> bool:
        """Return ``True`` if a text marks a missing value."""
        if self.missing_values is None:
            return text.lower() in _USUAL
        return text in self._missing[0] or self.number(text) in self._missing[1]

    def number(self, text: str) -> float:
        """Parse a number; return NaN for a text that is not a finite number."""
        if self.thousands is not None and self.thousands in text:
            if not self._grouped.fullmatch(text):
                return np.nan
            text = text.replace(self.thousands, "")
        if self.decimal != ".":
            if "." in text:
                return np.nan
            text = text.replace(self.decimal, ".")
        try:
            value = float(text) if "_" not in text else np.nan
        except ValueError:
            return np.nan
        return value if np.isfinite(value) else np.nan


class Column(Values):
    """The parsed cells of a column; texts are stripped and in Unicode's form NFC.

    Args:
        name: Its name.
        cells: (n,) texts, or float64 with NaN for missing values.
        spelling: How the texts are spelt.
        place: Returns the place of a row in its file.
    """

    def __init__(
        self, name: str, cells: NDArray[Any], spelling: Spelling, place: Callable[[int], str]
    ) -> None:
        super().__init__(name, "none", place=place)
        self.spelling = spelling
        # Numbers of a binary file are spelled as in Python.
        self.written = cells.dtype != np.float64
        codes, found = pd.factorize(cells, sort=not self.written, use_na_sentinel=False)
        spelt = [plain_name(str(v)) if self.written else _spelt(v) for v in found.tolist()]
        places, texts = pd.factorize(np.array(spelt, object))
        self.codes, self.texts = places[codes], texts.tolist()
        self.absent = np.array([spelling.is_missing(text) for text in self.texts], bool)
        if self.written:
            cells = np.array([*map(spelling.number, self.texts)], np.float64)[self.codes]
        self.numbers = np.where(np.isfinite(cells) & ~self.gone, cells, np.nan)
        if len(self.bad):
            mixed: Kind = "both" if np.isfinite(self.numbers).any() else "words"
            self.kind = mixed if self.dates is None else "dates"

    def used(self, use: Use, times: str, listed: bool, as_is: bool) -> Column:
        """Return the column after noting its use, for the record of what was read.

        Args:
            use: What it is used for.
            times: Kind of the times, if these are: ``numbers`` or ``dates``.
            listed: Whether it is a category because the user says so.
            as_is: Whether numbers are left unstandardised.
        """
        self.use, self.listed, self.shown = use, listed, self._shown(use, times or self.kind)
        self.seconds = self.kind == "numbers" and self.dates is not None
        self.crowded = as_is and use in ("feature", "target") and self._is_crowded()
        return self

    def _shown(self, use: Use, kind: str) -> str:
        """Return the kind and the values as text."""
        as_words = use in ("client", "target") and len(self.present) <= _NAMED
        if kind == "dates":
            found = sorted(self.present)
            return f"dates, {found[0]} to {found[-1]}"
        if kind == "numbers" and not as_words and self.present:
            return f"numbers, {np.nanmin(self.numbers):g} to {np.nanmax(self.numbers):g}"
        if use != "none" or len(self.present) <= _NAMED:
            values = self.present.items()
            named = ", ".join(f"{text[:40]} {count}" for text, count in [*values][:_NAMED])
            more = f", and {len(values) - _NAMED} more" if len(values) > _NAMED else ""
            return f"{kind if kind == 'numbers' else 'category'}: {named}{more}"
        return "identifier" if self.identifies() else "words"

    def identifies(self) -> bool:
        """Return ``True`` if nearly all values of a column of words are distinct."""
        count = sum(self.present.values())
        return count >= _FEW and len(self.present) > 0.8 * count

    @property
    def bad(self) -> Ints:
        """The rows with values that are not finite numbers."""
        return np.flatnonzero(np.isnan(self.numbers) & ~self.gone)

    @cached_property
    def dates(self) -> Floats | None:
        """(n,) dates in seconds since 1970, NaN if missing; ``None`` if they are not dates."""
        texts = [*self.present]
        found = dates_of(texts, self.spelling.date_format) if texts else None
        if found is None:
            return None
        by_text = dict(zip(texts, found.tolist(), strict=True))
        return np.array([by_text.get(text, np.nan) for text in self.texts])[self.codes]

    def _is_crowded(self) -> bool:
        """Return ``True`` if single precision merges most of the distinct numbers."""
        with np.errstate(over="ignore"):
            kept = np.unique(self.numbers[~self.gone].astype(np.float32))
        return self.kind == "numbers" and 2 * len(kept) < len(self.present)

    def labels(self) -> NDArray[Any]:
        """Return (n,) numbers if all present values are numbers (integers if whole), else texts.

        Texts that numbers would merge, such as 007 and 7 or ids of 20 digits, stay texts.
        """
        if len(self.bad) or (self.written and not self._apart()):
            return np.array(self.texts)[self.codes]
        values = self.numbers
        whole = (values == np.round(values)) & (np.abs(values) < _EXACT)
        return values.astype(np.int64) if whole.all() else values

    def values(self) -> list[str]:
        """Return the distinct present values, in numerical or alphabetical order."""
        if len(self.bad):
            return sorted(self.present)
        return [str(value) for value in np.unique(self.labels()[~self.gone])]

    def places(self, known: Sequence[str]) -> Ints:
        """Return the (n,) index of each value among known ones, and -1 for any other.

        Values are compared as numbers if all known values are numbers of :meth:`labels`.
        """
        numbers = [Spelling().number(value) for value in known]
        if all(map(_is_label, known, numbers)):
            place = {number: n for n, number in enumerate(numbers)}
            return np.array([place.get(v, -1) for v in self.numbers.tolist()], np.int64)
        words = {word: n for n, word in enumerate(known)}
        found: Ints = np.array([words.get(text, -1) for text in self.texts], np.int64)[self.codes]
        return found

    def advice(self) -> str:
        """Return advice if all texts are dates or amounts; empty otherwise."""
        words = [text for text in self.present if np.isnan(self.spelling.number(text))]
        if words and (self.kind == "dates" or all(map(_DATE.fullmatch, words))):
            return f"has dates, such as {words[0]!r}, instead of numbers"
        if words and all(map(_NUMBER.fullmatch, words)):
            return (
                f"holds numbers in another form, such as {words[0]!r}: give decimal or thousands "
                "(decimal: ',' reads 1,037 as a little more than one; thousands: ',' as more than "
                "a thousand)"
            )
        if words and all(map(_AMOUNT.fullmatch, words)):
            return f"holds amounts, such as {words[0]!r}: write plain numbers, without a unit"
        return ""

    def _apart(self) -> bool:
        """Return ``True`` if numbers keep the texts distinct; 1 and 1.0 may merge."""
        numbers = {re.sub(r"\.0*$", "", text): self.spelling.number(text) for text in self.present}
        distinct = set(numbers.values())
        return len(distinct) == len(numbers) and all(abs(number) < _EXACT for number in distinct)


def _spelt(number: float) -> str:
    if np.isnan(number):
        return ""
    return str(int(number)) if number.is_integer() and abs(number) < _EXACT else str(number)


def _is_label(text: str, number: float) -> bool:
    """Return ``True`` if a text is the spelling of a number in :meth:`Column.labels`."""
    return abs(number) < _EXACT and text in (str(number), str(int(number)))
