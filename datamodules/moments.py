"""Standardisation by means and deviations of training samples."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.checks import require
from datamodules.partition.splits import Division
from datamodules.targets import Floats, Ints

# Not at all, by the training samples of all clients that train, or by each client's own.
Standardise: TypeAlias = Literal["none", "train", "client"]


class ColumnMoments(NamedTuple):
    """Counts of present values, means, and standard deviations of columns, each (F,)."""

    counts: Ints
    means: Floats
    deviations: Floats

    @classmethod
    def of(cls, x: NDArray[np.floating]) -> ColumnMoments:
        """Return the moments of (n, F, ...) numbers; zeros for a column without values.

        Equal values have a deviation of zero.
        """
        axes = (0, *range(2, x.ndim))
        there = ~np.isnan(x)
        counts = there.sum(axes)
        means = np.where(there, x, 0).sum(axes, dtype=np.float64) / np.maximum(counts, 1)
        squares = np.where(there, np.square(x - _along(means, x)), 0).sum(axes)
        # Rounding of the mean could give equal numbers a deviation above zero.
        least = np.fmin.reduce(x, axis=axes, initial=np.inf)
        varies = least < np.fmax.reduce(x, axis=axes, initial=-np.inf)
        return cls(counts, means, np.where(varies, np.sqrt(squares / np.maximum(counts, 1)), 0))

    def plain(self) -> tuple[list[float], list[float]]:
        """Return means and scales for a file; the scale of equal values is one."""
        scales = np.where(self.deviations > 0, self.deviations, 1.0)
        return np.atleast_1d(self.means).tolist(), np.atleast_1d(scales).tolist()

    def completed(self, other: ColumnMoments) -> ColumnMoments:
        """Fill in columns without values from other moments."""
        known = self.counts > 0
        return ColumnMoments(
            *(np.where(known, mine, theirs) for mine, theirs in zip(self, other, strict=True))
        )

    def applied(self, x: NDArray[np.floating], scaled: NDArray[np.bool_]) -> Floats:
        """Replace NaN by means in (n, F, ...) numbers, and standardise the columns ``scaled``."""
        means = _along(self.means, x)
        filled = np.where(np.isnan(x), means, x)
        scales = _along(np.where(self.deviations > 0, self.deviations, 1), x)
        return np.where(_along(scaled, x), (filled - means) / scales, filled)


def standardised(
    x: NDArray[np.floating],
    division: Division,
    how: Standardise,
    scaled: NDArray[np.bool_],
    everybody: ColumnMoments,
) -> Floats:
    """Replace NaN by means, and standardise columns.

    Args:
        x: (n, F, ...) numbers, or (n,) of one column; row i is sample i.
        division: The samples of each client.
        how: Whose training samples are used; with ``none``, NaN is replaced by overall means.
        scaled: (F,) mask of the columns to standardise.
        everybody: Moments of the training samples of all clients that train.

    Raises:
        ValueError: There is a common test set, but standardisation is per client.
    """
    if how != "client":
        return everybody.applied(x, scaled & (how == "train"))
    require(
        division.pooled_test is None,
        "standardise: client needs test samples that belong to one client each: give "
        "test_protocol: pooled or future, or standardise: train",
    )
    changed: Floats = x.astype(np.float64)
    for held in division.holdings:
        ids = np.concatenate([held.train, held.val, held.test])
        changed[ids] = ColumnMoments.of(x[held.train]).completed(everybody).applied(x[ids], scaled)
    return changed


def _along(values: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
    """Return (F,) values in a shape that broadcasts over (n, F, ...)."""
    return values.reshape(*values.shape, *[1] * (x.ndim - 2))
