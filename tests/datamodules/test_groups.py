"""Both sides of each bound of doubts about groups of samples, ends, units, tests and copies."""

from __future__ import annotations

import numpy as np
import pytest

from datamodules.doubts.courses import held
from datamodules.doubts.division import of_classes
from datamodules.doubts.values import is_sentinel
from datamodules.likeness import grey, near
from datamodules.record import Array, Record, Times
from tests.datamodules.test_bounds_of_doubts import (
    DAY,
    divided,
    moving,
    numbers,
    some,
    steps,
    tells,
    texts,
    windows,
)

YEAR = 365.25 * DAY
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("number", "told"), [(9999, True), (9998, False), (255, True), (254, False), (99, True)]
)
def test_a_class_for_samples_without_a_label(number, told):
    """Each number of the list, and its neighbour, which is a class."""
    names = {"class": {"0": 10, "1": 10, "2": 10, str(number): 5}}
    labels = np.repeat([0, 1, 2, 3], [10, 10, 10, 5])
    record = Record("rows", division=divided(35, names=names, labels=labels))
    assert any("stands apart from 0 to 2" in line for line in of_classes(record)) == told


@pytest.mark.parametrize("value", [-99.9, -999.9, -998, 997, 999999])
def test_numbers_that_stand_for_none(value):
    assert is_sentinel(value)
    assert is_sentinel(value * (1 + 9e-6))
    assert not is_sentinel(value * (1 + 2e-5))
    tells(True, f"'x' is {value:g} in 3 rows", columns=(numbers([*steps(1, 4, 20), *[value] * 3]),))


def test_the_place_of_a_row_of_sums_is_that_of_the_last_row():
    one, other = [*map(str, range(1, 11)), "55"], [*map(str, range(2, 12)), "65"]
    columns = (texts(one, "a", kind="numbers"), texts(other, "b", kind="numbers"))
    tells(True, "t.csv, line 12: its numbers are the sum", columns=columns)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([*steps(25, 60, 20), -9, -9, -8], ["-9", "-8"]),
        # Beyond a gap of 5: 4 to -1 and 3 to -1.
        ([*steps(4, 30, 20), -1, -1, -2, -2], ["-1", "-2"]),
        ([*steps(3, 30, 20), -1, -1, -2, -2], []),
        # One of another sign is of another end.
        (some((-1, 3), (0.5, 10), (20, 10), (999, 2), (998, 2)), ["999", "998"]),
    ],
)
def test_several_numbers_that_stand_for_none(values, told):
    for value in ("-9", "-8", "-1", "-2", "999", "998"):
        tells(value in told, f"'x' is {value} in ", columns=(numbers(values),))


VARIED = steps(10, 29, 40)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([*VARIED, *[30.0] * 5], "'x' is 30 in 5 rows (first sample 40), none is beyond"),
        ([*VARIED, *[30.0] * 4], ""),
        ([*VARIED, *[9.5] * 5], "'x' is 9.5 in 5 rows"),
        ([*VARIED, *[100.0] * 5], ""),  # as percents end
        ([*VARIED, *[99.0] * 5], ""),  # stands for none
        ([*VARIED[:9], *[30.0] * 12], ""),  # nine others
        ([*VARIED[:10], *[30.0] * 12], "'x' is 30 in 12"),
    ],
)
def test_numbers_that_were_cut_off(values, told):
    tells(bool(told), told or "none is beyond", columns=(numbers(values),))


@pytest.mark.parametrize(
    ("last", "told"),
    [
        ([310], "'x' is 310 in sample 40, and at most 100 elsewhere"),
        ([290], ""),
        ([310, 320], "'x' is 310 in sample 40"),
        ([310, 320, 330], ""),
        ([999], ""),
    ],
)
def test_a_number_far_beyond_others_that_end_near_their_middle(last, told):
    values = np.append(steps(20, 100, 40), last)
    tells(bool(told), told or "elsewhere: check its digits", columns=(numbers(values),))


