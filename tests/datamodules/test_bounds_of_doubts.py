"""Both sides of each bound of a doubt: the last number that is told, and the first that is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from datamodules.doubts import doubts
from datamodules.record import (
    Array,
    Course,
    Division,
    Goal,
    Lines,
    Notes,
    Pictures,
    Record,
    Times,
    Values,
    Windows,
)
from tests.helpers.messages import says

DAY = 86400.0


def tells(expected, text, **record):
    """Check whether a doubt has all parts of a text; one part of it is enough for none."""
    lines = doubts(Record("rows", "t.csv", **record))
    found = [line for line in lines if text.split(" ~ ")[0] in line]
    assert bool(found) == expected, lines
    assert not expected or any(says(line, text) for line in found), lines


def numbers(values, name="x", use="feature", **more):
    return Values(name, use, numbers=np.asarray(values, float), **more)


def texts(values, name="x", use="feature", kind="words", absent=("",), **more):
    """Return a column of texts; numbers among them are read as such."""
    known, codes = np.unique(values, return_inverse=True)
    read = [float(one) if one.strip("-").replace(".", "", 1).isdecimal() else np.nan
            for one in known]  # fmt: skip
    return Values(
        name, use, kind, "", known.tolist(), codes, np.isin(known, absent), np.array(read)[codes],
        place=lambda row: f"line {row + 2}", **more,
    )  # fmt: skip


def divided(count, **more):
    usual = {"names": {}, "labels": None, "clients": None, "side": np.ones(count, int)}
    return Division(**{**usual, **more})


def some(*pairs):
    """Return numbers from pairs of a number and how often it stands."""
    return np.concatenate([np.full(count, value, float) for value, count in pairs])


def steps(first, last, count):
    return np.linspace(first, last, count)


# Values.


@pytest.mark.parametrize(
    ("rows", "gone", "told"), [(20, 11, True), (20, 10, False), (19, 18, False), (21, 11, True)]
)
def test_a_column_that_is_mostly_missing(rows, gone, told):
    column = texts([*[""] * gone, *map(str, range(rows - gone))], kind="numbers")
    tells(told, f"'x' is missing in {gone} of {rows} rows", columns=(column,))
    bare = numbers(np.arange(30.0), texts=("",), codes=np.zeros(30, int), absent=np.ones(1, bool))
    tells(True, "'x' is missing in 30 of 30 rows", columns=(bare,))


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (numbers([3.0] * 10), True),
        (numbers([3.0] * 9), False),
        (numbers([*[3.0] * 9, 4.0]), False),
        # Two texts that are one number in double precision.
        (numbers([2.0**53] * 10, texts=("a", "b"), codes=np.arange(10) % 2,
                 absent=np.zeros(2, bool)), False),
    ],
)  # fmt: skip
def test_a_column_of_one_number(column, told):
    tells(told, "in all rows: it says nothing", columns=(column,))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        # Beyond twice the range of few others: 66 of 33, and 66.1 of 32.9.
        (some((0, 5), (33, 5), (99, 1)), ""),
        (some((0, 5), (32.9, 5), (99, 1)), "'x' is 99 in 1 rows (first sample 10)"),
        (some((0, 5), (-33, 5), (-99, 1)), ""),
        (some((-0.1, 5), (-33, 5), (-99, 1)), "'x' is -99 in 1 rows"),
        # A range of less than 1 counts as 1.
        (some((97, 9), (99, 1)), ""),
        (some((96.9, 9), (99, 1)), "'x' is 99 in 1 rows"),
        # A hundred-thousandth off is the same number, and three are another.
        (some((5, 9), (999.009, 1)), "'x' is 999.009"),
        (some((5, 9), (999.03, 1)), ""),
        # The only negative number: of ten amounts up to 20, or of fractions.
        ([*range(11, 21), -1], "'x' is -1 in 1 rows"),
        ([*range(10, 20), -1], ""),
        ([*range(12, 21), -1], ""),
        ([*steps(0.5, 9.5, 10), -1], "'x' is -1 in 1 rows"),
        ([*steps(0, 20, 11), -1], "'x' is -1 in 1 rows"),
        ([*steps(-0.5, 20, 11), -1], ""),
        # Three, a tenth of the range apart: 9 of 90, and 8 of 91.
        ([*steps(0, 90, 10), *[99] * 3], "'x' is 99 in 3 rows"),
        ([*steps(0, 90, 10), *[99] * 2], ""),
        ([*steps(0, 91, 10), *[99] * 3], ""),
        # A code for the unknown: beside two to six codes from 0 or 1, three above the last.
        (some((1, 5), (2, 5), (9, 3)), "'x' is 9 in 3 rows"),
        (some((1, 5), (2, 5), (9, 2)), ""),
        (some((1, 9), (9, 3)), ""),
        (some((2, 5), (3, 5), (9, 3)), ""),
        (some(*((n, 5) for n in range(6)), (8, 3)), "'x' is 8 in 3 rows"),
        (some(*((n, 5) for n in range(1, 7)), (8, 3)), ""),
        (some(*((n, 5) for n in range(7)), (9, 3)), ""),
        (some((1, 5), (2, 5), (7, 3), (8, 3), (9, 3)), "'x' is 9 in 3 rows"),
        (some((1, 5), (2, 5), (6, 3), (9, 3)), ""),
        (some((1, 150), (2, 150), (9, 3)), "'x' is 9 in 3 rows"),
        (some((1, 200), (2, 200), (9, 3)), ""),
        # Two zeros among ten numbers that are never small: at least a quarter of their range.
        ([*steps(10, 50, 10), 0, 0], "'x' is 0 in 2 rows (first sample 10)"),
        ([*steps(10, 50.4, 10), 0, 0], ""),
        ([*steps(10, 50, 10), 0], ""),
        ([*steps(10, 50, 9), 0, 0], ""),
    ],
)  # fmt: skip
def test_numbers_that_stand_for_none(values, told):
    tells(bool(told), told or "far from its other values", columns=(numbers(values),))


@pytest.mark.parametrize(
    ("answers", "own", "told"),
    [
        ("ab" * 10, "cd" * 10, True),
        ("ab" * 9 + "a", "cd" * 9 + "c", False),  # b stands nine times
        ("ab" * 10, "cd" * 9 + "dd", False),
        ("ab" * 5, "ab" * 5, True),  # the same words
        ("ab" * 4 + "a", "ab" * 4 + "a", False),
        ("a" * 20, "c" * 20, False),
        ("".join(map(chr, range(65, 85))) * 10, "".join(map(chr, range(75, 95))) * 10, True),
        ("".join(map(chr, range(65, 86))) * 10, "".join(map(chr, range(75, 96))) * 10, False),
    ],
)
def test_a_feature_that_tells_the_target(answers, own, told):
    columns = (texts([*own]), texts([*answers], "y", "target"))
    tells(told, "'x' is 'y' in every row", columns=columns)


@pytest.mark.parametrize(
    ("of", "told"),
    [
        (lambda value: value % 3, True),
        # Near numbers are of one class anyway; two that are exchanged leave none between.
        (lambda value: (value + (value == 9) - (value == 10)) // 10, False),
    ],
)
def test_numbers_that_stand_with_one_class_alone(of, told):
    values = np.repeat(np.arange(30), 2)
    answers = texts([f"class {of(value)}" for value in values], "y", "target")
    column = texts([f"{value:02}" for value in values], kind="numbers")
    tells(told, "each value of 'x' stands with one value of 'y'", columns=(column, answers))


@pytest.mark.parametrize(("distinct", "told"), [(10, True), (9, False)])
def test_a_feature_that_is_another(distinct, told):
    columns = (numbers(np.arange(30.0) ** 3 % distinct),)
    columns = (numbers(np.arange(30) % distinct), numbers(np.arange(30) % distinct, "z"))
    tells(told, "'z' is 'x' in every row", columns=columns)


@pytest.mark.parametrize(
    ("rows", "classes", "told"), [(20, 11, True), (20, 10, False), (19, 19, False)]
)
def test_targets_that_are_nearly_all_classes_of_their_own(rows, classes, told):
    names = {"class": {f"c{n:02}": 1 for n in range(classes)}}
    given = divided(rows, labels=np.arange(rows) % classes, names=names)
    tells(told, f"{classes} of {rows} samples have a class of their own", division=given)


# Scales.


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (some((2, 39), (201, 1)), "'x' is 201 in sample 39, and at most 2"),
        (some((2, 39), (200, 1)), ""),
        (some((2, 97), (201, 3)), ""),
        (some((2, 147), (201, 3)), "'x' is 201"),  # 2 % are allowed
        (some((-2, 39), (-201, 1)), "'x' is -201"),
        (some((0, 39), (201, 1)), ""),
    ],
)
def test_a_number_of_another_size(values, told):
    tells(bool(told), told or "check its decimal sign", columns=(numbers(values),))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (some((3, 35), (30, 5)), "30 in 5 rows (first sample 35) and around 3 in 35 ~ 1:10)"),
        (some((3, 36), (30, 4)), ""),
        (some((3, 190), (30, 10)), "around 30 in 10 rows"),
        (some((3, 191), (30, 9)), ""),
        (some((3, 5), (30, 35)), "around 3 in 5,"),
        (some((1, 20), (10**1.24, 20)), "(1:10)"),
        (some((1, 20), (10**1.26, 20)), ""),
        (some((1, 20), (10**0.76, 20)), "(1:10)"),
        (some((1, 20), (10**0.74, 20)), ""),
        (some((1, 20), (10**1.76, 20)), "(1:100)"),
        # A gap that is wider than either side: 0.9 against 0.8 and 1.0.
        (some((1, 10), (10**0.8, 11), (10**1.7, 20)), "(1:10)"),
        (some((1, 5), (10**0.5, 5), (10, 11), (10**1.9, 20)), ""),
        # Six tenths of a decade between the two, whose medians are 0.9 apart.
        (some((1, 10), (10**0.2, 11), (10**0.81, 5), (10**1.1, 15)), "(1:10)"),
        (some((1, 10), (10**0.2, 11), (10**0.79, 5), (10**1.1, 15)), ""),
        # What stands for none is told elsewhere, unless other numbers are beside it.
        (some((9.8, 35), (98, 3), (99, 3)), ""),
        (some((9.8, 35), (98, 3), (98.5, 1), (99, 3)), "(1:10)"),
        (some((3, 15), (30, 5)), "(1:10)"),  # twenty numbers
        (some((3, 14), (30, 5)), ""),
        (some((1, 10), (3, 10), (0, 1), (30, 20)), ""),  # a zero has no decade
        # From 10 to 15 if the first are in the other's unit, beside 14 or 16 and more.
        (some((1, 10), (1.5, 10), (14, 10), (19, 10)), "(1:10)"),
        (some((1, 10), (1.5, 10), (16, 10), (19, 10)), ""),
    ],
)  # fmt: skip
def test_numbers_in_two_units(values, told):
    tells(bool(told), told or "are they in two units", columns=(numbers(values),))


@pytest.mark.parametrize(
    ("each", "wider", "told"),
    [
        # Of 201, a spread is off by 0.4343 / sqrt(402) = 0.0217 (as a power of ten), and by twice
        # as much at most: from 0.1 - 0.0433 to 0.45 + 0.0433.
        (201, 0.058, True),
        (201, 0.055, False),
        (201, 0.492, True),
        (201, 0.495, False),
        # Of eleven, by 0.0926: up to 0.635, and the one may seem as wide as the other.
        (11, 0.0, True),
        (11, 0.63, True),
        (11, 0.64, False),
    ],
)
def test_temperatures_in_two_units_in_one_column(each, wider, told):
    spread = 0.4 * steps(-1, 1, each)
    values = np.concatenate([37 + spread, 98.6 + 10**wider * spread])
    tells(told, "'temp' is around 98.6 in", columns=(numbers(values, "temp"),))


def of_five(factor, wider=1.0, other=1.0, middle=100.0, each=5):
    """Return a column of five clients, C another by a factor, with a spread wider by one more."""
    spread = steps(-2, 2, each)
    middles, widths = np.full(5, float(middle)), np.ones(5)
    middles[1] *= other
    middles[2] *= factor
    widths[2] *= factor * wider
    column = numbers((middles[:, None] + 0.1 * widths[:, None] * spread).ravel())
    names = {"client": dict.fromkeys("ABCDE", each)}
    return column, divided(5 * each, clients=np.repeat(np.arange(5), each), names=names)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        # Powers of ten, where others differ by two.
        (of_five(10**1.71, other=2), "(1:100)"),
        (of_five(10**2.29, other=2), "(1:100)"),
        (of_five(10**2.31, other=2), ""),
        (of_five(10**1.69, other=2), ""),
        (of_five(10**1.2, other=2), ""),
        (of_five(10**-2, other=2), "(1:100)"),
        (of_five(100, 10**0.49, other=2), "(1:100)"),
        (of_five(100, 10**0.51, other=2), ""),
        (of_five(100, 10**-0.51, other=2), ""),
        (of_five(1000, 10**0.9, other=2), "(1:1,000)"),
        (of_five(1000, 10**1.1, other=2), ""),
        (of_five(10**2.55, 10**0.3), "(1:1,000)"),
        (of_five(10**2.45, 10**0.3), ""),
        (of_five(10**2.55, 10**0.3, other=10**0.17), "(1:1,000)"),
        (of_five(10**2.55, 10**0.3, other=10**0.19), ""),
        # Any ratio, where all others agree.
        (of_five(10**0.71), "(1:5.1)"),
        (of_five(10**-0.71), "(1:5.1)"),
        (of_five(10**0.69), ""),
        (of_five(10**0.8, other=10**0.17), "(1:6.3)"),
        (of_five(10**0.8, other=10**0.19), ""),
        (of_five(10**0.8, 10**0.14), "(1:6.3)"),
        (of_five(10**0.8, 10**0.16), ""),
        (of_five(10**0.8, each=4), ""),
        # Degrees: 1.8 times as wide, from 34 to 42, two off at most.
        (of_five(98.6 / 37, 37 / 98.6 * 1.8, middle=37), "another unit?"),
        (of_five(93.38 / 34.1, 34.1 / 93.38 * 1.8, middle=34.1), "another unit?"),
        (of_five(93.02 / 33.9, 33.9 / 93.02 * 1.8, middle=33.9), ""),
        (of_five(107.42 / 41.9, 41.9 / 107.42 * 1.8, middle=41.9), "another unit?"),
        (of_five(107.78 / 42.1, 42.1 / 107.78 * 1.8, middle=42.1), ""),
        (of_five(100.5 / 37, 37 / 100.5 * 1.8, middle=37), "another unit?"),
        (of_five(100.7 / 37, 37 / 100.7 * 1.8, middle=37), ""),
        (of_five(96.7 / 37, 37 / 96.7 * 1.8, middle=37), "another unit?"),
        (of_five(96.5 / 37, 37 / 96.5 * 1.8, middle=37), ""),
        (of_five(98.6 / 37, 37 / 98.6 * 10**0.11, middle=37), "another unit?"),
        (of_five(98.6 / 37, 37 / 98.6 * 10**0.09, middle=37), ""),
        (of_five(98.6 / 37, 37 / 98.6 * 10**0.44, middle=37), "another unit?"),
        (of_five(98.6 / 37, 37 / 98.6 * 10**0.46, middle=37), ""),
        (of_five(37 / 98.6, 98.6 / 37 / 1.8, middle=98.6), "another unit?"),
    ],
)
def test_a_client_in_another_unit(given, told):
    column, division = given
    tells(bool(told), f"'x' of 'C' ~ {told}" if told else "'x' of 'C'", columns=(column,),
          division=division)  # fmt: skip


@pytest.mark.parametrize(("count", "told"), [(2, False), (3, True), (200, True), (201, False)])
def test_clients_are_compared_if_there_are_three_and_not_too_many(count, told):
    middles = np.full(count, 100.0)
    middles[1] = 10_000
    values = (middles[:, None] * (1 + 0.001 * steps(-2, 2, 11))).ravel()
    names = {"client": {f"c{n}": 11 for n in range(count)}}
    given = divided(11 * count, clients=np.repeat(np.arange(count), 11), names=names)
    tells(told, "'x' of 'c1' is around 10000", columns=(numbers(values),), division=given)


# Spelling.


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (["5 kg", "6 kg", "7 kg", "8 kg", "9 kg"], "the unit 'kg'"),
        (["5 kg", "6 kg", "7 kg", "8 kg"] * 2, ""),
        (["5 kg", "6 kg", "7 kg", "8 kg", "9 lb"], ""),
        (["=5", "=6"], "numbers after a sign, such as '=5'"),
        (["=5", "=5"], ""),
        (["=5", "6"], ""),
        (["12/80", "13/85"], "two numbers in each cell"),
        (["1/80", "13/85"], ""),
        (["12/80", "12/80"], ""),
        (["1-May", "x"], "the date '1-May' among other words, such as 'x'"),
        ([*(f"w{n:03}" for n in range(999)), "1-May"], "the date '1-May'"),
        ([*(f"w{n:03}" for n in range(1000)), "1-May"], ""),
    ],
)
def test_words_that_were_numbers(cells, told):
    told = told or "'x' h"
    tells(told != "'x' h", told, columns=(texts(cells),))


@pytest.mark.parametrize(
    ("use", "missing", "told"),
    [("client", 5, True), ("client", 4, False), ("target", 9, False)],
)
def test_codes_that_count_as_missing(use, missing, told):
    column = texts(["b"] * 10 + ["c"] * 10 + ["null"] * missing, use=use, absent=("null",))
    tells(told, "which count as missing ~ as 'b' is ~ missing_values", columns=(column,))


@pytest.mark.parametrize(
    ("values", "name", "told"),
    [
        (10_000 + 500 * np.arange(20), "visit date", True),
        (9_999 + 500 * np.arange(20), "visit date", False),
        (60_000 - 500 * np.arange(20), "visit date", True),
        (60_001 - 500 * np.arange(20), "visit date", False),
        (36_526 + 400 * (np.arange(20) % 10), "x", True),
        (36_525 + 400 * (np.arange(20) % 10), "x", False),
        (47_500 - 400 * (np.arange(20) % 10), "x", True),
        (47_501 - 400 * (np.arange(20) % 10), "x", False),
        (40_000 + 3_999 / 9 * (np.arange(20) % 10), "x", True),
        (40_000 + 4_000 / 9 * (np.arange(20) % 10), "x", False),
        (40_000 + 400 * (np.arange(20) % 9), "x", False),
        (40_000 + 400 * (np.arange(20) % 10), "x", True),
    ],
)
def test_dates_that_a_spreadsheet_numbered(values, name, told):
    tells(told, "a spreadsheet numbers dates so", columns=(numbers(values, name),))


@pytest.mark.parametrize(
    ("values", "name", "told"),
    [
        (range(20), "x", True),
        (range(19), "x", False),
        ([*range(19), 20], "x", False),
        ([*range(19), 20], "patient_id", True),
        ([*range(19), 18], "patient_id", False),
        ([*range(19), 20.5], "patient_id", False),
        ([*range(10), *range(10)], "index", True),  # of two files
        ([*range(10), *range(10)], "x", False),
        ([*range(10), *range(1, 11)], "index", False),
        ([*range(6), *range(6), *range(6), *range(6)], "index", True),  # 20 of 23 steps
        ([*range(5), *range(5), *range(5), *range(5)], "index", True),  # 16 of 19
        ([*range(4), *range(4), *range(4), *range(4), *range(4)], "index", False),  # 15 of 19
        ([5] * 20, "index", False),
        ([5] * 20, "x", False),
        (range(40, 0, -2), "x", True),
    ],
)
def test_numbers_of_the_rows(values, name, told):
    column = texts([str(one) for one in values], name, kind="numbers")
    tells(told, "numbers the rows", columns=(column,))


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (["1.230", "7"], "'1.230' may be 1230: give thousands: '.'"),
        (["1.230", "4.567"], ""),  # all have a point
        (["1.234", "7"], ""),  # none ends with 0
        (["1.2300", "7"], ""),
        (["0.230", "7"], ""),
        (["007", "8"], "'007' may be a code"),
        (["07", "8"], ""),
    ],
)
def test_numbers_that_may_be_thousands_or_codes(cells, told):
    told = told or "may be"
    tells(told != "may be", told, columns=(texts(cells, kind="numbers"),))


@pytest.mark.parametrize(("rows", "seconds", "told"), [(20, True, True), (19, True, False),
                                                       (20, False, False)])  # fmt: skip
def test_numbers_that_are_all_dates(rows, seconds, told):
    cells = [str(20260100 + n * n % 23) for n in range(rows)]
    column = texts(cells, kind="numbers", seconds=seconds)
    tells(told, "all of them are dates, such as 20260100", columns=(column,))


# Rows.


@pytest.mark.parametrize(
    ("columns", "alike", "told"), [(2, 2, True), (2, 1, False), (6, 3, True), (6, 2, False)]
)
def test_a_header_in_the_middle(columns, alike, told):
    cells = [[f"v{n % 3}" for n in range(9)] for _ in range(columns)]
    for place in range(alike):
        cells[place][4] = f"c{place}"
    found = tuple(texts(one, f"c{place}") for place, one in enumerate(cells))
    tells(told, "t.csv, line 6: the header is repeated", columns=found)


@pytest.mark.parametrize(
    ("cells", "kind", "told"),
    [
        (["kg", "5", "6"], "both", True),
        (["kg", "5"], "both", False),  # two rows
        (["none", "5", "6"], "both", True),  # the only word
        (["none", "5", "low"], "both", False),
        (["kg", "5", "low"], "both", True),
        (["kg", "a", "b"], "words", True),
        (["kg", "kg", "b"], "words", False),
        (["a", "kg", "b"], "words", False),
    ],
)
def test_a_line_of_units(cells, kind, told):
    tells(told, f"t.csv, line 2: {cells[0]!r} in 'x'", columns=(texts(cells, kind=kind),))


@pytest.mark.parametrize(
    ("total", "others", "told"), [(1, 1, True), (2, 4, False), (2, 5, True), (3, 6, False)]
)
def test_rows_of_a_total(total, others, told):
    cells = ["total"] * total + ["north"] * others + ["south"] * others
    tells(told, f"'total' in 'x' ({total} of", columns=(texts(cells, use="none"),))


@pytest.mark.parametrize(
    ("rows", "last", "told"),
    [
        (10, 1.0, "the sum"),
        (9, 1.0, ""),
        (10, 1.00009, "the sum"),
        (10, 1.00011, ""),
        (10, 1 / 9, "the mean"),
    ],
)
def test_a_last_row_that_sums_up_the_others(rows, last, told):
    above = np.arange(1, rows) * 3.0
    of_two = [texts([f"{one:.10g}" for one in [*above * by, last * above.sum() * by]], name,
                    kind="numbers") for name, by in (("a", 1), ("b", 7))]  # fmt: skip
    told = told or "its numbers are"
    tells(told != "its numbers are", told, columns=tuple(of_two))
    tells(False, "its numbers are", columns=tuple(of_two[:1]))


@pytest.mark.parametrize(
    ("cells", "unfinished", "told"),
    [
        (["healthy", "healthy", "healthy", "hea"], True, True),
        (["healthy", "healthy", "hea"], True, False),
        (["healthy", "healthy", "healthy", "hea"], False, False),
        (["healthy", "hea", "healthy", "hea"], True, False),
        (["healthy", "healthy", "healthy", "ill"], True, False),
    ],
)
def test_a_last_line_that_is_cut_off(cells, unfinished, told):
    lines = Lines(len(cells) + 1, len(cells) + 1, unfinished=unfinished)
    tells(told, "'hea' may be 'healthy'", columns=(texts(cells),), lines=lines)


# Copies.


@pytest.mark.parametrize(("run", "told"), [(6, True), (5, False)])
def test_rows_that_follow_each_other_in_two_places(run, told):
    content = np.concatenate([np.arange(30), 100 + np.arange(3), np.arange(run)])
    given = {"digests": content.astype(np.uint64), "rich": lambda rows: False}
    tells(told, f"{run} samples have the content of another", **given)


@pytest.mark.parametrize(("times", "told"), [(3, True), (4, False)])
def test_a_run_that_is_repeated_often_has_few_values(times, told):
    content = np.concatenate([np.append(np.arange(9), 50 + n) for n in range(times)])
    given = {"digests": content.astype(np.uint64), "rich": lambda rows: False}
    tells(told, f"{9 * (times - 1)} samples", **given)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (np.arange(10) // 2, "5 of 5 values"),
        (np.arange(8) // 2, ""),  # eight samples are few
        (np.arange(12) // 3, ""),  # four values are few
        (np.arange(12) // 2 * 2, "6 of 6 values"),
        ([0, 0, *range(1, 9)], "1 of 9 values"),
        (range(10), ""),
    ],
)
def test_what_has_samples_on_both_sides(values, told):
    given = divided(len(values), side=1 + 2 * (np.arange(len(values)) % 2))
    told = told or "values of 'patient'"
    tells(told != "values of 'patient'", told, identifiers={"patient": np.asarray(values)},
          division=given)  # fmt: skip


# Times.


@pytest.mark.parametrize(
    ("values", "kind", "told"),
    [
        # One of twenty, beyond three times the range of the others.
        ([*range(19), 18 + 54.1], "numbers", True),
        ([*range(19), 18 + 54], "numbers", False),
        ([*range(18), 17 + 54], "numbers", False),  # one of nineteen
        ([*range(38), 37 + 112, 37 + 112], "numbers", True),
        ([-54.1, *range(19)], "numbers", True),
        ([0] * 19 + [5], "numbers", False),
        # Five years of dates.
        (DAY * np.array([*range(19), 18 + 1827]), "dates", True),
        (DAY * np.array([*range(19), 18 + 1826]), "dates", False),
    ],
)
def test_a_time_that_is_far(values, kind, told):
    tells(told, "far from all others", times=Times("t", kind, np.asarray(values, float)))


@pytest.mark.parametrize(("count", "told"), [(10, True), (9, False)])
def test_times_that_are_all_the_same(count, told):
    tells(told, "'t' is the same in all rows", times=Times("t", "numbers", np.full(count, 5.0)))


def swapped(days):
    """Return seconds of days of which day and month change places where both are months."""
    parts = [str(day).split("-") for day in days]
    texts = [f"{y}-{d}-{m}" if int(d) <= 12 else f"{y}-{m}-{d}" for y, m, d in parts]
    return np.array(texts, "datetime64[s]").astype(float)


FROM = np.datetime64("2025-01-01")


@pytest.mark.parametrize(
    ("days", "clients", "told"),
    [
        # The 9th to the 12th of January become September to December; the 13th does not.
        (FROM + np.arange(20), None, "goes back 1 times in the file (first sample 12)"),
        (FROM + np.arange(19), None, ""),
        # Each of two clients in order; together they go back.
        (np.tile(FROM + np.arange(20), 2), np.repeat([0, 1], 20), "goes back 2 times"),
        # Twelve months from the first, in order as they are.
        (FROM + 31 * np.arange(24), None, "goes back"),
    ],
)
def test_days_and_months_that_changed_places(days, clients, told):
    times = Times("t", "dates", swapped(days), clients)
    tells(bool(told), told or "goes back", times=times)


def test_days_that_go_back_either_way_are_no_swap():
    days = FROM + np.array([*range(20), 3])
    tells(False, "goes back", times=Times("t", "dates", swapped(days)))
    tells(False, "goes back", times=Times("t", "numbers", swapped(FROM + np.arange(20))))


def test_rows_that_are_not_in_the_order_of_their_dates():
    lost = Windows(9, {}, {}, (), 3, "all", False, ())
    values = np.array([0.0, 1, 2, 3, 4, 0, 1, 2, 4, 3])
    given = Times("when", "dates", DAY * values, np.repeat([0, 1], 5), given=False)
    tells(True, "'when' goes back 1 times: give time_column: when", times=given, windows=lost)
    tells(False, "goes back", times=replace(given, values=np.sort(values)), windows=lost)
    tells(False, "goes back", times=replace(given, clients=None), windows=lost)


# Classes, clients and splits.


def classes(*counts, **more):
    names = {"class": {f"c{n}": count for n, count in enumerate(counts)}}
    labels = np.repeat(np.arange(len(counts)), counts)
    return divided(len(labels), labels=labels, names=names, **more)


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ([10, 9, 1], True),
        ([10, 8, 1], False),  # nineteen samples
        ([15, 3, 1, 1], False),  # two of four
        ([10, 2, 2, 2, 2, 2, 1, 1], True),  # two of eight
        ([10, 2, 2, 2, 2, 1, 1], False),
    ],
)
def test_classes_of_a_single_sample(counts, told):
    tells(told, "have a single sample", division=classes(*counts))


@pytest.mark.parametrize(
    ("counts", "arrays", "told"),
    [
        ([5, 0, 5], False, "1 of 3 classes have no sample (b)"),
        ([5, 0, 5], True, ""),
        ([5, 0, 0, 5], True, ""),
        ([5, 0, 0, 0, 5], True, "3 of 5 classes"),
    ],
)
def test_classes_that_nobody_has(counts, arrays, told):
    names = {"class": {"abcde"[n]: count for n, count in enumerate(counts)}}
    labels = np.repeat(np.arange(len(counts)), counts)
    given = divided(len(labels), labels=labels, names=names)
    array = Array("x", "float32", (len(labels), 3), 0, 1, False)
    tells(bool(told), told or "have no sample (", division=given, arrays=(array,) * arrays)


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ([0, 5, 5], "the smallest class in y is 1 and the largest 2, 1 between"),
        ([5, 0, 5], ""),
        ([5, 0, 0, 5], "smallest class in y is 0 and the largest 3, 2 between"),
        ([5, 0, 0, 5, 5], ""),
    ],
)
def test_numbers_of_classes_with_holes(counts, told):
    names = {"class": {str(n): count for n, count in enumerate(counts)}}
    labels = np.repeat(np.arange(len(counts)), counts)
    given = divided(len(labels), labels=labels, names=names)
    array = Array("x", "float32", (len(labels), 3), 0, 1, False)
    tells(bool(told), told or "smallest class", division=given, arrays=(array,))


@pytest.mark.parametrize(
    ("numbered", "told"),
    [
        ((0, 1, 2, 99), True),
        ((0, 1, 2, 98), False),
        ((0, 1, -1), False),
        ((0, 1, 2, -1), True),
        ((0, 1, -9), True),
        ((0, 99), False),
        ((0, 2, 99), False),
        ((*range(98), 99), True),
        (range(100), False),
        ((-2, -1, 99), False),
    ],
)
def test_a_class_that_stands_for_none(numbered, told):
    names = {"class": dict.fromkeys(map(str, numbered), 5)}
    labels = np.repeat(np.arange(len(names["class"])), 5)
    tells(told, "stands apart", division=divided(len(labels), labels=labels, names=names))


@pytest.mark.parametrize(("unused", "told"), [(5, True), (4, False)])
def test_samples_of_no_client(unused, told):
    side = np.where(np.arange(40) < unused, 0, 1)
    given = divided(40, side=side, chosen=True)
    tells(told, f"{unused} of 40 samples are of no client", division=given)


@pytest.mark.parametrize(("gone", "told"), [(11, True), (10, False)])
def test_rows_that_are_left_out(gone, told):
    column = texts([""] * gone + ["a"] * (20 - gone))
    tells(told, f"{gone} of 20 rows are left out", columns=(column,), division=divided(20 - gone))


# Arrays.


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (Array("x", "float32", (9, 5, 5, 3), 0, 1, False), "x.permute(0, 3, 1, 2)"),
        (Array("x", "float32", (9, 4, 5, 3), 0, 1, False), ""),
        (Array("x", "float32", (9, 5, 5, 2), 0, 1, False), ""),
        (Array("x", "float32", (2, 3), 1, 1, True), "x is 1 in all samples"),
        (Array("x", "float32", (1, 3), 1, 1, True), ""),
        (Array("x", "float32", (9, 3), 0, 1, False, 0.05), "spans 0.05, and 1 in training"),
        (Array("x", "float32", (9, 3), 0, 1, False, 0.051), ""),
        (Array("x", "float32", (9, 3), 0, 1, False, 20), "spans 20"),
        (Array("x", "float32", (9, 3), 0, 1, False, 19.9), ""),
        (Array("x", "float32", (9, 3, 8, 8), 0, 101, True), "x.to(torch.uint8)"),
        (Array("x", "float32", (9, 3, 8, 8), 0, 100, True), ""),
        (Array("x", "float32", (9, 3, 8, 8), -1, 101, True), ""),
        (Array("x", "float32", (9, 2, 8, 8), 0, 101, True), ""),
        (Array("x", "int32", (9, 1, 8, 8), 0, 255, True), "x.to(torch.uint8)"),
        (Array("x", "int32", (9, 1, 8, 8), 0, 256, True), "rescale it to bytes"),
        (Array("x", "uint8", (9, 8, 8), 0, 255, True), "x[:, None]"),
        (Array("x", "uint8", (9, 7, 8), 0, 255, True), ""),
        (Array("x", "uint8", (9, 2), 0, 255, True), "reshape"),
        (Array("x", "uint8", (9, 1), 0, 255, True), ""),
        (Array("x", "uint8", (9, 1, 8, 8), 0, 1, True), "bytes of 0 and 1 alone"),
        (Array("x", "uint8", (9, 1, 8, 8), 0, 2, True), ""),
    ],
)
def test_inputs_in_another_form(array, told):
    tells(bool(told), told or "x", arrays=(array,))


def masks(*present, count=6):
    """Return masks that differ, with some numbers."""
    y = np.resize(np.array(present, np.uint8), (count, 16, 16))
    y[:, 0, 0] = np.resize(present, count)
    y[:, 0, 1 : 1 + count] = np.where(np.eye(count), present[0], present[-1])
    return Goal(y, False, True)


@pytest.mark.parametrize(
    ("goal", "told"),
    [
        (masks(*range(65)), "65 different numbers"),
        (masks(*range(64)), ""),
        (masks(0, 1, 5), "masks have the numbers 0, 1, 5, and 3 between"),  # 3 of 5
        (masks(0, 1, 4), ""),  # 2 of 4
        (masks(0, 2), ""),
        (masks(0, 3), "numbers 0, 3, and 2 between"),
    ],
)
def test_numbers_in_masks(goal, told):
    told = told or "different numbers"
    tells(told != "different numbers", told, goal=goal)


@pytest.mark.parametrize(("same", "told"), [(3, True), (2, False)])
def test_masks_that_are_those_of_others(same, told):
    goal = masks(0, 1)
    y = np.concatenate([goal.y, np.repeat(goal.y[:1], same - 1, 0)])
    tells(told, "3 masks are equal", goal=replace(goal, y=y))


@pytest.mark.parametrize(
    ("y", "told"),
    [
        ((np.arange(30) % 20.0)[:, None], "give y.long()"),
        ((np.arange(30) % 21.0)[:, None], ""),
        (np.arange(20.0)[:, None], ""),
        ((np.arange(30) % 20 + 0.5)[:, None], ""),
        (np.full((9, 4), 0.25 + 0.0002), "sums up to 1"),
        (np.full((9, 4), 0.25 + 0.0003), ""),
        (np.array([[1.5, -0.5]] * 9), ""),
    ],
)
def test_targets_in_columns(y, told):
    tells(bool(told), told or "y", goal=Goal(y, True, False))


# Names.


def named(*names, count=30):
    counts = dict.fromkeys(names, count) if isinstance(count, int) else count
    return divided(20, names={"client": counts})


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({"hamburg": 20, "hambrug": 1, "hamburk": 1}, "'hamburk' in 1 samples"),
        ({"hamburg": 19, "hamburk": 1}, ""),
        ({"hamburg": 39, "hamburk": 2}, ""),
        ({"hamburg": 40, "hamburk": 2}, "'hamburk' in 2 samples"),
        ({"kie": 40, "kiel": 2}, "'kiel' in 2 samples"),
        ({"ki": 40, "kie": 2}, ""),
        ({"kiel": 40, "kie": 2}, ""),
        ({"site 1": 40, "site 2": 2}, ""),
        ({**{f"{n}{n}{n}": 1 for n in range(399)}, "hamburg": 40, "hamburk": 2}, ""),
        ({**{f"{n}{n}{n}": 1 for n in range(398)}, "hamburg": 40, "hamburk": 2}, "a letter away"),
    ],
)
def test_slips_of_a_letter(counts, told):
    tells(bool(told), told or "a letter away", division=named(count=counts))


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["yes", "Y"], "'yes' and 'Y', which may mean the same"),
        (["yes", "no"], ""),
        (["yes", "y", *(f"{n}{n}" for n in range(10))], "may mean the same"),
        (["yes", "y", *(f"{n}{n}" for n in range(11))], ""),
        (["f", "no", "m"], ""),
        (["f", "no"], "may mean the same"),
        (["dog", "dogs"], "'dog' and 'dogs'"),
        (["do", "dos"], ""),
        (["DOG", "DOGS"], "'DOG' and 'DOGS'"),
        (["dog1", "dog1s"], ""),
        (["dog", "dogs", *(f"{n}{n}" for n in range(48))], "'dog' and 'dogs'"),
        (["dog", "dogs", *(f"{n}{n}" for n in range(49))], ""),
    ],
)
def test_names_that_mean_the_same(names, told):
    told = told or " and "
    tells(told != " and ", told, division=named(*names))


def test_eight_pairs_are_named_and_more_are_counted():
    eight = [name for n in range(8) for name in (f"site{n}x", f"Site{n}x")]
    tells(False, "more pairs", division=named(*eight))
    tells(True, "1 more pairs", division=named(*eight, "end", "End"))


@pytest.mark.parametrize(("count", "told"), [(10, True), (11, False)])
def test_ten_letters_are_no_alphabet(count, told):
    letters = ["a", "A", *"bcdefghij"][:count]
    tells(told, "'a' and 'A'", division=named(*letters))


# Places.


def seen(**more):
    usual = {"flat": np.zeros(20, bool), "ended": np.zeros(20, bool), "side": np.full(20, 40.0)}
    return Pictures(**{**usual, **more})


@pytest.mark.parametrize(
    ("pictures", "told"),
    [
        (seen(flat=np.arange(20) < 4), "4 of 20 images are of a single colour (first sample 0)"),
        (seen(flat=np.arange(20) < 5), ""),
        (
            seen(flat=np.arange(20) > 14),
            "the last 5 of 20 images are of a single colour (from sample 15 on",
        ),
        (seen(flat=np.arange(20) > 16), "the last 3 of 20 images"),
        (seen(flat=np.arange(20) > 17), "2 of 20 images are of a single colour (first sample 18)"),
        (seen(flat=np.arange(20) >= 0), ""),
        (seen(ended=np.arange(20) < 4), "4 of 20 images are of a single colour in their lower"),
        (seen(ended=np.arange(20) < 5), ""),
        (seen(side=some((40, 19), (9, 1))), "1 of 20 images are far smaller ~ first sample 19"),
        (seen(side=some((40, 19), (10, 1))), ""),
        (seen(side=some((40, 15), (9, 5))), ""),
        (seen(cut=some((0, 19), (0.61, 1))), "lose more than 60 % ~ first sample 19"),
        (seen(cut=some((0, 19), (0.6, 1))), ""),
        (seen(frames={"a.tif": 3}), "1 images have several frames (first a.tif, 3)"),
    ],
)
def test_pictures_that_show_nothing(pictures, told):
    tells(bool(told), told or "images", pictures=pictures)


@pytest.mark.parametrize(("rows", "told"), [(1_048_576, True), (65_536, True), (65_535, False)])
def test_as_many_lines_as_a_spreadsheet_holds(rows, told):
    tells(told, "the most that a spreadsheet holds", lines=Lines(rows, rows))


def test_what_is_left_out_is_told_by_kind():
    left = [("a/1.heic", ""), ("a/2.heic", ""), ("b.zip", ""), ("c.txt", "")]
    found = doubts(Record("rows", "t", Notes(left_out=left)))
    assert [says(*pair) for pair in zip(found, (
        "2 images .heic cannot be read (first a/1.heic)", "1 archives .zip ~ unpack"), strict=True)
    ]  # fmt: skip


# Courses.


def moving(rows, seed=0):
    return np.random.default_rng(seed).normal(size=rows).cumsum() + 100


def noise(rows, seed=0):
    return np.random.default_rng(seed).normal(size=rows) + 100


def waves(step, rows=200):
    return np.sin(step * np.arange(rows))


def windows(*courses, **more):
    made = [Course(f"c{n}", np.asarray(one, float).reshape(len(one), -1), **more)
            for n, one in enumerate(courses)]  # fmt: skip
    return Windows(99, {}, {}, (), 4, "all", True, made, columns=("y", "next"))


def stood(rows, begin, end, value=None):
    """Return a series that stands still in some rows; a tenth of its other values is in two."""
    course = moving(rows)
    course[-rows // 10 :] = course[-rows // 5 : -rows // 10]
    course[begin:end] = course[begin] if value is None else value
    return course


def fine(rows, begin, end, value=None):
    """Return a series that stands still in some rows, and whose other values are unlike."""
    course = moving(rows)
    course[begin:end] = course[begin] if value is None else value
    return course


def course_of(kind, rows=40):
    """Return a series that goes straight, counts, or counts and falls."""
    line = 0.5 * np.arange(rows) + 7
    if kind == "counter":
        return 3 * np.arange(rows) + 0.01 * moving(rows)
    return line


@pytest.mark.parametrize(
    ("courses", "told"),
    [
        ([stood(60, 10, 30)], "'c0' is ~ in 20 rows running"),
        ([stood(60, 10, 29)], ""),
        ([stood(199, 10, 30)], "in 20 rows running"),  # more than a tenth of its rows
        ([stood(200, 10, 30)], ""),
        ([np.full(20, 3.0), moving(20)], "'c0' is 3 in 20 rows running"),
        ([np.full(19, 3.0), moving(20)], ""),
        ([np.full(20, 3.0), np.full(20, 4.0)], ""),  # all do
        ([stood(60, 10, 30, 0)], "'c0' is 0 in 20 rows running"),
        # Two other zeros of 100 rows are few, and three are usual.
        ([np.where(np.isin(np.arange(100), [1, 5]), 0, stood(100, 10, 30, 0))], "is 0 in 20 rows"),
        ([np.where(np.isin(np.arange(100), [1, 5, 8]), 0, stood(100, 10, 30, 0))], ""),
        # Five of numbers that do not repeat, but for the ends of what is measured.
        ([fine(60, 10, 15)], "in 5 rows running"),
        ([fine(60, 10, 14)], ""),
        ([fine(60, 10, 15, moving(60).max())], ""),
        ([fine(60, 10, 15, moving(60).min())], ""),
        ([stood(60, 10, 15)], ""),
    ],
)
def test_a_sensor_that_stood_still(courses, told):
    tells(bool(told), told or "rows running", windows=windows(*courses))


@pytest.mark.parametrize(
    ("straight", "filled", "others", "told"),
    [(20, 1, 0, True), (19, 1, 0, False), (20, 2, 2, True), (20, 2, 1, False), (20, 2, 0, False)],
)
def test_a_gap_that_was_filled(straight, filled, others, told):
    """Two of four clients may be by mistake, and two of three are so by nature."""
    course = moving(60)
    course[:straight] = 0.5 * np.arange(straight)
    given = [course + 10 * n for n in range(filled)] + [moving(60, n) for n in range(others)]
    tells(told, f"goes straight in {straight} rows", windows=windows(*given))


@pytest.mark.parametrize(("bend", "told"), [(1, True), (2, False)])
def test_a_straight_course_bends_by_a_thousandth_of_its_steps_at_most(bend, told):
    """The median of the steps is 1000: ten are, nine are larger by a bend, others are far."""
    straight = np.where(np.arange(19) % 2, 1000 + bend, 1000)
    others = np.concatenate([100 + 37 * np.arange(20), 3000 + 53 * np.arange(20)])
    course = np.append(0, np.concatenate([straight, others]).cumsum())
    tells(told, "goes straight in 20 rows", windows=windows(course))


def test_a_straight_course_is_one_by_nature():
    line = 0.5 * np.arange(60.0)
    line[30] += 3  # 55 of 58 bends are even
    tells(False, "goes straight", windows=windows(line))
    line[7] += 3  # 52, less than nine tenths
    tells(True, "goes straight in 29 rows", windows=windows(line))


@pytest.mark.parametrize(
    ("rows", "resets", "told"),
    [(100, 4, True), (100, 5, False), (20, 0, False)],
)
def test_a_counter_that_is_reset(rows, resets, told):
    course = 3 * np.arange(rows + 1.0) + 0.1 * moving(rows + 1) % 1
    for n in range(resets):
        course[10 + 12 * n :] -= 40
    tells(told, f"falls far {resets} times", windows=windows(course))


@pytest.mark.parametrize(
    ("courses", "told"),
    [
        # The correlation of each row with the next is less than three times the standard error of
        # forty rows, 0.474: with a trend of 0.04 it is 0.469, and with one of 0.05 it is 0.538.
        ([noise(40) + 0.04 * np.arange(40), waves(0.3), waves(0.6)], True),
        ([noise(40) + 0.05 * np.arange(40), waves(0.3), waves(0.6)], False),
        ([noise(39), waves(0.3), waves(0.6)], False),
        ([noise(40), waves(0.3)], False),
        ([noise(40), noise(40, 1), waves(0.6)], False),
        ([noise(40), waves(0.3), waves(0.75)], True),  # 0.732
        ([noise(40), waves(0.3), waves(0.8)], False),  # 0.698
        ([noise(40), waves(0.3), np.full(40, 3.0)], False),
    ],
)
def test_noise_in_the_place_of_one_sensor(courses, told):
    tells(told, "'c0' changes from row to row as noise does", windows=windows(*courses))


@pytest.mark.parametrize(("depth", "told"), [(-33.1, True), (-32.9, False)])
def test_a_counter_falls_by_more_than_ten_usual_steps(depth, told):
    step = np.full(60, 3.0)
    step[30] = depth + 3
    tells(told, "falls far 1 times", windows=windows(np.append(0, step).cumsum()))


def test_copies_of_courses_follow_no_rule():
    tells(True, "'c1' has the same values as 'c0'", windows=windows(moving(20), moving(20)))
    tells(False, "same values", windows=windows(moving(19), moving(19)))
    rounded = moving(30).round()
    tells(False, "same values", windows=windows(rounded, rounded))
    tells(False, "same values", windows=windows(moving(20), moving(20, 1)))


@pytest.mark.parametrize(
    ("step", "told"),
    [(0.61, False), (0.59, True), (1.59, False), (1.61, True), (0, False)],
)
def test_steps_of_time_that_differ(step, told):
    lost = windows(*(moving(30, n) for n in range(4)), step=3600.0)
    last = replace(lost.courses[3], step=3600 * step)
    given = replace(lost, courses=[*lost.courses[:3], last])
    tells(told, "rows of 'c3' are", windows=given)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(1800, "30 minutes"), (3599, "59.9833 minutes"), (3600, "1 hours"), (86399, "23.9997 hours"),
     (86400, "1 days")],
)  # fmt: skip
def test_a_step_of_time_is_shown_in_its_unit(seconds, shown):
    lost = windows(*(moving(30, n) for n in range(4)), step=10 * DAY)
    last = replace(lost.courses[3], step=seconds)
    given = replace(lost, courses=[*lost.courses[:3], last])
    tells(True, f"rows of 'c3' are {shown} apart, and 10 days", windows=given)
    tells(True, f"are {seconds} apart, and 864000 at", windows=replace(given, dated=False))


@pytest.mark.parametrize(("by", "rows", "told"), [(7, 40, True), (8, 40, False), (1, 20, True),
                                                  (1, 19, False)])  # fmt: skip
def test_a_feature_that_is_the_target_of_later(by, rows, told):
    first = moving(rows)
    given = windows(np.stack([first, np.roll(first, -by)], 1))
    tells(told, f"'next' is the target of {by} rows later", windows=given)


@pytest.mark.parametrize(("equal", "told"), [(33, True), (32, False)])
def test_a_feature_is_the_target_if_most_rows_are(equal, told):
    """Of 40 pairs, 33 are more than 80 %, and 32 are not."""
    first = moving(41)
    later = np.append(first[1:], 0)
    later[equal:] += 1
    tells(told, "'next' is the target of 1 rows", windows=windows(np.stack([first, later], 1)))
