"""Both sides of each bound of doubts about leaks, lost values, forms, tokens, marks and masks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from datamodules import LoaderData
from datamodules.doubts import doubts
from datamodules.likeness import fits, marks, near
from datamodules.record import Array, Goal, Record
from tests.datamodules.corpus.leaks import Drawn
from tests.datamodules.test_bounds_of_doubts import divided, moving, numbers, steps, tells, texts
from tests.datamodules.test_filled_and_mirrored import at_clients

RNG = np.random.default_rng(0)


def of_clients(*counts):
    """Return a division of some clients."""
    clients = np.repeat(np.arange(len(counts)), counts)
    names = {"client": dict(zip("ABCDE", counts, strict=False))}
    return divided(len(clients), clients=clients, names=names)


# Leaks.


@pytest.mark.parametrize(
    ("answers", "own", "told"),
    [
        ("ab" * 12, "cdef" * 6, True),
        ("ab" * 12, "cdef" * 5 + "cdee", False),  # e stands with both
        # 18 bits: of eighteen values by halves, but for the shares of the values themselves.
        ("ab" * 11, "cdef" * 5 + "cd", True),
        ("ab" * 10, "cdef" * 5, False),
        ("ab" * 12, "cd" * 12, True),  # as many values as classes: another name
        ("a" * 24, "cdef" * 6, False),
        ("ab" * 12, "".join(map(chr, range(65, 89))), False),  # each value once
    ],
)
def test_words_that_tell_the_answer(answers, own, told):
    columns = (texts([*own]), texts([*answers], "y", "target"))
    tells(told, "or the answer is among the inputs", columns=columns)


@pytest.mark.parametrize(
    ("gone", "kept", "told"),
    [
        ([0] * 20, 40, True),
        ([0] * 19, 40, False),  # a row of the class has a value
        ([*[0] * 20, 1], 40, False),  # and one of the other class has none
        ([0] * 20, 39, False),  # those rows are not used
    ],
)
def test_what_is_missing_tells_the_answer(gone, kept, told):
    missing = np.zeros(40, bool)
    missing[[*range(0, 2 * gone.count(0), 2), *range(1, 2 * gone.count(1), 2)]] = True
    cells = ["" if lost else "uvw"[n % 3] for n, lost in enumerate(missing)]
    columns = (texts(cells), texts([*"ab" * 20], "y", "target"))
    tells(told, "what is missing tells the answer", columns=columns, division=divided(kept))


@pytest.mark.parametrize(
    ("gone", "told"),
    [
        ((10, 0, 0), True),
        ((9, 0, 0), False),  # a value is left
        ((10, 2, 2), True),
        ((10, 3, 3), False),
        ((10, 10, 0), False),  # most clients have none
    ],
)
def test_a_column_that_a_client_lacks(gone, told):
    cells = [*("" if n < lost else "uv"[n % 2] for lost in gone for n in range(10))]
    tells(told, "'x' is missing in all 10 rows of 'A'", columns=(texts(cells),),
          division=of_clients(10, 10, 10))  # fmt: skip


def test_a_few_rows_of_a_client_may_lack_a_column():
    cells = [*[""] * 9, *"uv" * 10]
    tells(False, "is missing in all", columns=(texts(cells),), division=of_clients(9, 10, 10))


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([np.arange(10), steps(0.5, 9.4, 10), steps(0.5, 9.4, 10)], True),
        ([np.arange(9), steps(0.5, 9.4, 10), steps(0.5, 9.4, 10)], False),
        ([[*range(9), 9.5], steps(0.5, 9.4, 10), steps(0.5, 9.4, 10)], False),
        ([np.arange(10), np.arange(10), steps(0.5, 9.4, 20)], False),  # two of them
        ([np.arange(10), [*range(3), *steps(3.5, 9.4, 7)], steps(0.5, 9.4, 10)], False),
        ([np.arange(10), [*range(2), *steps(3.5, 9.4, 8)], steps(0.5, 9.4, 10)], True),
    ],
)
def test_a_client_that_rounds(parts, told):
    tells(told, "'x' of 'A' has whole numbers alone", **at_clients(*parts))


@pytest.mark.parametrize(
    ("middle", "told"), [(-40.0, True), (-27.0, True), (-26.0, False), (-59.0, True), (-61, False)]
)
def test_a_client_of_the_other_sign_has_the_size_of_others(middle, told):
    """40 / 1.5 is 26.7, and 40 * 1.5 is 60."""
    usual = 40 + steps(-5, 5, 12)
    tells(told, "'x' of 'B' is below zero", **at_clients(usual, middle + steps(-5, 5, 12), usual))


@pytest.mark.parametrize(
    ("own", "at", "told"),
    [
        (10, 20, "changes from sample 20 on for 10 rows"),
        (9, 20, ""),
        (20, 20, "changes from sample 20 on, and"),  # up to the end
        ((3, 20), 0, ""),  # to and fro
    ],
)
def test_rows_of_the_other_sign(own, at, told):
    values = 40 + moving(40, 3) - 100
    places = np.arange(*own[::-1], 3) if isinstance(own, tuple) else np.arange(at, at + own)
    values[places % 40] *= -1
    tells(bool(told), told or "the sign of 'x'", columns=(numbers(values),))


def test_what_passes_zero_has_no_other_sign():
    tells(False, "the sign of 'x'", columns=(numbers(steps(-9, 9.1, 40)),))
    tells(False, "the sign of 'x'", columns=(numbers([*[-1] * 20, *[1] * 20]),))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([*steps(10, 20, 15), *steps(283.15, 293.15, 5)], "some in kelvin"),
        ([*steps(10, 20, 16), *steps(283.15, 293.15, 4)], ""),
        ([*steps(10, 20, 15), *steps(297.15, 307.15, 5)], "some in kelvin"),  # 14 off
        ([*steps(10, 20, 15), *steps(299.15, 309.15, 5)], ""),
        ([*steps(-70, 20, 15), *steps(203, 293, 5)], ""),
        ([*range(20, 80, 4), *range(1950, 1990, 8)], "some years, others ages"),
        ([*range(65, 125, 4), *range(1950, 1990, 8)], ""),  # of 121 years
        ([*range(20, 80, 4), *range(1870, 1910, 8)], ""),
        ([*steps(20, 80.5, 15), *range(1950, 1990, 8)], ""),
        ([*[20, 30, 40] * 5, *range(1950, 1990, 8)], ""),  # codes
    ],
)
def test_numbers_that_lie_a_way_apart(values, told):
    tells(bool(told), told or "others", columns=(numbers(values),))


@pytest.mark.parametrize(
    ("name", "told"),
    [("sample_weight", True), ("fnlwgt", True), ("Survey weights", True), ("weight", False),
     ("birth_weight", False)],
)  # fmt: skip
def test_the_weights_of_rows(name, told):
    column = numbers(steps(0.5, 2, 9), name)
    tells(told, f"{name!r} may say how much a row counts", columns=(column,))


@pytest.mark.parametrize(("count", "told"), [(20, True), (19, False)])
def test_many_fractions_are_no_codes(count, told):
    cells = [f"{n}/7" for n in range(1, count + 1)]
    tells(told, "two numbers in each cell", columns=(texts(cells),))
    tells(True, "two numbers in each cell", columns=(texts(["50°46'N", "51°2'N"]),))


@pytest.mark.parametrize(
    ("name", "told"), [("hot%20dog", True), ("50%", False), ("a%ffb", False), ("5%20", True)]
)
def test_names_that_were_written_for_an_address(name, told):
    tells(told, "is written for a web address", columns=(texts([name, "x"], use="target"),))


@pytest.mark.parametrize("exchanged", [True, False])
def test_flags_change_places_with_flags_alone(exchanged):
    """In rows 23 to 45 flags and numbers are by chance nearer to each other's middles elsewhere."""
    drawn = np.random.default_rng(22)
    flags, values = drawn.integers(0, 2, 90).astype(float), drawn.normal(-0.3, 1, 90)
    if exchanged:
        values += 3
        flags[22:45], values[22:45] = values[22:45], flags[22:45].copy()
    columns = (numbers(flags, "flag"), numbers(values, "value"))
    tells(exchanged, "'flag' and 'value' seem to have changed places in rows", columns=columns)


