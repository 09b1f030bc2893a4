"""What images look like, measured for doubts: copies of others, marks, colours, fits of masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from datamodules.contents import LIMIT, NOISE, in_parts
from datamodules.targets import Floats, Ints
from pfl.core.state import nbytes

# Between so many images, some are near by chance; the sides of an image are cut into so many.
_FEW_NEAR, _MOST_NEAR, _FIELDS = 20, 4000, 8
_ROWS = 1000
# Masks are compared with images of about so many rows and columns.
_SIDE = 64
# The order of the fields of an image; the share of red, green and blue in its shades.
_AS_IT_IS = np.arange(_FIELDS**2)
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
# What is cropped at each side, as a share of it.
_MARGINS = (0.032, 0.063, 0.1)
# By how many degrees a copy may be rotated; what is between two of them is near enough.
_ANGLES = (-9, -6, -3, 3, 6, 9)
# In so many images nothing is alike by chance.
_SAME = 10


def near(pixels: NDArray[np.uint8]) -> Ints:
    """Return (k, 2) pairs of images, (n, C, H, W), of which one seems to be the other saved again.

    Their coarse shades in 8x8 fields, as they are or mirrored, turned or cropped, are far nearer to
    each other than those of the nearest images usually are; or those of a half of them, beside
    which something may be written. Of more than a few thousand images nothing is said, as some are
    alike by chance.
    """
    count, channels, height, width = pixels.shape
    if not _FEW_NEAR <= count <= _MOST_NEAR or min(height, width) < _FIELDS:
        return np.empty((0, 2), np.int64)
    raw = _coarse(pixels, _shades)
    # Others are compared turned, as negatives, cropped, and by the shades that grey copies have.
    views = [*((turn, raw[:, turn]) for turn in _turns()), (_AS_IT_IS, -raw)]
    if channels == len(_LUMA):
        views.append((_AS_IT_IS, _coarse(pixels, _luminance)))
    for y, x in sorted({(int(part * height), int(part * width)) for part in _MARGINS}):
        if min(x, y) > 0:
            views.append((_AS_IT_IS, _coarse(pixels[:, :, y:-y, x:-x], _shades)))
    cells = _FIELDS * min(4, min(height, width) // _FIELDS)
    fine = _coarse(pixels, _shades, cells)
    moved = [views[0], *((_AS_IT_IS, fine @ move) for move in _moves(cells))]
    # What is at the edges may be lost.
    places, inner = _AS_IT_IS.reshape(_FIELDS, _FIELDS), slice(1, -1)
    halves = (half for side in (places, places.T) for half in np.split(side, 2))
    rounds = [
        (places, views),
        (places[inner, inner], moved),
        *((one, views[:1]) for one in halves),
    ]
    pairs = set()
    for part, compared in rounds:
        for one, two, how in _close([view[:, part.ravel()] for _, view in compared]):
            turn, view = compared[how]
            if _agree(pixels[[one, two]], raw[[one, two]], turn, view[two], part.ravel()):
                pairs.add((min(one, two), max(one, two)))
    return np.array(sorted(pairs), np.int64).reshape(-1, 2)


def _close(views: list[NDArray[np.float32]]) -> Iterator[tuple[int, int, int]]:
    """Yield pairs of images that are far nearer than images usually are, and how.

    Args:
        views: (n, F) shades of all images in some fields: first as they are.
    """
    count = len(views[0])
    shades = views[0] - views[0].mean(1, keepdims=True)
    strong = np.linalg.norm(shades, axis=1) > np.sqrt(shades.shape[1])
    # What all have in common, such as a border, tells no two apart; negatives lack it.
    common = shades.mean(0)
    units = [_to_length_one(view - view.mean(1, keepdims=True) - common) for view in views]
    usual = 1.0
    other, apart, how = np.empty(count, np.int64), np.full(count, 2.0), np.zeros(count, np.int64)
    for number, unit in enumerate(units):
        for start in range(0, count, _ROWS):
            rows = np.arange(start, min(start + _ROWS, count))
            alike = units[0][rows] @ unit.T
            alike[np.arange(len(rows)), rows] = -1
            places = alike.argmax(1)
            best = 1 - alike[np.arange(len(rows)), places]
            nearer = best < apart[rows]
            apart[rows[nearer]], how[rows[nearer]] = best[nearer], number
            other[rows[nearer]] = places[nearer]
        # As far as images usually are from the nearest one.
        usual = float(np.median(apart)) if number == 0 else usual
    close = np.flatnonzero(strong & (apart < min(0.03, 0.05 * usual)))
    yield from zip(close.tolist(), other[close].tolist(), how[close].tolist(), strict=True)


def _moves(cells: int) -> Iterator[NDArray[np.float32]]:
    """Yield (cells**2, 64) matrices from a fine grid to the fields of an image that moved a little.

    It is rotated by a few degrees, or shifted by a cell.
    """
    middle = (cells - 1) / 2
    down, right = np.indices((cells, cells)).reshape(2, -1) - middle
    fields = np.kron(_AS_IT_IS.reshape(_FIELDS, _FIELDS), np.ones((cells // _FIELDS,) * 2, int))
    turns = [(np.cos(one), np.sin(one), 0, 0) for one in np.radians(_ANGLES)]
    shifts = [(1.0, 0.0, y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if y or x]
    for cos, sin, y, x in (*turns, *shifts):
        moved = cos * down - sin * right + y, sin * down + cos * right + x
        row, column = (np.clip(np.rint(of + middle), 0, cells - 1).astype(int) for of in moved)
        found = np.zeros((cells**2, _FIELDS**2), np.float32)
        np.add.at(found, (row * cells + column, fields.ravel()), (_FIELDS / cells) ** 2)
        yield found


def _turns() -> list[Ints]:
    """Return the orders of the fields of an image as it is, and mirrored and turned."""
    places = _AS_IT_IS.reshape(_FIELDS, _FIELDS)
    sides = [places, places.T]
    return [
        view.ravel() for one in sides for view in (one, one[::-1], one[:, ::-1], one[::-1, ::-1])
    ]


def _coarse(
    pixels: NDArray[np.uint8],
    of: Callable[[NDArray[np.uint8]], NDArray[np.float32]],
    cells: int = _FIELDS,
) -> NDArray[np.float32]:
    """Return the (n, cells**2) means of fields of images, (n, C, H, W), as ``of`` shades them."""
    return in_parts(pixels, lambda some: _fields(of(some), cells))


def _shades(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the (n, H, W) means over the channels of images, (n, C, H, W)."""
    found: NDArray[np.float32] = pixels.mean(1, dtype=np.float32)
    return found


