"""Doubts as functions of records made by hand, and the hashes by which copies are found."""

from __future__ import annotations

import gzip
import unicodedata

import numpy as np
import pytest
import torch

from datamodules import IID, Digits, formats
from datamodules.contents import Rich, digests, ended, flat, hashes
from datamodules.doubts import doubts
from datamodules.doubts.names import skeleton
from datamodules.record import (
    Array,
    Course,
    Division,
    Goal,
    Lines,
    Record,
    Times,
    Values,
    Windows,
)
from tests.helpers.messages import parts, says

N = 40


def words(name, texts, use="feature", kind="words", **more):
    """Return a column of texts."""
    known, codes = np.unique(texts, return_inverse=True)
    absent = np.isin(known, ["", "NA"])
    numbers = np.full(len(codes), np.nan)
    place = lambda row: f"line {row + 2}"  # noqa: E731
    return Values(name, use, kind, "", known.tolist(), codes, absent, numbers, place=place, **more)


def divided(**more):
    """Return the division of forty samples, half of them for a test."""
    usual = {"names": {}, "labels": None, "clients": None, "side": 1 + 2 * (np.arange(N) % 2)}
    return Division(**{**usual, **more})


def found(**more):
    return doubts(Record("40 rows", "t.csv", **more))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("New York", "new\u00a0york\u200b", True),
        ("New-York", "New_York", True),
        ("Zürich", unicodedata.normalize("NFD", "Zurich"), True),
        ("Bonn", "B\u043enn", True),
        ("Bonn", "Ｂｏｎｎ", True),  # noqa: RUF001
        ("Bonn.", "Bonn", True),
        ("A+", "A-", False),
        ("<5", ">5", False),
        ("1-0", "1.0", False),
        ("\u0915\u093f", "\u0915\u0940", False),  # two vowels of Devanagari
    ],
)
def test_names_are_alike_as_the_eye_reads_them(one, other, same):
    assert (skeleton(one) == skeleton(other)) == same


def test_what_differs_in_two_names_is_visible_in_the_doubt():
    column = words("site", ["H1", "H1\u200b"] * 20, "client")
    (doubt,) = found(columns=(column,), division=divided())
    assert says(doubt, r"'site' has 'H1' and 'H1\u200b' (20 and 20 samples)")


