"""Dates in the columns of tables, in seconds since 1970."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from datamodules.targets import Floats

# Dates that pandas cannot parse: a week becomes its Monday, a quarter its first day.
_WEEK = re.compile(r"(\d{4})-?W(\d{2})(?:-?(\d))?")
_QUARTER = re.compile(r"(\d{4})-?Q([1-4])")
# Formats of dates as integers, by number of digits, in the order of trials.
_COMPACT = {6: ("%Y%m", "%G%V%u"), 7: ("%Y%j",), 8: ("%Y%m%d",), 10: ("%Y%m%d%H",)}
_COMPACT |= {12: ("%Y%m%d%H%M",), 14: ("%Y%m%d%H%M%S",)}
_ISO = re.compile(r"\d{4}-\d{2}(?:-\d{2}(?:[T ]\d{2}(?::?\d{2}.*)?)?)?")


def dates_of(texts: Sequence[str], form: str | None) -> Floats | None:
    """Parse dates to seconds since 1970, in UTC if there is no time zone.

    Without a form, dates are ISO 8601 (also months, weeks and quarters), or integers of 6, 7, 8,
    10, 12 or 14 digits that are all dates, such as 202603, 2026090 (a day of the year), 20260331
    and 20260331120000. Either all times of day have a zone or none has.

    Args:
        texts: Stripped texts.
        form: Format in Python's codes.

    Returns:
        (n,) seconds; ``None`` if a text is not a date.

    Example:
        >>> dates_of(["2026-01-01", "1970-01-02T01:00:00+01:00"], None)
        array([1.7672256e+09, 8.6400000e+04])
    """
    if form is not None:
        return _parsed(texts, form)
    if all(text.isdecimal() for text in texts):
        return _of_numbers(texts)
    if not all(_ISO.fullmatch(_plain(text)) for text in texts[:1]):
        return None
    words = [_plain(text) for text in texts]
    zoned = {bool(re.search(r"Z|[+-]\d{2}(:?\d{2})?$", word[10:])) for word in words if word[10:]}
    if len(zoned) > 1 or not all(_ISO.fullmatch(word) for word in words):
        return None
    return _parsed(words, "ISO8601")


def _plain(text: str) -> str:
    """Replace a week or a quarter by the date of its first day; return other texts unchanged."""
    if week := _WEEK.fullmatch(text):
        year, number, day = week[1], week[2], week[3] or "1"
        stamp = pd.to_datetime(f"{year}{number}{day}", format="%G%V%u", errors="coerce")
        return text if pd.isna(stamp) else str(stamp.date())
    if quarter := _QUARTER.fullmatch(text):
        return f"{quarter[1]}-{3 * int(quarter[2]) - 2:02}-01"
    return text


def _of_numbers(texts: Sequence[str]) -> Floats | None:
    lengths = {len(text) for text in texts}
    for form in _COMPACT.get(min(lengths), ()) if len(lengths) == 1 else ():
        # Weeks lack a day.
        words = [f"{text}1" if form == "%G%V%u" else text for text in texts]
        if all(1900 <= int(text[:4]) <= 2100 for text in texts):
            found = _parsed(words, form)
            if found is not None:
                return found
    return None


def _parsed(texts: Sequence[str], form: str) -> Floats | None:
    try:
        stamps = pd.to_datetime(pd.Series([*texts], dtype=object), format=form, utc=True)
    except (ValueError, OverflowError):
        return None
    if stamps.isna().any():
        return None
    micro = stamps.dt.tz_convert(None).to_numpy().astype("datetime64[us]").astype(np.int64)
    return micro / 10**6