def test_a_frost_hides_no_client_in_fahrenheit():
    usual = steps(-1, 41, 15)
    given = at_clients(usual, 1.8 * usual + 32, usual)
    given["columns"] = (numbers(given["columns"][0].numbers, "temp"),)
    tells(True, "'temp' of 'B' is around 68, and around 20 ~ another unit", **given)


# Samples of clients.


def array(**more):
    usual = {"name": "x", "dtype": "float32", "shape": (30, 1, 9), "least": -1.0, "most": 2.0,
             "whole": False, "rows": np.arange(30), "lows": np.zeros(30)}  # fmt: skip
    return Array(**{**usual, **more})


@pytest.mark.parametrize(
    ("below", "shape", "told"),
    [
        ((0, 10, 0), (30, 1, 9), True),
        ((0, 9, 0), (30, 1, 9), False),  # nine of ten
        ((1, 10, 0), (30, 1, 9), False),
        ((0, 10, 0), (30, 9), False),
    ],
)
def test_numbers_below_zero_at_one_client(below, shape, told):
    lows = np.concatenate([np.where(np.arange(10) < count, -1.0, 0.0) for count in below])
    tells(told, "x goes below zero at the client 'B'", arrays=(array(lows=lows, shape=shape),),
          division=of_clients(10, 10, 10))  # fmt: skip