def test_names_of_any_reader_are_doubted_by_the_division_alone():
    names = {"class": {"cat": 20, "Cat": 20}, "client": {"a": 20, "unknown": 20}}
    told = found(division=divided(names=names, labels=np.arange(N) // 2 % 2))
    assert [says(*pair) for pair in zip(told, ("'cat' and 'Cat'", "'unknown': leave"), strict=True)]


def test_an_alphabet_is_no_set_of_twins():
    names = {"class": dict.fromkeys("ABCDEFGHabcdefgh", 5)}
    assert not found(division=divided(names=names))


def test_lines_are_counted_against_rows():
    (doubt,) = found(lines=Lines(120, 71, ((12, 62, 49),)))
    assert says(doubt, "t.csv, line 12 ~ closed in line 62 only, and 49 lines ~ remove the quote")


def test_equal_content_is_told_with_the_side_and_the_class():
    content = np.arange(N, dtype=np.uint64)
    content[7] = content[4]
    (doubt,) = found(digests=content, division=divided())
    assert says(doubt, "1 samples ~ 1 of them on both sides ~ sample 4 and sample 7")
    content = np.arange(N, dtype=np.uint64)
    content[6] = content[4]
    labels = (np.arange(N) == 6).astype(np.int64)
    names = {"class": {"p": N - 1, "q": 1}}
    told = found(digests=content, division=divided(labels=labels, names=names))
    assert says(told[0], "different classes ~ sample 4 and sample 6")
    assert "both sides" not in told[0]
    assert not found(digests=content, division=divided(), rich=lambda rows: False)


def test_what_samples_belong_to_is_of_its_client():
    """The numbers 0 to 19 stand twice: on both sides if there is one client, but not at two."""
    patients = np.arange(N) // 2
    (doubt,) = found(identifiers={"patient": patients}, division=divided())
    assert says(doubt, "20 of 20 values of 'patient' ~ training and for testing ~ the clients")
    two = divided(clients=np.arange(N) % 2)
    assert not found(identifiers={"patient": patients}, division=two)
    assert not found(identifiers={"patient": patients}, division=divided(protocol="future"))


@pytest.mark.parametrize(
    ("numbers", "doubt"),
    [
        (np.where(np.arange(N) % 8, 20.0 + np.arange(N), -1), "is -1 in 5 rows"),
        (np.where(np.arange(N) % 8, 120.0 + np.arange(N), 0), "is 0 in 5 rows"),
        (np.where(np.arange(N) % 8, 20.0 + np.arange(N), 999), "is 999 in 5 rows"),
        (np.where(np.arange(N) == 9, 5e6, np.arange(N) % 7 + 20.0), "is 5e+06 in sample 9"),
        (np.full(N, 3.0), "is 3 in all rows"),
        (np.arange(N) % 3 - 1.0, ""),
        (np.arange(N) % 60 + 40.0, ""),
        (np.maximum(0, np.arange(N) - 20.0), ""),
    ],
)
def test_numbers_that_stand_for_none(numbers, doubt):
    told = found(columns=(Values("x", numbers=numbers),))
    assert [says(one, doubt) for one in told] == [True] * bool(doubt)


def test_a_unit_of_another_size_is_of_one_client():
    clients = np.arange(N) % 4
    numbers = 170.0 + np.arange(N) % 7
    scaled = np.where(clients == 2, numbers / 100, numbers)
    names = {"client": dict.fromkeys("ABCD", 10)}
    given = divided(clients=clients, names=names)
    (doubt,) = found(columns=(Values("x", numbers=scaled),), division=given)
    assert says(doubt, "'x' of 'C' is around 1.73 ~ unit (1:100)")
    shifted = np.where(clients == 2, numbers + 5000, numbers)
    assert not found(columns=(Values("x", numbers=shifted),), division=given)


def test_lost_windows_are_told_by_cause_with_the_key():
    lost = Windows(514, {"week ends": 310}, {"week ends": "after Friday"}, (), 4, "all", True, ())
    (doubt,) = found(windows=lost)
    assert says(doubt, "310 of 514 windows ~ week ends ~ after Friday ~ calendar: business")


def test_a_time_far_from_all_others_is_doubted():
    days = 86400.0 * np.arange(20_000, 20_000 + N)
    (doubt,) = found(times=Times("day", "dates", np.where(np.arange(N) == 3, 0.0, days)))
    assert says(doubt, "'day' is 1970-01-01 in 1 rows")
    assert not found(times=Times("day", "dates", days))


def test_a_total_is_rare_and_a_category_is_not():
    rare = ["north", "south"] * 19 + ["north", "Total"]
    (doubt,) = found(columns=(words("site", rare, "none"),))
    assert says(doubt, "t.csv, line 41: 'Total' in 'site'")
    assert not found(columns=(words("kind", ["mean", "max"] * 20, "none"),))


def test_codes_taken_for_missing_values():
    column = words("country", ["DE", "FR", "NA", "US"] * 10, "feature")
    (doubt,) = found(columns=(column,))
    assert says(doubt, "'country' is 'NA' in 10 rows ~ missing_values without it")
    assert not found(columns=(words("state", ["open", "shut", "NA", "open"] * 10),))


# Content.


def test_equal_rows_have_equal_hashes_and_others_have_not():
    values = np.random.default_rng(0).normal(size=(500, 7))
    values[9] = values[4]
    kept = hashes(values)
    assert kept[9] == kept[4]
    assert len({*kept.tolist()}) == 499
    # Flipping two signs changes the highest bits alone.
    flipped = values.copy()
    flipped[0, :2] *= -1
    assert hashes(flipped)[0] != kept[0]
    assert (hashes(values.astype(np.float32)[:, :3]) != 0).all()


def test_samples_are_copies_where_chance_would_hardly_make_them_equal():
    rng = np.random.default_rng(0)

    def copies(x):
        x = torch.from_numpy(x)
        x[1] = x[0]
        return Rich(x, digests(x))(np.array([0, 1]))

    assert copies(rng.normal(size=(60, 4)))
    assert copies(rng.integers(0, 256, (60, 3, 8, 8), dtype=np.uint8))
    assert not copies(rng.integers(0, 5, (60, 4)).astype(float))
    assert not copies(np.round(rng.random((60, 1)), 2))
    assert not copies(np.full((60, 3, 4, 4), 7, np.uint8))
    # Three decimals are as few in single precision.
    for kind in (np.float64, np.float32):
        assert not copies(np.round(rng.normal(50, 9, (60, 1)), 3).astype(kind))


def test_pictures_of_one_colour_are_seen():
    """What a covered camera sees is nearly of one colour."""
    pixels = np.full((5, 2, 4, 4), 9, np.uint8)
    pixels[1, 0, 2, 3] = pixels[2, 1, 0, 2] = 4
    pixels[3, 0, 2, 3] = 5
    assert flat(pixels).tolist() == [True, False, False, True, True]


# Formats.


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"PAR1\x15", "Parquet"),
        (b"\x1f\x8b\x08", "gzip"),
        (b'{"a": 1}\n{"a": 2}\n', "JSON lines"),
        (b'[{"a": 1}]', "JSON"),
        (b'{\n "a": [1]}', "JSON"),
        (b"\xff\xfea\0", "UTF-16"),
        (b"\xef\xbb\xbfa,b\n", ""),
        (b"a,b\n1,2\n", ""),
        (b"{a},b\n", ""),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"\x00\x00\x00\x18ftypheic", "HEIC"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "WebP"),
        (b"\x72\x01\x01\x00", "Stata"),
        (b"version https://git-lfs.github.com/spec/v1", "a pointer of Git LFS"),
    ],
)
def test_first_bytes_name_the_format(head, name):
    assert formats.name_of_bytes(head) == name


