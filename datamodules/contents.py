"""The content of samples: hashes by which copies are found, and how likely they are by chance."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from datamodules.targets import Floats, Ints
from pfl.core.state import nbytes, tensors
from pfl.core.types import Inputs

# Larger inputs, which lie in files, are not read for this.
LIMIT = 4 * 2**30
# Bytes that are hashed together.
_PART = 4 * 2**20
# So many different numbers in one sample make it unlike others.
_VARIED = 8
# A value is equal by chance less often than one pair in so many (in bits).
_MARGIN = 10
# So many copies are less likely by chance than one.
_SEVERAL = 3
_COLUMNS = 64
# Between so many images, some are near by chance; the sides of an image are cut into so many.
_FEW_NEAR, _MOST_NEAR, _FIELDS = 20, 4000, 8
_ROWS = 1000
# Masks are compared with images of about so many rows and columns.
_SIDE = 64
# What a covered camera sees.
_NOISE = 4
# The order of the fields of an image; the share of red, green and blue in its shades.
_AS_IT_IS = np.arange(_FIELDS**2)
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
# What is cropped at each side, as a share of it.
_MARGINS = (0.032, 0.063, 0.1)
# In so many images nothing is alike by chance.
_SAME = 10


def hashes(values: NDArray[np.generic]) -> NDArray[np.uint64]:
    """Return an (n,) hash of each row of an array; equal rows have equal ones.

    A random linear function of the mixed words of a row, modulo 2^64: two different rows are taken
    for equal once in about 2^63 pairs.
    """
    count = len(values)
    rows = np.ascontiguousarray(values).reshape(count, -1)
    width = rows.shape[1] * rows.itemsize
    words = -(-width // 8)
    weights = _weights(words)
    found = np.empty(count, np.uint64)
    part = max(1, _PART // max(1, width))
    for start in range(0, count, part):
        content = rows[start : start + part].view(np.uint8).reshape(-1, width)
        if width % 8:
            content = np.pad(content, ((0, 0), (0, 8 * words - width)))
        mixed = np.ascontiguousarray(content).view(np.uint64)
        # Without this, flipping two signs would change nothing.
        mixed = mixed ^ (mixed >> np.uint64(31))
        found[start : start + part] = mixed @ weights
    return found


@lru_cache(8)
def _weights(words: int) -> NDArray[np.uint64]:
    """Return odd weights, the same in each process."""
    drawn = np.random.default_rng(0).integers(0, 2**63, words, np.uint64)
    weights: NDArray[np.uint64] = drawn * np.uint64(2) + np.uint64(1)
    return weights


def turned(pixels: NDArray[np.uint8], kept: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return an (n,) hash of each image, (n, C, H, W), and of its mirrored and turned copies.

    Args:
        pixels: The images.
        kept: Their hashes, which are those of images that are like no other.
    """
    found = kept.copy()
    # Images that differ in the sum of a channel are no copies.
    sums = hashes(pixels.sum((2, 3), dtype=np.int64))
    _, same, counts = np.unique(sums, return_inverse=True, return_counts=True)
    if len(some := np.flatnonzero(counts[same] > 1)):
        views = [pixels[some], pixels[some, :, ::-1]]
        views += [view[..., ::-1] for view in views]
        if pixels.shape[2] == pixels.shape[3]:
            views += [view.swapaxes(2, 3) for view in views]
        found[some] = np.min([hashes(view) for view in views], axis=0)
    return found