@pytest.mark.parametrize(
    ("name", "middle", "ratio", "told"),
    [
        ("weight", 75, 2.2046, True),
        ("wealth", 75, 2.2046, False),
        ("weight", 75, 2.4, False),
        ("height", 170, 1 / 2.54, True),
        ("glucose", 100, 1 / 18.02, True),
        ("glucose", 100, 1 / 30, False),
    ],
)
def test_two_units_by_the_name_of_a_column(name, middle, ratio, told):
    values = np.append(steps(0.9, 1.1, 40), steps(0.92, 1.08, 8) * ratio) * middle
    tells(told, f"'{name}' is around ~ two units", columns=(numbers(values, name),))


def test_degrees_in_some_rows():
    celsius = steps(36, 39, 30)
    for name, told in (("temp", True), ("pulse", False)):
        values = np.append(celsius, 1.8 * celsius[::3] + 32)
        tells(told, "two units", columns=(numbers(values, name),))


def clients(parts, names="ABC"):
    """Return columns of clients with (n, F) numbers each, and their division."""
    values = np.concatenate(parts)
    owners = np.repeat(np.arange(len(parts)), [*map(len, parts)])
    named = {"client": {names[n]: len(part) for n, part in enumerate(parts)}}
    columns = tuple(numbers(column, f"c{n}") for n, column in enumerate(values.T))
    return {"columns": columns, "division": divided(len(values), clients=owners, names=named)}


def draw(count, *middles, width=1.0):
    return RNG.normal(0, width, (count, len(middles))) + middles


def test_columns_that_changed_places_at_a_client():
    parts = [draw(30, 10, 50), draw(30, 50, 10), draw(30, 11, 52)]
    tells(True, "'c0' and 'c1' seem to have changed places at the client 'B'", **clients(parts))
    # Of fourteen rows nothing is said, nor if the one is unlike the other.
    few = [draw(30, 10, 50), draw(14, 50, 10), draw(30, 11, 52)]
    tells(False, "changed places at the client", **clients(few))
    other = [draw(30, 10, 50), draw(30, 50, 30), draw(30, 11, 52)]
    tells(False, "changed places", **clients(other))
    tells(False, "changed places", **clients([draw(30, 10, 50) for _ in range(3)]))


def test_columns_that_changed_places_in_a_part_of_the_rows():
    values = np.concatenate([draw(60, 10, 50), draw(20, 50, 10)])
    columns = tuple(numbers(column, f"c{n}") for n, column in enumerate(values.T))
    tells(True, "changed places in rows 61 to 80", columns=columns)


def test_a_client_that_is_standardised_alone():
    far = [draw(40, 30, 70, width=9), draw(40, 0, 0), draw(40, 32, 66, width=9)]
    far[1] = (far[1] - far[1].mean(0)) / far[1].std(0)
    tells(True, "deviation of 1 at the client 'B'", **clients(far))
    tells(False, "deviation of 1", **clients([draw(40, 0, 0) for _ in range(3)]))


@pytest.mark.parametrize(("factor", "told"), [(30, True), (5, False), (0.03, True)])
def test_a_client_whose_numbers_spread_otherwise(factor, told):
    parts = [draw(40, 0, 0), factor * draw(40, 0, 0), draw(40, 0, 0)]
    tells(told, "client 'B' spread", **clients(parts))


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([[0, 1, 2], [1, 2, 3], [0, 1, 2]], True),
        ([[0, 1, 2], [1, 2], [0, 1, 2]], False),
        ([[0, 1, 2], [1, 2, 3], [0, 1]], False),
        ([[0, 1], [1, 2]], False),
    ],
)
def test_a_client_that_numbers_its_classes_otherwise(labels, told):
    owners = np.repeat(np.arange(len(labels)), [*map(len, labels)])
    names = {"client": dict.fromkeys("ABC"[: len(labels)], 3), "class": dict.fromkeys("0123", 3)}
    flat = np.concatenate(labels)
    tells(told, "client 'B' has the classes 1, 2, 3 ~ otherwise",
          division=divided(len(flat), labels=flat, clients=owners, names=names))  # fmt: skip


@pytest.mark.parametrize(("tests", "told"), [(41, True), (40, False)])
def test_more_tests_than_samples_to_train_on(tests, told):
    tells(told, "exchanged", division=divided(20 + tests, official=tests))