def test_what_unpacks_to_far_more_is_refused_before_it_is_in_memory(tmp_path, monkeypatch):
    file = tmp_path / "t.csv.gz"
    file.write_bytes(gzip.compress(b"0" * 10**6))
    assert formats.content(file)[0] == b"0" * 10**6
    monkeypatch.setattr(formats, "_ALWAYS", 1000)
    with pytest.raises(ValueError, match=parts("t.csv.gz unpacks to more than 100 times")):
        formats.content(file)


def test_sound_images_without_sizes_are_read_without_a_warning(recwarn):
    """Those of the quickstart, which are stored as one array."""
    data = Digits(num_clients=2, partition=IID())
    data.setup()
    assert [str(one.message) for one in recwarn] == []


def numbers(name, values, use="feature", **more):
    """Return a column of numbers, as a table spells them."""
    known, codes = np.unique(values, return_inverse=True)
    return Values(
        name, use, "numbers", "", [f"{one:g}" for one in known], codes, np.zeros(len(known), bool),
        np.asarray(values, float), place=lambda row: f"line {row + 2}", **more,
    )  # fmt: skip


ROWS = np.arange(N)
DRAWN = np.random.default_rng(0).normal(size=N)


@pytest.mark.parametrize(
    ("column", "doubt"),
    [
        (numbers("visit_date", 45_000 + ROWS % 31 * 40), "45000 is 2023-03-15 ~ origin"),
        (numbers("x", 45_000 + ROWS % 31 * 40), "a spreadsheet numbers dates"),
        (numbers("income", 21_000 + ROWS % 31 * 1500), ""),  # wider than a decade
        (numbers("visit_date", 70_000 + ROWS % 31), ""),
        (words("group", ["0-4", "9-May", "15-19", "20+"] * 10), "the date '9-May' ~ '0-4'"),
        (words("day", ["1-Mar", "2-Mar"] * 20, "target"), ""),  # all are dates
        (words("who", ["4.9E+12", "3.2E+12"] * 20, "client"), "'3.2E+12' ~ shortens"),
        (words("x", ["4.9E+12", "low"] * 20), ""),
        (words("rr", ["120/80", "130/85"] * 20), "two numbers in each cell, such as '120/80'"),
        (words("stage", ["II/III", "IV"] * 20), ""),
        (numbers("stage", np.where(ROWS % 10 == 0, 9, 1 + ROWS % 3)), "'stage' is 9 in 4 rows"),
        (numbers("score", 1 + ROWS % 9), ""),
        (numbers("children", np.where(ROWS == 3, 9, ROWS % 4)), ""),  # once
        (numbers("height", np.where(ROWS % 4, 170 + DRAWN, 1.7 + DRAWN / 100)), "(1:100)"),
        (numbers("dose", np.exp(DRAWN)), ""),
        (words("x", ["########", "low"] * 20), "'########' in 20 rows"),
        (words("smoker", ["TRUE", "WAHR"] * 20), "'TRUE' and 'WAHR'"),
        (words("town", ["Köln", "Koeln"] * 20), "'Koeln' and 'Köln'"),
        (words("kind", ["cat", "cats"] * 20), "'cat' and 'cats'"),
    ],
)
def test_what_spreadsheets_make_of_cells_is_doubted(column, doubt):
    doubts = found(columns=(column,))
    assert [says(one, doubt) for one in doubts] == [True] * bool(doubt)