def near(pixels: NDArray[np.uint8]) -> Ints:
    """Return (k, 2) pairs of images, (n, C, H, W), of which one seems to be the other saved again.

    Their coarse shades in 8x8 fields, as they are or mirrored, turned or cropped, are far nearer to
    each other than those of the nearest images usually are. Of more than a few thousand images
    nothing is said, as some are alike by chance.
    """
    count, channels, height, width = pixels.shape
    if not _FEW_NEAR <= count <= _MOST_NEAR or min(height, width) < _FIELDS:
        return np.empty((0, 2), np.int64)
    raw = _coarse(pixels, _shades)
    shades = raw - raw.mean(1, keepdims=True)
    strong = np.linalg.norm(shades, axis=1) > _FIELDS
    # Others are compared turned, as negatives, cropped, and by the shades that grey copies have.
    every = [*((turn, raw[:, turn]) for turn in _turns()), (_AS_IT_IS, -raw)]
    if channels == len(_LUMA):
        every.append((_AS_IT_IS, _coarse(pixels, _luminance)))
    for y, x in sorted({(int(part * height), int(part * width)) for part in _MARGINS}):
        if min(x, y) > 0:
            every.append((_AS_IT_IS, _coarse(pixels[:, :, y:-y, x:-x], _shades)))
    # What all have in common, such as a border, tells no two apart; negatives lack it.
    common = shades.mean(0)
    views = [_to_length_one(view - view.mean(1, keepdims=True) - common) for _, view in every]
    usual = 1.0
    other, apart, how = np.empty(count, np.int64), np.full(count, 2.0), np.zeros(count, np.int64)
    for number, view in enumerate(views):
        for start in range(0, count, _ROWS):
            rows = np.arange(start, min(start + _ROWS, count))
            alike = views[0][rows] @ view.T
            alike[np.arange(len(rows)), rows] = -1
            places = alike.argmax(1)
            best = 1 - alike[np.arange(len(rows)), places]
            nearer = best < apart[rows]
            apart[rows[nearer]], how[rows[nearer]] = best[nearer], number
            other[rows[nearer]] = places[nearer]
        # As far as images usually are from the nearest one.
        usual = float(np.median(apart)) if number == 0 else usual
    close = strong & (apart < min(0.03, 0.05 * usual))
    pairs = set()
    for one, two in zip(np.flatnonzero(close).tolist(), other[close].tolist(), strict=True):
        turn, view = every[how[one]]
        if _agree(pixels[[one, two]], raw[[one, two]], turn, view[two]):
            pairs.add((min(one, two), max(one, two)))
    return np.array(sorted(pairs), np.int64).reshape(-1, 2)


def _turns() -> list[Ints]:
    """Return the orders of the fields of an image as it is, and mirrored and turned."""
    places = _AS_IT_IS.reshape(_FIELDS, _FIELDS)
    sides = [places, places.T]
    return [
        view.ravel() for one in sides for view in (one, one[::-1], one[:, ::-1], one[::-1, ::-1])
    ]