@pytest.mark.parametrize(("trained", "told"), [(6, True), (5, False)])
def test_a_class_without_an_official_test_sample(trained, told):
    """With as many to train on as tests, more than five are not lacking by chance."""
    labels = np.append(np.zeros(40, int), np.zeros(40, int))
    labels[:trained] = 1
    names = {"class": {"a": 80 - trained, "b": trained}}
    tells(told, "(b)", division=divided(80, labels=labels, names=names, official=40))


@pytest.mark.parametrize(("shift", "told"), [(5.5, True), (4.5, False)])
def test_official_tests_that_lie_elsewhere(shift, told):
    values = np.append(steps(-1, 1, 100) / 0.583, steps(-1, 1, 20) + shift)
    tells(told, "scale both alike", columns=(numbers(values),), division=divided(120, official=20))


def array(still, dtype="float32", **more):
    still = np.asarray(still, bool)
    return Array("x", dtype, (len(still), still.shape[1], 9), 0.0, 1.0, False, still=still,
                 rows=np.arange(len(still)), **more)  # fmt: skip


def test_channels_and_samples_in_which_nothing_varies():
    still = np.zeros((10, 3), bool)
    tells(False, "single number", arrays=(array(still),))
    still[:, 1] = True
    tells(True, "x[:, 1] has a single number in each of the 10", arrays=(array(still),))
    flat = np.zeros((10, 2), bool)
    flat[[3, 7]] = True
    tells(True, "2 of the 10 samples of x ~ sample 3", arrays=(array(flat),))
    flat[8] = True  # three of ten are their nature
    tells(False, "samples of x that were", arrays=(array(flat),))
    owners = np.repeat([0, 1], 5)
    at_one = np.zeros((10, 2), bool)
    at_one[5:, 0] = True
    found = divided(10, clients=owners, names={"client": {"A": 5, "B": 5}})
    tells(True, "x[:, 0] ~ client 'B'", arrays=(array(at_one),), division=found)
    at_one[0, 0] = True
    tells(False, "client 'B'", arrays=(array(at_one),), division=found)


@pytest.mark.parametrize(
    ("dtype", "least", "most", "told"),
    [
        ("int64", 0, 10_000_000, ""),
        ("int64", 0, 10_000_001, ".float()"),
        ("int64", -1, 5, "what does not count by 0"),
        ("int64", -2, 5, ".float()"),
        ("bool", 0, 1, "booleans"),
        ("float32", -2, 5, ""),
    ],
)
def test_integers_that_are_no_tokens(dtype, least, most, told):
    found = Array("x", dtype, (30, 4), least, most, True)
    tells(bool(told), told or "float()", arrays=(found,))


@pytest.mark.parametrize(
    ("rows", "expected"), [(1, 0), (2, 2), (24, 24)]
)  # fmt: skip
def test_values_that_are_held(rows, expected):
    assert held(np.repeat(RNG.normal(size=12), rows)) == expected
    assert held(np.repeat(RNG.normal(size=5), rows)) == 0
    assert held(np.repeat(RNG.normal(size=12), RNG.permutation(12) + 1)) == 0


def test_values_midway_and_sums_of_others():
    walk = moving(60)
    half = walk.copy()
    half[1:-1:2] = (half[:-2:2] + half[2::2]) / 2
    tells(True, "of 'c0' lie midway", windows=windows(half))
    tells(False, "lie midway", windows=windows(walk))
    parts = [RNG.normal(size=30) for _ in range(3)]
    for what, total in (("sum", sum(parts)), ("mean", sum(parts) / 3)):
        tells(True, f"of 'c3' is the {what} of those", windows=windows(*parts, total))
    tells(False, "of those of all other", windows=windows(*parts, 1.01 * sum(parts)))


@pytest.mark.parametrize(
    ("factor", "rows", "told"), [(33, 5, True), (30, 5, False), (33, 4, False), (1 / 33, 5, True)]
)
def test_a_unit_that_changes_in_the_course(factor, rows, told):
    """Of values from 9.99 to 10.01, so that the jump is where the factor begins."""
    course = 10 + 0.01 * np.sin(np.arange(60.0) ** 2)
    course[-rows:] *= factor
    tells(told, f"from its row {61 - rows} on ~ another unit", windows=windows(course))


