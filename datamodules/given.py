"""Arrays as the record of what was read has them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from datamodules.record import Array, Use, Values

# So many samples show the range of an input; so many columns are examined one by one.
_SOME = 1000
_FEW = 20
_MOST_COLUMNS = 256


def array_of(name: str, value: Tensor, num_train: int) -> Array:
    """Return the form of an input; its range is that of some of its samples."""
    parts = value[:num_train], value[num_train:]
    step = max(1, num_train // _SOME)
    some = parts[0][::step][:_SOME].double()
    tests = parts[1][:: max(1, len(parts[1]) // _SOME)][:_SOME].double()
    sizes = some.reshape(len(some), -1).abs().amax(1).numpy() if some.numel() else np.empty(0)
    tested = float(tests.max() - tests.min()) if len(tests) >= _FEW and tests.numel() else None
    low, high = (float(some.min()), float(some.max())) if some.numel() else (0.0, 0.0)
    dtype, words = str(value.dtype).removeprefix("torch."), not value.is_floating_point()
    return Array(
        name,
        dtype,
        tuple(value.shape),
        low,
        high,
        bool((some % 1 == 0).all()),
        tested,
        sizes,
        rows=step * np.arange(len(some)),
        still=_still(some, tokens=words),
        lows=some.reshape(len(some), -1).amin(1).numpy() if some.numel() else np.empty(0),
        means=some.flatten(2).mean(2).numpy() if some.dim() > 2 else np.empty((len(some), 0)),
        tokens=some.long().numpy() if words and some.dim() == 2 else np.empty((0, 0), np.int64),
    )


def _still(some: Tensor, tokens: bool) -> NDArray[np.bool_]:
    """Return an (s, C) mask of the channels of samples in which nothing varies."""
    if some.dim() < 3 and not (tokens and some.dim() == 2):
        return np.empty((len(some), 0), bool)
    values = some.reshape(len(some), some.shape[1] if some.dim() > 2 else 1, -1)
    still: NDArray[np.bool_] = (values == values[:, :, :1]).all(2).numpy()
    # A few equal numbers are no course.
    return still if values.shape[2] > 3 else still[:, :0]


def columns_of(name: str, value: Tensor, use: Use = "feature") -> list[Values]:
    """Return the columns of vectors of floats; other tensors have none that mean something."""
    if value.dim() != 2 or not value.is_floating_point() or value.shape[1] > _MOST_COLUMNS:
        return []
    numbers = value.double().numpy()
    several = numbers.shape[1] > 1
    return [
        Values(f"{name}[:, {place}]" if several else name, use, numbers=numbers[:, place])
        for place in range(numbers.shape[1])
    ]