def test_a_column_that_is_another_or_the_target_is_doubted():
    x = numbers("x", DRAWN)
    assert says(*found(columns=(x, numbers("x.1", DRAWN))), "'x.1' is 'x' in every row")
    assert not found(columns=(x, numbers("z", DRAWN[::-1])))
    labels = ROWS // 2 % 2
    given = divided(labels=labels, names={"class": {"0": 20, "1": 20}})
    array = Array("x", "float32", (N, 1), 0, 1, False)
    tells = Values("x[:, 2]", numbers=3.0 - labels)
    (doubt,) = found(columns=(tells,), arrays=(array,), division=given)
    assert says(doubt, "'x[:, 2]' is 'y' in every row")


def test_a_client_in_another_unit_is_doubted_where_all_others_agree():
    clients = ROWS % 4
    given = divided(clients=clients, names={"client": dict.fromkeys("ABCD", 10)})
    glucose = np.where(clients == 1, (95 + DRAWN) / 18, 95 + DRAWN)
    (doubt,) = found(columns=(Values("glucose", numbers=glucose),), division=given)
    assert says(doubt, "'glucose' of 'B' ~ unit (1:17.9)?")
    fever = np.where(clients == 2, (37 + DRAWN / 2) * 1.8 + 32, 37 + DRAWN / 2)
    (doubt,) = found(columns=(Values("fever", numbers=fever),), division=given)
    assert says(doubt, "'fever' of 'C' ~ another unit?")
    sizes = np.array([1, 3, 11, 60])[clients] * (100 + DRAWN)
    assert not found(columns=(Values("sales", numbers=sizes),), division=given)


def masks(*planes, **more):
    y = np.stack([np.asarray(one, np.uint8) for one in planes])
    return Goal(y, False, True, **more)


def test_masks_that_are_copies_or_of_two_palettes_are_doubted():
    rng = np.random.default_rng(0)
    several = [rng.integers(0, 3, (4, 4)) for _ in range(6)]
    assert not found(goal=masks(*several))
    assert says(*found(goal=masks(*several, several[0], several[0])), "3 masks are equal")
    (doubt,) = found(goal=masks(*several, colours=["1 is red in a.png, but green in b.png"]))
    assert says(doubt, "different palettes ~ 1 is red")
    clients = np.array([0, 0, 0, 1, 1, 1])
    given = Division({"client": {"A": 3, "B": 3}}, None, clients, np.ones(6, int))
    blank = [*several[:3], *np.zeros((3, 4, 4))]
    (doubt,) = found(goal=masks(*blank), division=given)
    assert says(doubt, "all masks of the client 'B' are 0")


@pytest.mark.parametrize(
    ("y", "doubt"),
    [
        (np.full((N, 4), 0.25), "sums up to 1 ~ argmax"),
        (np.eye(4)[ROWS % 4], "has a single 1 ~ argmax"),
        (DRAWN[:, None] * np.ones(3), ""),
        ((ROWS % 3.0)[:, None], "give y.long()"),
        (DRAWN[:, None], ""),
    ],
)
def test_targets_in_columns_that_may_be_classes_are_doubted(y, doubt):
    doubts = found(goal=Goal(y, True, False))
    assert [says(one, doubt) for one in doubts] == [True] * bool(doubt)


def test_courses_of_series_that_do_not_move_as_such_are_doubted():
    def told(*courses, **more):
        return found(windows=Windows(99, {}, {}, (), 4, "all", True, courses, **more))

    def one_of(name, first, step=3600.0):
        return Course(name, np.asarray(first, float).reshape(len(first), -1), step)

    drawn = [np.random.default_rng(seed).normal(size=N).cumsum() for seed in range(1, 4)]
    usual = [one_of(name, first) for name, first in zip("ABC", drawn, strict=True)]
    moving = DRAWN.cumsum()
    assert not told(*usual, one_of("D", moving))
    assert says(*told(*usual, one_of("D", drawn[0])), "'D' has the same values as 'A'")
    daily = one_of("D", moving, 86400.0)
    assert says(*told(*usual, daily), "'D' are 1 days apart, and 1 hours")
    still = np.where(ROWS > 15, moving[15], moving)
    told_of_it = f"'D' is {moving[15]:g} in 25 rows running"
    assert says(*told(*usual, one_of("D", still)), told_of_it)
    filled = np.where(ROWS < 30, 0.5 * ROWS, moving)
    assert says(*told(*usual, one_of("D", filled)), "straight in 30 rows ~ interpolated")
    counter = np.where(ROWS < 25, 3.0 * ROWS + 100, 3.0 * (ROWS - 25)) + 0.1 * DRAWN
    assert says(*told(*usual, one_of("D", counter)), "falls far 1 times ~ counter")
    rain = np.where(ROWS % 3, 0.0, np.abs(DRAWN))
    assert not told(*usual, one_of("D", rain))
    shifted = np.stack([moving, np.roll(moving, 1), np.roll(moving, -2)], 1)
    (doubt,) = told(one_of("A", shifted), columns=["y", "before", "later"])
    assert says(doubt, "'later' is the target of 2 rows later")