@pytest.mark.parametrize(("years", "told"), [(21, True), (19, False)])
def test_a_client_in_another_century(years, told):
    values = np.append(steps(0, 30 * DAY, 20), steps(0, 30 * DAY, 20) - years * YEAR)
    times = Times("t", "dates", values, np.repeat(["A", "B"], 20))
    tells(told, "check the century", times=times)


def photos(count, side=32):
    """Return images that change slowly."""
    fields = RNG.integers(0, 256, (count, 3, 8, 8))
    return np.kron(fields, np.ones((1, 1, side // 8, side // 8))).astype(np.uint8)


def test_images_that_were_saved_again():
    pixels = photos(30)
    pixels ^= RNG.integers(0, 64, pixels.shape, np.uint8)
    assert near(pixels).tolist() == []
    pixels[20] = np.clip(pixels[3] * 1.05 + RNG.normal(0, 3, pixels[3].shape), 0, 255)
    pixels[25] = 255 - pixels[4]
    assert near(pixels).tolist() == [[3, 20], [4, 25]]
    assert near(pixels[:19]).tolist() == []
    # The same borders make no copies.
    bars = photos(30)
    bars ^= RNG.integers(0, 64, bars.shape, np.uint8)
    bars[::6, :, :8] = bars[::6, :, -8:] = 0
    assert near(bars).tolist() == []


def framed(inner, chequered=5, seed=0):
    """Return an image of 8x8 fields of 4x4 pixels: those of a frame are plain, others chequered."""
    drawn = np.random.default_rng(seed).choice([28, 228], 64).astype(float)
    drawn[: len(inner)] = inner
    image = np.kron(drawn.reshape(8, 8), np.ones((4, 4)))
    chequers = np.where(np.indices((32, 32)).sum(0) % 2, chequered, -chequered)
    image += chequers * np.kron(np.arange(64).reshape(8, 8) < len(inner), np.ones((4, 4)))
    return np.tile(image.round().astype(np.uint8), (3, 1, 1))


# Sixteen fields that are as often above as below 128, and as many again that are unlike them.
ONE, UNLIKE = np.tile([20.0, -20.0], 8), np.tile([20.0, 20.0, -20.0, -20.0], 4)


@pytest.mark.parametrize(
    ("fields", "alike", "chequered", "told"),
    [
        (16, 1.0, 5, True),
        (15, 1.0, 5, False),
        (16, 0.92, 5, True),  # their correlation
        (16, 0.88, 5, False),
        (16, 0.0, 5, False),
        (16, -1.0, 5, False),
        (16, 1.0, 4, False),  # a deviation of four is noise
    ],
)
def test_images_in_one_frame_are_copies_if_they_show_the_same(fields, alike, chequered, told):
    made = photos(30)
    inner = alike * ONE + np.sqrt(1 - alike**2) * UNLIKE
    made[3] = framed(128 + ONE[:fields], chequered)
    made[20] = framed(128 + inner[:fields], chequered)
    for change in (lambda one: one, lambda one: one[:, :, ::-1], lambda one: one[:, ::-1]):
        given = made.copy()
        given[20] = change(made[20])
        assert near(given).tolist() == [[3, 20]] * told


def test_images_without_colours():
    pixels = photos(3)
    pixels[1] = pixels[1, :1]
    assert grey(pixels).tolist() == [False, True, False]
    assert grey(pixels[:, :1]).tolist() == []
    labels = np.repeat([0, 1], 6)
    found = divided(12, labels=labels, names={"class": {"a": 6, "b": 6}})
    tells(True, "class 'a' are grey", division=found, grey=labels == 0)
    mixed = labels == 0
    mixed[0] = False
    tells(False, "are grey", division=found, grey=mixed)


def test_names_of_copies_and_of_trials():
    for twin, told in (("cat (2)", True), ("cat_new", True), ("cats2", False), ("dog (2)", False)):
        names = {"class": {"cat": 9, "owl": 9, twin: 9}}
        tells(told, "copied or a later state", division=divided(27, names=names))
    for count, told in ((4, True), (5, False)):
        names = {"client": {"Bonn": 10, "Calw": 10, "test": count}}
        tells(told, "'test' in", division=divided(20 + count, names=names))
