"""Cells that are not what their column needs: why that may be, and what to write."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from datamodules.doubts.names import is_nothing, skeleton
from datamodules.doubts.rows import is_unit
from datamodules.targets import Ints

if TYPE_CHECKING:
    from datamodules.tables.columns import Column

_ABOUT = re.compile(r"(?i)(about|approx|ca|circa|etwa|unter|under|over|above|below|less|more)\b")
# So many equal words, and nothing else, are ticks.
_TICKS = 5
_TYPED = str.maketrans("OolI|SB", "0011158")
_RANGE = re.compile(r"[\d.,]+\s*([-\u2013]|to|bis|\u00e0)\s*[\d.,]+|[\d.,]+\s*\+")
_MIDNIGHT = re.compile(r"(?<!\d)24:00")
# What may follow a number, and what multiplies it.
_UNIT = re.compile(r"(?<=\d)\s*(°[CF]|%|[^\W\d_eE]{1,4}(/[^\W\d_]{1,3})?)$")
_TIMES = re.compile(r"(?i)\d\s*(k|m|b|t|bn|mio|mrd|mn|tsd|lakh|x)$")
# Digits above and below the line.
_RAISED = "\u00b2\u00b3\u00b9\u2070-\u2079\u2080-\u2089"
_NAMED = 40
_FIGURE = re.compile(r"[-+]?\d+([.,]\d+)?")
_SIGN = re.compile(r"::+|\|\|+|[\^~:#&\x01-\x08\x1c-\x1f\u00a6\u00a7]")
# What to do about cells that were merged.
_FILL = "if each stands in the first row of its block alone, fill it down (pandas: ffill)"


def no_number(name: str, column: Column, bad: Ints) -> str:
    """Return why the values in some rows are no numbers, to follow ``is not a finite number``."""
    if advice := column.advice():
        return f"; the column {advice}"
    usual = "; write a number, or name it in missing_values if it says that there is none"
    return no_record(name, column, bad) or usual


def no_record(name: str, column: Column, bad: Ints) -> str:
    """Return why the first of some rows may be no record, or how its value is to be written."""
    text = column.texts[column.codes[bad[0]]]
    if text == name:
        return "; its line repeats the header: remove it"
    if len(bad) == 1 and bad[0] == 0:
        what = "be a unit" if is_unit(text) else "name the column"
        return f"; it may {what}, and its line be no row: remove it"
    typed = text.translate(_TYPED)
    if typed != text and not np.isnan(column.spelling.number(typed)):
        return f"; it has letters that look like digits: write {typed}"
    if text[:1] and (text[0] in "<>\u2264\u2265~\u2248" or _ABOUT.match(text)):
        return "; a bound is no number: write one, such as half of it, in a column of its own"
    if is_nothing(text):
        return "; name it in missing_values if it says that there is none"
    plain = plain_number(text)
    if plain != text and not np.isnan(column.spelling.number(plain)):
        return f"; it has signs that numbers do not have ({text!a}): write {plain}"
    if len(bad) <= 2 and bad[-1] == len(column.codes) - 1:
        return "; it is in the last line: if that is a sum or a note, remove it"
    if _MIDNIGHT.search(text):
        return "; 24:00 is 00:00 of the next day: write it so"
    if _RANGE.fullmatch(text):
        return "; a range is no number: write its middle, or its two ends in columns of their own"
    return ""


def plain_number(text: str) -> str:
    """Return a text without the signs that stand around numbers, and with its minus in front."""
    # A number above the line is a note, and would become a digit.
    text = re.sub(rf"(?<=\d)[{_RAISED}]+$", "", html.unescape(text))
    plain = unicodedata.normalize("NFKC", text).replace("\u2212", "-")
    plain = plain.strip("\ufeff* \u2020?!")
    plain = re.sub(r"^(\d[\d.,]*)-$", r"-\1", plain)
    return plain if _TIMES.search(plain) else _UNIT.sub("", plain)


def why_missing(column: Column) -> str:
    """Return what to do about missing values whose places say why they are missing."""
    missing = column.gone
    tick, count = next(iter(column.present.items()), ("", 0))
    if len(column.present) == 1 and column.kind == "words" and count >= _TICKS:
        return (
            f", and {tick!r} is the only other: if an empty cell means no, write so in each; if "
            "its block has one value, fill it down (pandas: ffill)"
        )
    if missing.all():
        return (
            ", as in all rows: leave the column out, or fill it (a formula has no value until a "
            "spreadsheet has saved it)"
        )
    return f"; {_FILL}" if is_block(missing) else ""


def is_block(missing: NDArray[np.bool_]) -> bool:
    """Return ``True`` if a value is followed by rows without one, as in merged cells."""
    return bool(not missing[0] and 2 * missing.sum() > len(missing))


def other_name(columns: Sequence[str], name: str) -> str:
    """Return the columns there are in the place of one, or the one that may be meant."""
    alike = [other for other in columns if skeleton(other) == skeleton(name)]
    if alike:
        return f"but {alike[0]!a}: give this name, or write it alike in the file"
    shown = f"only {', '.join(columns[:_NAMED])}"
    shown += f" and {len(columns) - _NAMED} more" if len(columns) > _NAMED else ""
    numbers = sum(_FIGURE.fullmatch(other) is not None for other in columns)
    if 2 * numbers > len(columns) or numbers > 1:
        return f"{shown}; if these are no names but a row, write a line with names above it"
    if len(columns) == 1 and (sign := _SIGN.search(columns[0])):
        return f"{shown}; if {sign[0]!r} separates columns, {_separated(sign[0])}"
    return shown


def _separated(sign: str) -> str:
    """Return what to do about a sign between columns."""
    if len(sign) == 1:
        return f"give separator: {sign!r}"
    return (
        f"write a single sign in its place, such as by sed 's/{sign}/|/g', and give separator: '|'"
    )


def named_below(columns: Sequence[str], place: str) -> str:
    """Return what to do if the names of the columns stand below the first line."""
    return f"only {', '.join(columns)}; the names seem to stand in {place}: remove what is above"