def test_days_and_months_that_changed_places_are_doubted():
    days = np.datetime64("2025-01-01") + 3 * np.arange(60)
    text = [str(day).split("-") for day in days]
    swapped = [f"{y}-{d}-{m}" if int(d) <= 12 else f"{y}-{m}-{d}" for y, m, d in text]
    seconds = lambda given: np.array(given, "datetime64[s]").astype(float)  # noqa: E731
    (doubt,) = found(times=Times("day", "dates", seconds(swapped)))
    assert says(doubt, "'day' goes back ~ day and month ~ swapped")
    assert not found(times=Times("day", "dates", seconds(days)))
    assert not found(times=Times("day", "dates", seconds(days)[::-1]))


@pytest.mark.parametrize(
    ("names", "doubt"),
    [
        (["a/1.png", "a/1.jpg", "a/2.png"], "1 files have the name ~ a/1.png and a/1.jpg"),
        (["a/1.jpg", "a/1 (2).jpg"], "look like copies"),
        (["a/1.jpg", "a/1 - Copy.jpg"], "look like copies"),
        (["a/cat (1).jpg", "a/cat (2).jpg"], ""),
    ],
)  # fmt: skip
def test_files_that_are_others_again_are_doubted(names, doubt):
    doubts = found(files=names)
    assert [says(one, doubt) for one in doubts] == [True] * bool(doubt)


def test_clients_without_samples_and_samples_without_a_client_are_doubted():
    held = np.array([[10, 0, 5], [0, 0, 5], [10, 0, 5]])
    side = np.where(ROWS < 20, 1, 3)
    (doubt,) = found(division=divided(held=held, side=side, chosen=True))
    assert says(doubt, "1 of 3 clients have no sample to train on")
    (doubt,) = found(division=divided(side=np.where(ROWS < 20, 0, side), chosen=True))
    assert says(doubt, "20 of 40 samples are of no client")
    (doubt,) = found(division=divided(held=held, side=side))
    assert says(doubt, "1 of 3 clients ~ (1): give fewer clients")
    assert not found(division=divided(held=held[[0, 2]], side=side))
    names = {"client": dict.fromkeys("ABCD", 10), "class": dict.fromkeys("pqrs", 10)}
    # Each second one is for a test.
    labels = ROWS // 2 % 4
    same = divided(labels=labels, clients=labels, names=names, natural=True)
    assert says(*found(division=same), "client_column name the client?")
    numbered = {"client": {"-1": 10, "0": 10, "1": 10, "2": 10}}
    given = divided(clients=labels, names=numbered, natural=True)
    assert says(*found(division=given), "the client -1 of 10 samples stands apart")


def test_rows_that_follow_each_other_in_two_places_are_copies_however_few_values_they_have():
    copied = np.concatenate([np.arange(30), np.arange(10)]).astype(np.uint64)
    poor = lambda rows: False  # noqa: E731
    assert says(*found(digests=copied, rich=poor), "10 samples have the content of another")
    assert not found(digests=np.random.default_rng(0).permutation(copied), rich=poor)
    assert not found(digests=(ROWS % 5).astype(np.uint64), rich=poor)


def test_a_picture_cut_off_is_told_from_one_with_a_border():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 3, 16, 16)).astype(np.uint8)
    pixels[1, :, 12:] = 90
    # Half of the upper quarter is the ground, and a pixel less is none.
    pixels[6:, :, 12:] = pixels[6:, :, :2] = 90
    pixels[6:, :, 0, 0] = pixels[7, :, 0, 1] = 1
    pixels[6:, :, 2, 0] = 90
    pixels[2, :, 12:] = pixels[2, :, :2] = 90
    pixels[3, :, 14:] = 90  # less than a quarter
    pixels[4] = 90
    assert ended(pixels).tolist() == [False, True, False, False, False, False, False, True]


def test_a_drawing_with_a_third_of_its_ground_above_is_not_cut_off():
    """Of the 12 rows above, 8 have the ground in 8 of 16 columns: a third, and a pixel less."""
    pixels = np.random.default_rng(0).integers(0, 90, (2, 1, 16, 16)).astype(np.uint8)
    pixels[:, :, 12:] = pixels[:, :, 4:12, :8] = 90
    pixels[1, :, 4, 0] = 0
    assert ended(pixels).tolist() == [False, True]
