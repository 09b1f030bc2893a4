"""Batches of several clients in one indexing operation, if their samples are stored together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pfl.core.data import ClientSplit, JoinableSplit
from pfl.core.state import each
from pfl.core.types import Batch


class Gather:
    """Samples of K splits that are rows of one store.

    Args:
        joined: One split with the samples of all splits, in order.
        lengths: Length of each split.
        device: The device of positions.
    """

    def __init__(
        self, joined: ClientSplit, lengths: Sequence[int], device: torch.device | None
    ) -> None:
        self._joined = joined
        ends = torch.tensor(lengths).cumsum(0)
        self._starts = (ends - torch.tensor(lengths))[:, None].to(device)

    @classmethod
    def over(
        cls, splits: Sequence[ClientSplit], device: torch.device | None = None
    ) -> Gather | None:
        """Return a gather over some splits; ``None`` if they are not stored together."""
        first = splits[0] if splits else None
        joined = first.joined(splits) if isinstance(first, JoinableSplit) else None
        return None if joined is None else cls(joined, [len(split) for split in splits], device)

    def batch(self, positions: Tensor, of: Tensor | None = None) -> Batch:
        """Return samples of the first clients.

        Args:
            positions: (K, B) positions within the splits.
            of: (K,) the client of each row; by default the first K in order.

        Returns:
            ``x``: (K, B, ...), ``y``: (K, B, ...), normalised in one operation; ``index`` is
            ``positions``.
        """
        starts = self._starts[: len(positions)] if of is None else self._starts[of]
        joined = self._joined.batch((starts + positions).flatten())

        def apart(value: Tensor) -> Tensor:
            return value.reshape(*positions.shape, *value.shape[1:])

        index = positions.to(joined.y.device)
        return Batch(each(apart, joined.x), apart(joined.y), index=index)

    def chunk(self, start: int, sizes: Sequence[int]) -> Batch:
        """Return ``sizes`` samples of each of the first clients, from position ``start`` on.

        A client with fewer samples repeats its own; one without samples borrows another's.
        """
        lender = next(row for row, size in enumerate(sizes) if size)
        of = torch.tensor([row if size else lender for row, size in enumerate(sizes)])
        filled = torch.tensor(sizes)[of][:, None]
        return self.batch(start + torch.arange(max(sizes)) % filled, of)
