"""A column of a table: how its cells are spelt, and what they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from datamodules.checks import require
from datamodules.dates import dates_of
from datamodules.targets import Floats, Ints, plain_name

# pandas' texts for a missing value without "None", which is a word in many tables; and "?".
MISSING = (
    *("", "NA", "N/A", "NaN", "-NaN", "null", "<NA>", "?", "#N/A", "#N/A N/A", "#NA"),
    *("1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)
_USUAL = frozenset(word.lower() for word in MISSING)
Kind: TypeAlias = Literal["numbers", "dates", "words", "both"]
# A float represents each smaller whole number exactly.
_EXACT = 2.0**53
# Dates in other forms than ISO 8601, and times of a day.
_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[.,]?"
_DATE = re.compile(
    rf"\d{{1,4}}[-/.]\d{{1,2}}[-/.]\d{{1,4}}.*|\d{{1,2}}:\d{{2}}(?::\d{{2}})?(?: ?[ap]m)?"
    rf"|(?:\d{{1,2}}[-. ]+)?{_MONTH}[- ]+(?:\d{{1,2}},?[- ]+)?\d{{2,4}}",
    re.IGNORECASE,
)
# Numbers with separators of groups or another decimal sign; and these with a currency or a percent.
_DIGITS = r"[-+]?(?:\d+|\d{1,3}(?:[.,'\u2019\s]\d{2,3})+)(?:[.,]\d+)?"
_NUMBER = re.compile(_DIGITS)
_AMOUNT = re.compile(rf"\(?[-+]?(?:[$€£¥]|[A-Z]{{3}})?\s*{_DIGITS}\s*(?:[$€£¥%‰]|[A-Z]{{3}})?\)?")


@dataclass(frozen=True)
class Spelling:
    """How the cells of a table are spelt, as pandas' ``read_csv`` has it.

    Attributes:
        missing_values: Texts or numbers that mark a missing value, in place of the usual ones; an
            empty cell always does.
        date_format: The form of dates in Python's codes, such as ``%d.%m.%Y``; without it dates are
            ISO 8601, or whole numbers such as 20260331.
        decimal: The decimal sign.
        thousands: The sign between groups of three digits.
        separator: The sign between the columns of a text file.

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
        """Return whether a text marks a missing value."""
        if self.missing_values is None:
            return text.lower() in _USUAL
        return text in self._missing[0] or self.number(text) in self._missing[1]

    def number(self, text: str) -> float:
        """Return a number, or NaN if the text is not a finite one."""
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