@pytest.mark.parametrize(
    ("own", "told"),
    [
        (np.arange(500, 600), True),
        (np.arange(96, 196), True),  # four of a hundred
        (np.arange(95, 195), False),
        (np.arange(500, 519), False),  # nineteen tokens
    ],
)
def test_tokens_that_hardly_another_has(own, told):
    """Others have the tokens from 1 to 99, and all pad with 0."""
    rows = np.concatenate([np.tile(np.arange(100), (20, 1)), np.tile(np.resize(own, 100), (10, 1))])
    given = array(dtype="int64", shape=(30, 100), tokens=rows, whole=True)
    tells(told, "x of the client 'C' has tokens", arrays=(given,), division=of_clients(10, 10, 10))


def test_clients_that_all_have_tokens_of_their_own():
    rows = np.repeat(np.arange(3), 10)[:, None] * 200 + np.arange(100)
    given = array(dtype="int64", shape=(30, 100), tokens=rows, whole=True)
    tells(False, "has tokens", arrays=(given,), division=of_clients(10, 10, 10))


@pytest.mark.parametrize(("turned", "told"), [(True, True), (False, False)])
def test_channels_that_changed_places_at_a_client(turned, told):
    means = RNG.normal([50, 100, 200], 5, (60, 3))
    if turned:
        means[20:40] = means[20:40, ::-1]
    given = of_clients(20, 20, 20)
    tells(told, "channels 0 and 2 of images seem to have changed places at the client 'B'",
          hues=means, division=given)  # fmt: skip
    floats = array(shape=(60, 3, 9), means=means / 255, rows=np.arange(60), lows=np.zeros(60))
    tells(told, "channels 0 and 2 of x seem", arrays=(floats,), division=given)
    assert not doubts(Record("rows", hues=means, division=divided(60)))


@pytest.mark.parametrize(
    ("forms", "told"),
    [
        ({"a": "one", "b": "one", "c": "two"}, True),
        ({"a": "one", "b": "two"}, False),
        ({"a": "one", "b": "one"}, False),
        ({}, False),
    ],
)
def test_samples_of_another_form(forms, told):
    tells(told, "samples of client c are two, and those of most clients one", forms=forms)


def parts(change=None):
    found = [TensorDataset(torch.randn(20, 5), torch.arange(20) % 3) for _ in range(3)]
    if change is not None:
        found[1] = TensorDataset(change(found[1].tensors[0]), found[1].tensors[1])
    return found


def lines(*args, **options):
    return " | ".join(LoaderData(*args, **options).reading.doubts)