def _coarse(
    pixels: NDArray[np.uint8], of: Callable[[NDArray[np.uint8]], NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Return the (n, 64) means of the fields of images, (n, C, H, W), as ``of`` shades them."""
    part = max(1, _PART // max(1, pixels[:1].nbytes))
    starts = range(0, len(pixels), part)
    return np.concatenate([_fields(of(pixels[one : one + part])) for one in starts])


def _shades(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the (n, H, W) means over the channels of images, (n, C, H, W)."""
    found: NDArray[np.float32] = pixels.mean(1, dtype=np.float32)
    return found


def _luminance(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the (n, H, W) shades of grey copies of images, (n, 3, H, W)."""
    return np.stack([np.tensordot(_LUMA, image, 1) for image in pixels])


def _fields(shades: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the (n, 64) means of 8x8 fields of images, (n, H, W)."""
    cuts = [np.linspace(0, side, _FIELDS + 1).astype(int) for side in shades.shape[1:]]
    sums = np.add.reduceat(np.add.reduceat(shades, cuts[0][:-1], 1), cuts[1][:-1], 2)
    found: NDArray[np.float32] = (sums / np.outer(*map(np.diff, cuts))).reshape(len(shades), -1)
    return found


def _agree(
    pixels: NDArray[np.uint8], fields: NDArray[np.float32], turn: Ints, seen: NDArray[np.float32]
) -> bool:
    """Return ``True`` if two images agree where they show something, and not in borders alone.

    Args:
        pixels: (2, C, H, W).
        fields: (2, 64) their shades in fields.
        turn: (64,) the order in which the fields of the second are compared.
        seen: (64,) its shades as they are compared.
    """
    squares = _fields(_shades(pixels) ** 2)
    varied = squares - fields**2 > _NOISE**2
    shown = varied[0] & varied[1][turn]
    if shown.sum() < 2 * _FIELDS:
        return False
    return bool(abs(np.corrcoef(fields[0][shown], seen[shown])[0, 1]) > 0.9)


def _to_length_one(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    found: NDArray[np.float32] = rows / np.maximum(lengths, 1e-6)
    return found


def grey(pixels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return an (n,) mask of the images, (n, 3, H, W), without colours."""

    def of(some: NDArray[np.uint8]) -> NDArray[np.bool_]:
        # The first row tells nearly all of them.
        same: NDArray[np.bool_] = (some[:, :, :1] == some[:, :1, :1]).all((1, 2, 3))
        same[same] = (some[same] == some[same][:, :1]).all((1, 2, 3))
        return same

    return _in_parts(pixels, of) if pixels.shape[1] == 3 else np.zeros(0, bool)


def flat(pixels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return an (n,) mask of the images, (n, C, H, W), that are nearly of a single colour."""

    def of(some: NDArray[np.uint8]) -> NDArray[np.bool_]:
        if some[0, 0].size < 2:
            return np.zeros(len(some), bool)
        # The first row tells nearly all of them.
        same: NDArray[np.bool_] = (np.ptp(some[:, :, 0], axis=2) <= _NOISE).all(1)
        same[same] = (np.ptp(some[same], axis=(2, 3)) <= _NOISE).all(1)
        return same

    return _in_parts(pixels, of)


def ended(pixels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return an (n,) mask of the images, (n, C, H, W), whose lower quarter is of a single colour.

    Those whose first row is of a single colour, too, have a border.
    """

    def of(some: NDArray[np.uint8]) -> NDArray[np.bool_]:
        if some.shape[2] < 8 or some.shape[3] < 2:
            return np.zeros(len(some), bool)
        last = some[:, :, -1:, :1]
        same: NDArray[np.bool_] = (some[:, :, -1:] == last).all((1, 2, 3))
        lower = some[same][:, :, -(some.shape[2] // 4) :]
        same[same] = (lower == last[same]).all((1, 2, 3))
        same[same] = (some[same][:, :, :1] != some[same][:, :, :1, :1]).any((1, 2, 3))
        return same

    return _in_parts(pixels, of)


def means(pixels: NDArray[np.uint8]) -> Floats:
    """Return the (n, C) means of the channels of images, (n, C, H, W)."""
    found: Floats = pixels.mean((2, 3), dtype=np.float64)
    return found


def marks(pixels: NDArray[np.uint8], labels: Ints) -> dict[int, tuple[int, int, int]]:
    """Return the classes whose images have a mark, such as a border, that hardly another has.

    Returns:
        By class: the number of pixels that are alike in all its images, and the first one's place.
    """
    found: dict[int, tuple[int, int, int]] = {}
    for label in np.unique(labels):
        own = labels == label
        if min(own.sum(), (~own).sum()) < _SAME:
            continue
        low, high = pixels[own].min(0).astype(int), pixels[own].max(0).astype(int)
        alike = np.argwhere((high - low <= _NOISE).all(0))
        if not len(alike):
            continue
        # What all images have there, such as a dark ground, is no mark of this one.
        there = pixels[~own][:, :, alike[:, 0], alike[:, 1]].astype(int)
        like = np.abs(there - low[:, alike[:, 0], alike[:, 1]]) <= 2 * _NOISE
        rare = like.all(1).mean(0) < 0.05
        if rare.sum() >= _NOISE:
            row, column = alike[rare][0].tolist()
            found[int(label)] = (int(rare.sum()), row, column)
    return found


def fits(x: Tensor, y: Tensor) -> Floats:
    """Return (n, 6) how far masks tell the shades of images: :class:`datamodules.record.Goal`.

    The share of the variance of an image's shades that is between the classes of a mask. Others
    than images of one size with masks have none.
    """
    if x.dim() != 4 or y.dim() != 3 or x.shape[2:] != y.shape[1:] or nbytes(x) > LIMIT:
        return np.empty((0, 6))
    found = np.zeros((len(y), 6))
    square, step = y.shape[1] == y.shape[2], max(1, min(y.shape[1:]) // _SIDE)
    masks = y[:, ::step, ::step].numpy()
    for row in range(0, len(y), max(1, len(y) // _ROWS)):
        shades = x[row, :, ::step, ::step].float().mean(0).numpy()
        own, last = masks[row], len(masks) - 1
        views = [own, own[:, ::-1], own[::-1], own.T if square else own]
        views += [masks[max(0, row - 1)], masks[min(row + 1, last)]]
        found[row] = [_told(shades, view) for view in views]
    return found


def _told(shades: NDArray[np.float32], mask: NDArray[np.generic]) -> float:
    """Return the share of the variance of shades that is between the classes of a mask."""
    _, codes = np.unique(mask, return_inverse=True)
    counts = np.bincount(codes.ravel())
    middles = np.bincount(codes.ravel(), shades.ravel()) / counts
    whole = float(shades.var())
    between = float((counts * (middles - shades.mean()) ** 2).sum()) / shades.size
    return between / whole if whole > 0 else 0.0


def _in_parts(
    pixels: NDArray[np.uint8], of: Callable[[NDArray[np.uint8]], NDArray[np.bool_]]
) -> NDArray[np.bool_]:
    """Return what a function says of each image, some at a time."""
    part = max(1, _PART // max(1, pixels[:1].nbytes))
    starts = range(0, len(pixels), part)
    return np.concatenate([of(pixels[one : one + part]) for one in starts] or [np.zeros(0, bool)])


def digests(inputs: Inputs) -> NDArray[np.uint64]:
    """Return an (n,) hash of the content of each sample; empty if that would take too long."""
    values = tensors(inputs)
    if sum(map(nbytes, values)) > LIMIT:
        return np.empty(0, np.uint64)
    found = np.zeros(len(values[0]), np.uint64)
    for value in values:
        found = found * np.uint64(3) + hashes(value.numpy())
    return found


class Rich:
    """Whether samples of equal content are copies, and not equal by chance.

    Args:
        inputs: (n, ...) inputs of the samples.
        kept: (n,) hashes of their content.
    """

    def __init__(self, inputs: Inputs, kept: NDArray[np.uint64]) -> None:
        self._values = tensors(inputs)
        self._first = np.unique(kept, return_index=True)[1]
        self._known: dict[int, float] = {}

    def __call__(self, rows: Ints, more: float = 0.0) -> bool:
        """Return ``True`` if samples with these rows would hardly be equal by chance.

        ``more`` are the bits of what they have in common besides.
        """
        return any(self._of(place, value, rows, more) for place, value in enumerate(self._values))

    def _of(self, place: int, value: Tensor, rows: Ints, more: float) -> bool:
        if value.dim() > 2 or (value.dim() == 2 and not value.is_floating_point()):
            return len(np.unique(value[int(rows[0])].numpy())) >= _VARIED
        if place not in self._known:
            self._known[place] = self._continuous(value.numpy())
        return self._known[place] + more >= 0

    def _continuous(self, values: NDArray[np.generic]) -> float:
        """Return the bits by which columns hold more than rows need in order not to meet.

        One of them has to be different in nearly all rows: numbers that follow from each other
        would count several times.
        """
        distinct = values.reshape(len(values), -1)[self._first][:, :_COLUMNS].astype(np.float64)
        count, copies = len(distinct), len(values) - len(self._first)
        bits, fine = 0.0, False
        # Of single and of half precision; others keep seven decimals.
        error = {"float32": 2.0**-23, "float16": 2.0**-10}.get(str(values.dtype), 0.0)
        for column in distinct.T:
            counts = np.unique(column, return_counts=True)[1]
            if len(counts) >= 0.9 * count:
                bits, fine = bits + _resolution(column, error), True
            else:
                bits += collision_bits(counts)
        margin = _MARGIN if copies < _SEVERAL else 0.7 * _MARGIN
        if not fine or count < 10:
            return -np.inf
        return bits - 2 * float(np.log2(count)) - margin


def collision_bits(counts: NDArray[np.integer]) -> float:
    """Return the bits of a name: minus the logarithm of the chance that two samples share it."""
    return -float(np.log2(np.square(counts / counts.sum()).sum()))


def _resolution(column: NDArray[np.float64], error: float) -> float:
    """Return the bits of a column's values: its range in units of its last decimal.

    Args:
        column: (n,) numbers.
        error: By which share of it a number was rounded to its type.
    """
    # Of a normal distribution as of a uniform one.
    span = 3.5 * float(column.std())
    for decimals in range(7):
        scaled = column * 10**decimals
        rounded = 1e-4 + error * float(np.abs(scaled).max())
        if np.allclose(scaled, np.round(scaled), rtol=0, atol=rounded):
            return float(np.log2(span * 10**decimals + 1))
    return 32.0
