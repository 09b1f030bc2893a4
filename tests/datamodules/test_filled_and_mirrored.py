"""Both sides of each bound of doubts about what was filled in, slipped, summed up or mirrored."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from datamodules.contents import hashes, turned
from datamodules.record import Array, Pictures
from datamodules.tables import faults
from tests.datamodules.test_bounds_of_doubts import (
    divided,
    masks,
    moving,
    numbers,
    some,
    steps,
    tells,
    windows,
)

# From 10 to 29 in twentieths, with the mean and median 19.5 and a deviation of about 5.8.
VARIED = steps(10, 29, 20)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([*VARIED, *[19.5] * 5], "'x' is 19.5 in 5 rows (first sample 20) ~ missing: mean"),
        ([*VARIED, *[19.5] * 4], ""),
        ([*VARIED, *[19.6] * 5], "'x' is 19.6 in 5"),  # less than 0.02 deviations off, 0.115
        ([*VARIED, *[19.62] * 5], ""),
        ([*VARIED, *[29.0] * 5], ""),
        # The median of skew numbers, 19.5, and their mean, 69.5.
        ([*VARIED[:10], *(VARIED[10:] + 100), *[69.5] * 5], "'x' is 69.5"),
        ([*VARIED[:10], *(VARIED[11:] + 100), *[22] * 5], ""),
        # 251 rows would have to have six.
        ([*steps(0, 1, 244), *[0.5] * 5], "'x' is 0.5"),
        ([*steps(0, 1, 246), *[0.5] * 5], ""),
        # 16 of 20 others are different, and 15.
        ([*VARIED[:16], *VARIED[6:10], *[17.5] * 5], "'x' is 17.5"),
        ([*VARIED[:15], *VARIED[5:10], *[17.0] * 5], ""),
        ([*steps(1, 9, 9), *[5.0] * 11], ""),  # nine others
        ([*steps(1, 10, 10), *[5.5] * 10], "'x' is 5.5"),
        ([*steps(1, 10, 10), *[5.5] * 9], ""),  # nineteen numbers
        # Where one is expected, chance makes seven once in 2**12.3, and eight in 2**15.3.
        ([*steps(10, 30, 21), *[20.0] * 6], ""),
        ([*steps(10, 30, 21), *[20.0] * 7], "'x' is 20 in 8 rows"),
        # 4 from the median, by half of the others 8 off, and not by the deviation of two groups.
        ([*steps(10, 30, 21), *steps(9_010, 9_020, 11), *[22.0] * 7], ""),
    ],
)
def test_a_middle_that_was_filled_in(values, told):
    tells(bool(told), told or "filled in", columns=(numbers(values),))


def at_clients(*parts, use="feature"):
    """Return a column of some clients, and their division."""
    clients = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    names = {"client": {"ABCDE"[n]: len(part) for n, part in enumerate(parts)}}
    column = numbers(np.concatenate([np.asarray(part, float) for part in parts]), use=use)
    return {"columns": (column,), "division": divided(len(clients), clients=clients, names=names)}


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([[7.5] * 10, steps(1, 10, 10), steps(11, 20, 10)], "'x' is 7.5 in all 10 rows of 'A'"),
        ([[7.5] * 9, steps(1, 10, 10), steps(11, 20, 10)], ""),
        ([[7.5] * 10, steps(1, 9, 9), steps(11, 19, 9)], ""),  # nineteen numbers
        ([[7.5] * 10, [8.5] * 10, steps(11, 30, 20)], ""),
        ([[7.5] * 10, [8.5] * 10, *(steps(11, 30, 20) + 50 * n for n in range(2))], ""),
        ([[7.5] * 10, [8.5] * 10, *(steps(11, 30, 20) + 50 * n for n in range(3))], "is 7.5 in"),
        ([[7.5] * 10, steps(1, 20, 20)], ""),  # two clients
    ],
)
def test_one_number_of_a_whole_client(parts, told):
    tells(bool(told), told or "in all", **at_clients(*parts))


def test_targets_of_series_have_a_course_of_their_own():
    given = at_clients([7.5] * 10, steps(1, 10, 10), steps(11, 20, 10), use="target")
    tells(True, "'x' is 7.5 in all", **given)
    tells(False, "'x' is 7.5 in all", **given, windows=windows(moving(30)))


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([steps(1, 9, 9), steps(-9, -1, 9), steps(1, 9, 9)], True),
        ([steps(1, 9, 9), steps(-9, 0, 9), steps(1, 9, 9)], False),
        ([steps(0, 9, 9), steps(-9, -1, 9), steps(1, 9, 9)], False),
        ([steps(-9, -1, 9), steps(-9, -1, 9), steps(1, 9, 9)], False),
    ],
)
def test_a_client_that_counts_the_other_way(parts, told):
    tells(told, "'x' of 'B' is below zero", **at_clients(*parts))


# Between 20 and 40 with the quantiles 21.2 and 38.8: less than 14.1 and more than 58.2 is far.
NARROW = np.repeat(steps(20, 40, 11), 5)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([-30], "'x' is -30 in sample 55 ~ write 30"),
        ([-99], ""),  # stands for none
        ([300], "write 30"),
        ([3], "write 30"),
        ([0.3], "write 30"),
        ([100], ""),
        ([58], ""),
        ([4000], "write 40"),
        ([4001], ""),  # more than a hundred times the largest usual one: told elsewhere
        ([300, 3], "'x' is 300"),
        ([300, 3, 0.3], ""),  # three of 58
        ([1, 300], "'x' is 300"),  # the other is nothing
    ],
)
def test_a_slip_of_a_sign(more, told):
    for sign in (1, -1):
        words = told if sign == 1 or not told else "nearly everywhere: write -"
        values = sign * np.append(NARROW, more)
        tells(bool(words), words or "if it is meant", columns=(numbers(values),))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (some((2010, 25), (2020, 25), (19, 1)), "write 2019"),
        (some((1960, 25), (1990, 25), (75, 1)), "write 1975"),
        (some((1960, 25), (1990, 25), (75.5, 1)), ""),
        (some((1960, 25), (1990, 25), (100, 1)), ""),
        (some((1, 25), (2.9, 25), (30, 1)), "write 3"),
        (some((1, 25), (3, 25), (30, 1)), ""),  # three times as large: not narrow
        (some((2, 19), (16, 1)), "write 1.6"),
        (some((2, 18), (16, 1)), ""),  # nineteen
    ],
)
def test_a_slip_among_years_and_few(values, told):
    tells(bool(told), told or "if it is meant", columns=(numbers(values),))


@pytest.mark.parametrize(("more", "told"), [([2.6], "write 26"), ([2.6, 9], "")])
def test_a_slip_within_what_is_usual_stands_alone(more, told):
    """The ends of 160 normal numbers reach 4.9 deviations; no other is within two of 2.6."""
    usual = [26 + 4.8 * NormalDist().inv_cdf((n + 0.5) / 160) for n in range(160)]
    tells(bool(told), told or "if it is meant", columns=(numbers([*usual, *more]),))


@pytest.mark.parametrize(
    ("values", "codes", "told"),
    [
        (steps(1, 20, 20), [0] * 10 + [1] * 10, True),
        (steps(20, 1, 20), [0] * 10 + [1] * 10, True),
        (steps(1, 20, 20), [0] * 9 + [1] * 11, False),
        (steps(1, 20, 20), [0, 1] * 10, False),
        ([*[1] * 10, *[2] * 10], [0] * 10 + [1] * 10, False),  # two numbers
        ([*[1] * 10, *steps(2, 10, 9), 10], [0] * 10 + [1] * 10, True),  # ten
        ([*[1] * 10, *steps(1, 10, 10)], [0] * 10 + [1] * 10, False),  # they touch
        (steps(1, 30, 30), [0] * 10 + [1] * 10 + [2] * 10, True),
        (steps(1, 30, 30), [0] * 10 + [1] * 11 + [2] * 9, False),
        ([*steps(1, 20, 20), *steps(20, 30, 10)], [0] * 10 + [1] * 10 + [2] * 10, False),
    ],
)
def test_a_number_that_tells_two_classes_apart(values, codes, told):
    names = {"class": {"0": codes.count(0), "1": codes.count(1)}}
    array = Array("x", "float32", (len(codes), 1), 0, 1, False)
    given = divided(len(codes), labels=np.array(codes), names=names)
    columns = (numbers(np.asarray(values, float)),)
    tells(told, "'x' alone tells", columns=columns, arrays=(array,), division=given)


@pytest.mark.parametrize(
    ("noise", "count", "told"), [(0.0, 20, True), (0.0, 19, False), (0.005, 20, True),
                                 (0.05, 20, False)],
)  # fmt: skip
def test_a_target_in_another_unit(noise, count, told):
    """The noise changes its sign with each number: the deviation is 5.8 of 20, times 2.2."""
    target = steps(1, count, count)
    feature = 2.2 * target + noise * (-1) ** np.arange(count)
    columns = (numbers(feature), numbers(target, "y", "target"))
    tells(told, "'x' is 'y' in another unit", columns=columns)
    tells(False, "in another unit", columns=columns, windows=windows(moving(30)))


# Series.


def grown(rows, falls=0):
    """Return a series that rises in each row but some."""
    by = np.ones(rows - 1)
    by[1 : 1 + 2 * falls : 2] = -0.5
    return np.append(0.0, by.cumsum()) + 1e-3 * moving(rows)


@pytest.mark.parametrize(
    ("courses", "told"),
    [
        ([grown(41), grown(41, 8), grown(41, 8)], True),  # eight of forty rows are a fifth
        ([grown(41), grown(41, 7), grown(41, 8)], False),
        ([grown(41), grown(41, 8)], False),
        ([grown(41), grown(41), grown(41, 8)], False),
        ([grown(19), moving(19), moving(19, 1)], False),
        ([np.repeat(steps(1, 9, 21), 2), moving(42), moving(42, 1)], False),  # half stand still
    ],
)
def test_a_client_that_is_summed_up(courses, told):
    tells(told, "'c0' never falls", windows=windows(*courses))


@pytest.mark.parametrize(("block", "told"), [(12, True), (11, False)])
def test_a_block_that_was_pasted_twice(block, told):
    course = moving(60)
    course[40 : 40 + block] = course[5 : 5 + block]
    tells(told, f"{block} rows of 'c0' ~ first in its row 6", windows=windows(course))


# Pictures.


def pictures(count=12, seed=0, size=8):
    return np.random.default_rng(seed).integers(0, 256, (count, 3, size, size), dtype=np.uint8)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (lambda one: one[..., ::-1], True),
        (lambda one: one[:, ::-1], True),
        (lambda one: np.rot90(one, axes=(1, 2)), True),
        (lambda one: np.rot90(one, 3, axes=(1, 2)), True),
        (lambda one: one.swapaxes(1, 2), True),
        (lambda one: one[::-1], False),  # other colours
        (lambda one: np.roll(one, 1, 2), False),
        (lambda one: one, False),  # a copy is told elsewhere
    ],
)
def test_images_that_are_others_mirrored_or_turned(how, told):
    made = pictures()
    made[7] = how(made[2])
    kept = hashes(made)
    given = divided(12, side=1 + 2 * (np.arange(12) % 2))
    record = {"digests": kept, "turned": turned(made, kept), "division": given}
    tells(
        told, "1 images are others, mirrored ~ 1 of them on both ~ sample 2 and sample 7", **record
    )
    tells(False, "mirrored", **record, rich=lambda rows: False)
    same = replace(given, side=np.ones(12, int))
    tells(False, "on both sides of a split (such as", **{**record, "division": same})


def test_images_that_are_no_squares_are_mirrored_only():
    made = pictures()[:, :, :6]
    made[7] = made[2, :, ::-1, ::-1]
    kept = hashes(made)
    found = turned(made, kept)
    assert found[7] == found[2]
    assert len(np.unique(found)) == 11


def shortcut(files, labels, sides=None):
    names = {"class": {str(n): labels.count(n) for n in range(max(labels) + 1)}}
    seen = Pictures() if sides is None else Pictures(side=np.asarray(sides, float))
    given = divided(len(labels), labels=np.array(labels), names=names)
    return {"files": [f"{n}{kind}" for n, kind in enumerate(files)], "division": given,
            "pictures": seen}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (shortcut([".jpg"] * 5 + [".png"] * 5, [0] * 5 + [1] * 5), "class '0' are .jpg, and no"),
        (shortcut([".jpg"] * 5 + [".png"] * 4, [0] * 5 + [1] * 4), ""),
        (shortcut([".jpg"] * 4 + [".png"] * 5, [0] * 4 + [1] * 5), ""),
        (shortcut([".jpg"] * 6 + [".png"] * 5, [0] * 5 + [1] * 6), ""),
        (shortcut([".png"] * 10, [0] * 5 + [1] * 5), ""),
        (shortcut([".png"] * 10, [0] * 5 + [1] * 5, [9] * 5 + [10] * 5), "have from 9 to 9 pixels"),
        (shortcut([".png"] * 10, [0] * 5 + [1] * 5, [10] * 5 + [9] * 5), "have from 10 to 10"),
        (shortcut([".png"] * 10, [0] * 5 + [1] * 5, [9] * 4 + [10] * 6), ""),
        (shortcut([".png"] * 10, [0] * 5 + [1] * 5, [10] * 4 + [9] * 6), ""),
    ],
)  # fmt: skip
def test_classes_that_a_format_or_a_size_tells(given, told):
    lines = ("in one format", "one size before") if not told else (told,)
    for words in lines:
        tells(bool(told), words, **given)


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ((0.2, 0.2, 0.8), True),
        ((0.2, 0.2, 0.7), False),  # not half apart
        ((0.2, 0.2, 0.96), False),  # 0.16 from the other way round
        ((0.2, 0.2, 0.94), True),
        ((0.8, 0.8, 0.2), True),
    ],
)
def test_masks_the_other_way_round_at_a_client(shares, told):
    goal = masks(0, 1)
    y = np.zeros((6, 10, 10), np.uint8)
    for row in range(6):
        y[row].ravel()[row : row + round(100 * shares[row // 2])] = 1
    clients = np.repeat([0, 1, 2], 2)
    given = divided(6, clients=clients, names={"client": dict.fromkeys("ABC", 2)})
    tells(told, "of the client 'C' are of class 1", goal=replace(goal, y=y), division=given)
    y = np.where(y == 1, 2, 0).astype(np.uint8)
    tells(False, "of class 1", goal=replace(goal, y=y), division=given)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        (some((1, 17), (11, 3)), "17 samples up to 1 and 3 up to 11"),
        (some((1, 18), (11, 2)), ""),
        (some((1, 17), (10, 3)), ""),  # a decade
        (some((1, 16), (11, 3)), ""),  # nineteen
        (some((1, 95), (11, 5)), "95 samples"),
        (some((1, 96), (11, 4)), ""),
        (some((1, 8), (9, 8), (90, 8)), ""),
        (some((0, 9), (1, 17), (11, 3)), "(of 20 that"),
    ],
)
def test_samples_in_two_scales(sizes, told):
    for shape in ((20, 1, 9), (20, 1, 9, 9)):
        array = Array("x", "float32", shape, 0, 20, False, None, sizes)
        tells(bool(told), told or "scaled", arrays=(array,))
    for other in (replace(array, shape=(20, 9)), replace(array, dtype="uint8")):
        tells(False, "are some of them scaled", arrays=(other,))


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("26.3\u00b9", "26.3"),
        ("26.3 kg", "26.3"),
        ("26.3mg/dl", "26.3"),
        ("37 °C", "37"),
        ("26k", "26k"),  # thousands
        ("2 mio", "2 mio"),
        ("1e5", "1e5"),
        ("26.3-", "-26.3"),
        ("5 of 9", "5 of 9"),
    ],
)
def test_what_stands_around_a_number(text, plain):
    assert faults.plain_number(text) == plain