def test_loaders_whose_clients_have_other_forms():
    assert "samples of client 1 are float32 (4,), int64 ()" in lines(parts(lambda x: x[:, :4]))
    assert "client 1 are float64 (5,)" in lines(parts(lambda x: x.double()))
    assert "client" not in lines(parts())


def test_loaders_whose_tests_draw_random_numbers():
    state = torch.get_rng_state()
    told = "test samples of client 0 draw random numbers"
    assert told in lines(parts(), test=[Drawn(one) for one in parts()])
    assert told not in lines(parts(), test=parts())
    # What is set aside for testing has the transforms of training.
    assert "draw random" not in lines([Drawn(one) for one in parts()])
    torch.set_rng_state(state)
    lines([Drawn(one) for one in parts()])
    torch.set_rng_state(state)
    first = torch.randn(3)
    torch.set_rng_state(state)
    data = LoaderData([Drawn(one) for one in parts()])
    torch.set_rng_state(state)
    data.setup()
    assert torch.equal(torch.randn(3), first), "looking at samples moves no stream"


@pytest.mark.parametrize(("kind", "told"), [("int8", True), ("int16", False)])
def test_images_of_signed_bytes(kind, told):
    given = array(dtype=kind, shape=(30, 3, 8, 8), least=-128, most=127, whole=True)
    tells(told, "x has int8 from -128 to 127", arrays=(given,))


# Images and masks.


def photos(count=40, side=32):
    """Return images, (n, 3, H, W), that change slowly."""
    fields = RNG.integers(0, 256, (count, 8, 8, 3)).astype(np.uint8)
    drawn = [Image.fromarray(one).resize((side, side), Image.Resampling.BICUBIC) for one in fields]
    return np.stack([np.asarray(one) for one in drawn]).transpose(0, 3, 1, 2)


def smooth(seed=4):
    """Return images of blurred fields."""
    fields = np.random.default_rng(seed).integers(0, 256, (60, 5, 5, 3), np.uint8)
    made = [Image.fromarray(one).resize((32, 32), Image.Resampling.BICUBIC) for one in fields]
    return np.stack([np.asarray(one) for one in made]).transpose(0, 3, 1, 2).copy()


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one[:, :, ::-1],
        lambda one: one[:, ::-1],
        lambda one: one.swapaxes(1, 2),
        lambda one: one.swapaxes(1, 2)[:, ::-1, ::-1],
        lambda one: np.tile((one * [[[0.299]], [[0.587]], [[0.114]]]).sum(0), (3, 1, 1)),
        lambda one: 255 - one,
        lambda one: one[:, 2:-2, 2:-2],
    ],
)
def test_images_that_are_others_in_another_way(change):
    given = photos()
    changed = change(given[3].astype(float))
    places = np.arange(32) * changed.shape[1] // 32
    changed, noise = changed[:, places][:, :, places], RNG.normal(0, 3, (3, 32, 32))
    given[30] = np.clip(changed + noise, 0, 255)
    assert near(given).tolist() == [[3, 30]]


@pytest.mark.parametrize("degrees", [-9, -7.5, -4, 2, 5, 9])
def test_images_that_are_others_a_little_rotated(degrees):
    given = smooth()
    turned = Image.fromarray(given[3].transpose(1, 2, 0)).rotate(degrees, Image.Resampling.BILINEAR)
    given[30] = np.asarray(turned).transpose(2, 0, 1)
    assert near(given).tolist() == [[3, 30]]
    given[30] = given[3]
    given[30, :, 2:-2, 2:-2] = smooth()[30, :, 2:-2, 2:-2]
    assert not near(given).size


@pytest.mark.parametrize("by", [(0, 1), (1, 0), (-1, 1), (1, 1), (0, -1)])
def test_images_that_are_others_a_pixel_away(by):
    given = smooth()
    given[30] = np.roll(given[3], by, (1, 2))
    assert near(given).tolist() == [[3, 30]]


@pytest.mark.parametrize(("rows", "told"), [(16, True), (20, False)])
def test_images_on_which_something_is_written(rows, told):
    """What is changed is at most a half, at any of the four sides."""
    for side in range(4):
        given = smooth()
        written = np.rot90(given[3], side, (1, 2)).copy()
        written[:, :rows] = smooth(seed=5)[0, :, :rows]
        given[30] = np.rot90(written, -side, (1, 2))
        assert near(given).tolist() == [[3, 30]] * told