class Column:
    """The cells of a column, and what they are.

    Args:
        cells: (n,) texts, or float64 with NaN for missing values.
        spelling: How the texts are spelt.

    Attributes:
        texts: (U,) different texts of the cells, without blanks around them, in Unicode's form NFC.
        codes: (n,) the text of each cell.
        missing: (n,) mask of the rows without a value.
        numbers: (n,) finite numbers, NaN elsewhere.
    """

    def __init__(self, cells: NDArray[Any], spelling: Spelling) -> None:
        self.spelling = spelling
        # Numbers of a binary file are spelt as Python spells them.
        self.written = cells.dtype != np.float64
        codes, found = pd.factorize(cells, sort=not self.written, use_na_sentinel=False)
        spelt = [plain_name(str(v)) if self.written else _spelt(v) for v in found.tolist()]
        places, texts = pd.factorize(np.array(spelt, object))
        self.codes: Ints = places[codes]
        self.texts: list[str] = texts.tolist()
        missing = [spelling.is_missing(text) for text in self.texts]
        self.missing: NDArray[np.bool_] = np.array(missing, bool)[self.codes]
        if self.written:
            cells = np.array([*map(spelling.number, self.texts)], np.float64)[self.codes]
        self.numbers: Floats = np.where(np.isfinite(cells) & ~self.missing, cells, np.nan)

    @property
    def bad(self) -> Ints:
        """The rows whose value is not a finite number."""
        return np.flatnonzero(np.isnan(self.numbers) & ~self.missing)

    @cached_property
    def present(self) -> dict[str, int]:
        """The different texts that are present, and how often each is."""
        return self._counts(~self.missing)

    @cached_property
    def lacking(self) -> dict[str, int]:
        """The spellings of a missing value, and how often each occurs."""
        return self._counts(self.missing)

    @cached_property
    def kind(self) -> Kind:
        """What the present values are; ``both`` is numbers and others."""
        if not len(self.bad):
            return "numbers"
        if self.seconds is not None:
            return "dates"
        return "both" if np.isfinite(self.numbers).any() else "words"

    @cached_property
    def seconds(self) -> Floats | None:
        """(n,) seconds since 1970 of dates, NaN where one is missing; ``None`` if they are none."""
        texts = [*self.present]
        found = dates_of(texts, self.spelling.date_format) if texts else None
        if found is None:
            return None
        by_text = dict(zip(texts, found.tolist(), strict=True))
        return np.array([by_text.get(text, np.nan) for text in self.texts])[self.codes]

    @property
    def crowded(self) -> bool:
        """Whether single precision gives most of the different numbers the value of another."""
        with np.errstate(over="ignore"):
            kept = np.unique(self.numbers[~self.missing].astype(np.float32))
        return self.kind == "numbers" and 2 * len(kept) < len(self.present)

    def labels(self) -> NDArray[Any]:
        """Return (n,) numbers if all present values are numbers (integers if whole), else texts.

        Texts stay texts if numbers would not keep them apart, such as 007 and 7, or ids of 20
        digits.
        """
        if len(self.bad) or (self.written and not self._apart()):
            return np.array(self.texts)[self.codes]
        values = self.numbers
        whole = (values == np.round(values)) & (np.abs(values) < _EXACT)
        return values.astype(np.int64) if whole.all() else values

    def values(self) -> list[str]:
        """Return the different values that are present, in the order of numbers or letters."""
        if len(self.bad):
            return sorted(self.present)
        return [str(value) for value in np.unique(self.labels()[~self.missing])]

    def places(self, known: Sequence[str]) -> Ints:
        """Return the (n,) place of each value among known ones, and -1 for any other.

        Numbers are compared as numbers if all known values are numbers as :meth:`labels` has them.
        """
        numbers = [Spelling().number(value) for value in known]
        if all(map(_is_label, known, numbers)):
            place = {number: n for n, number in enumerate(numbers)}
            return np.array([place.get(v, -1) for v in self.numbers.tolist()], np.int64)
        words = {word: n for n, word in enumerate(known)}
        found: Ints = np.array([words.get(text, -1) for text in self.texts], np.int64)[self.codes]
        return found

    def advice(self) -> str:
        """Return advice on words that are all dates or amounts; an empty text if they are not."""
        words = [text for text in self.present if np.isnan(self.spelling.number(text))]
        if words and (self.kind == "dates" or all(map(_DATE.fullmatch, words))):
            return f"holds dates, such as {words[0]!r}, which are no numbers"
        if words and all(map(_NUMBER.fullmatch, words)):
            return (
                f"holds numbers in another form, such as {words[0]!r}: give decimal or thousands "
                "(decimal: ',' reads 1,037 as a little more than one; thousands: ',' as more than "
                "a thousand)"
            )
        if words and all(map(_AMOUNT.fullmatch, words)):
            return f"holds amounts, such as {words[0]!r}: write plain numbers, without a unit"
        return ""

    def _counts(self, rows: NDArray[np.bool_]) -> dict[str, int]:
        counts = np.bincount(self.codes[rows], minlength=len(self.texts)).tolist()
        return {text: count for text, count in zip(self.texts, counts, strict=True) if count}

    def _apart(self) -> bool:
        """Return whether numbers keep texts apart; 1 and 1.0 need not be, as tables write both."""
        numbers = {re.sub(r"\.0*$", "", text): self.spelling.number(text) for text in self.present}
        distinct = set(numbers.values())
        return len(distinct) == len(numbers) and all(abs(number) < _EXACT for number in distinct)


def _spelt(number: float) -> str:
    if np.isnan(number):
        return ""
    return str(int(number)) if number.is_integer() and abs(number) < _EXACT else str(number)


def _is_label(text: str, number: float) -> bool:
    """Return whether a text is what a number in :meth:`Column.labels` is written as."""
    return abs(number) < _EXACT and text in (str(number), str(int(number)))