def _luminance(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the (n, H, W) shades of grey copies of images, (n, 3, H, W)."""
    return np.stack([np.tensordot(_LUMA, image, 1) for image in pixels])


def _fields(shades: NDArray[np.float32], cells: int = _FIELDS) -> NDArray[np.float32]:
    """Return the (n, cells**2) means of the fields of images, (n, H, W)."""
    cuts = [np.linspace(0, side, cells + 1).astype(int) for side in shades.shape[1:]]
    sums = np.add.reduceat(np.add.reduceat(shades, cuts[0][:-1], 1), cuts[1][:-1], 2)
    found: NDArray[np.float32] = (sums / np.outer(*map(np.diff, cuts))).reshape(len(shades), -1)
    return found


def _agree(
    pixels: NDArray[np.uint8],
    fields: NDArray[np.float32],
    turn: Ints,
    seen: NDArray[np.float32],
    part: Ints,
) -> bool:
    """Return ``True`` if two images agree where they show something, and not in borders alone.

    Args:
        pixels: (2, C, H, W).
        fields: (2, 64) their shades in fields.
        turn: (64,) the order in which the fields of the second are compared.
        seen: (64,) its shades as they are compared.
        part: The fields that are compared.
    """
    squares = _fields(_shades(pixels) ** 2)
    varied = squares - fields**2 > NOISE**2
    shown = part[(varied[0] & varied[1][turn])[part]]
    if len(shown) < 2 * _FIELDS:
        return False
    return bool(np.corrcoef(fields[0][shown], seen[shown])[0, 1] > 0.9)


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

    return in_parts(pixels, of) if pixels.shape[1] == 3 else np.zeros(0, bool)


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
        alike = np.argwhere((high - low <= NOISE).all(0))
        if not len(alike):
            continue
        # What all images have there, such as a dark ground, is no mark of this one.
        there = pixels[~own][:, :, alike[:, 0], alike[:, 1]].astype(int)
        like = np.abs(there - low[:, alike[:, 0], alike[:, 1]]) <= 2 * NOISE
        rare = like.all(1).mean(0) < 0.05
        if rare.sum() >= NOISE:
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