def test_images_without_copies():
    assert not near(photos()).size


@pytest.mark.parametrize(("like", "count", "told"), [(0, 20, True), (2, 20, False), (0, 9, False)])
def test_a_mark_of_a_class(like, count, told):
    """A stamp of nine pixels on all images of a class, and on few others or none."""
    pixels = RNG.integers(0, 256, (count + 30, 3, 16, 16)).astype(np.uint8)
    labels = np.repeat([0, 1], [count, 30])
    pixels[: count + like, :, 4:7, 9:12] = RNG.integers(250, 254, (count + like, 3, 3, 3))
    found = marks(pixels, labels)
    assert (found == {0: (9, 4, 9)}) == told, found
    names = {"class": {"cat": count, "dog": 30}}
    tells(told, "9 pixels (first in row 4, column 9) ~ 'cat'", marks=found,
          division=divided(count + 30, labels=labels, names=names))  # fmt: skip


@pytest.mark.parametrize(("count", "told"), [(3, False), (4, True)])
def test_a_few_pixels_are_no_mark(count, told):
    pixels = RNG.integers(0, 256, (60, 3, 16, 16)).astype(np.uint8)
    pixels[:20, :, 4, 9 : 9 + count] = 250
    assert bool(marks(pixels, np.repeat([0, 1], [20, 40]))) == told


def test_a_ground_that_all_have_is_no_mark():
    pixels = RNG.integers(0, 256, (60, 3, 16, 16)).astype(np.uint8)
    pixels[:20, :, :4] = 0
    pixels[20:50, :, :4] = 0
    assert not marks(pixels, np.repeat([0, 1], [20, 40]))


def discs(count=12):
    """Return images with a bright disc each, in their upper left, and its masks."""
    rows, columns = np.mgrid[:32, :32]
    places = RNG.integers([5, 5], [12, 9], (count, 2))
    y = np.stack([(rows - a) ** 2 + 2 * (columns - b) ** 2 < 20 for a, b in places])
    x = RNG.normal(60, 5, (count, 3, 32, 32)) + 100 * y[:, None]
    return torch.from_numpy(x.clip(0, 255).astype(np.uint8)), torch.from_numpy(y.astype(np.uint8))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda mask: mask.flip(1), "1 of 12 masks do not fit their images, but do once mirrored"),
        (lambda mask: mask.flip(0), "do once turned upside down"),
        (lambda mask: mask, ""),
    ],
)
def test_a_mask_of_another_direction(change, told):
    x, y = discs()
    y[4] = change(y[4])
    goal = Goal(y.numpy(), False, True, fits=fits(x, y))
    tells(bool(told), told or "do not fit", goal=goal)


@pytest.mark.parametrize(
    ("own", "other", "rest", "told"),
    [
        (0.07, 0.31, 0.3, True),
        (0.07, 0.29, 0.3, False),
        (0.1, 0.39, 0.3, False),  # more than a quarter
        (0.07, 0.31, 0.24, False),  # masks say nothing elsewhere
    ],
)
def test_how_far_a_mask_fits(own, other, rest, told):
    seen = np.full((10, 6), rest)
    seen[3] = own
    seen[3, 2] = other
    goal = Goal(np.tile([[0, 1], [1, 0]], (10, 1, 1)), False, True, fits=seen)
    tells(told, "1 of 10 masks do not fit their images, but do once turned", goal=goal)


def test_all_masks_are_those_of_the_samples_after():
    x, y = discs(30)
    y = torch.roll(y.flip(2) * 0 + y, -1, 0)
    seen = np.tile([0.02, 0.03, 0.03, 0.03, 0.03, 0.9], (30, 1))
    tells(True, "30 of 30 masks ~ those of the samples after do",
          goal=Goal(y.numpy(), False, True, fits=seen))  # fmt: skip
    assert not fits(x[:, :, 0], y).size
    assert not fits(x, y[:, :4]).size
