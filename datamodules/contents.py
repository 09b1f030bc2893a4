"""The content of samples: hashes by which copies are found, and how likely they are by chance."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from datamodules.targets import Ints
from pfl.core.state import nbytes, tensors
from pfl.core.types import Inputs

Kept = TypeVar("Kept", bound=np.generic)
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
# What a covered camera sees.
NOISE = 4


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


def flat(pixels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return an (n,) mask of the images, (n, C, H, W), that are nearly of a single colour."""

    def of(some: NDArray[np.uint8]) -> NDArray[np.bool_]:
        if some.shape[2] * some.shape[3] < 2:
            return np.zeros(len(some), bool)
        # The first row tells nearly all of them.
        same: NDArray[np.bool_] = (np.ptp(some[:, :, 0], axis=2) <= NOISE).all(1)
        same[same] = (np.ptp(some[same], axis=(2, 3)) <= NOISE).all(1)
        return same

    return in_parts(pixels, of)


def ended(pixels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return an (n,) mask of the images, (n, C, H, W), whose lower quarter is of a single colour.

    Those whose first row is of a single colour, too, have a border; those whose upper quarter is
    mostly of this one, or a third of what is above, have it as their ground.
    """

    def of(some: NDArray[np.uint8]) -> NDArray[np.bool_]:
        if some.shape[2] < 8 or some.shape[3] < 2:
            return np.zeros(len(some), bool)
        last = some[:, :, -1:, :1]
        same: NDArray[np.bool_] = (some[:, :, -1:] == last).all((1, 2, 3))
        lower = some[same][:, :, -(some.shape[2] // 4) :]
        same[same] = (lower == last[same]).all((1, 2, 3))
        same[same] = (some[same][:, :, :1] != some[same][:, :, :1, :1]).any((1, 2, 3))
        like = (some[same] == last[same]).all(1)
        # Of drawings, what is not of the ground as a whole has much of it.
        partly = np.where(like.all(2), np.nan, like.mean(2))
        upper = like[:, : some.shape[2] // 4].mean((1, 2))
        same[same] = (upper < 0.5) & (np.nanmean(partly, 1) < 1 / 3)
        return same

    return in_parts(pixels, of)


def in_parts(
    pixels: NDArray[np.uint8], of: Callable[[NDArray[np.uint8]], NDArray[Kept]]
) -> NDArray[Kept]:
    """Return what a function says of each image, (n, ...), some at a time."""
    part = max(1, _PART // max(1, pixels[:1].nbytes))
    starts = range(0, max(1, len(pixels)), part)
    return np.concatenate([of(pixels[one : one + part]) for one in starts])


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
