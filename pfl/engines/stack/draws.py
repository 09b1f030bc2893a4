"""What the layers of several clients draw at once; :mod:`pfl.core.layer_draws` draws for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from pfl.core.layer_draws import keys_of, replaced

# A client draws so many keys at once.
_AT_ONCE = 64


class StackedDraws:
    """What the layers of several clients draw at once: for each what it would draw alone.

    Args:
        layers: Those that draw, of the module that runs all clients.
        seeds: As in :func:`pfl.core.layer_draws.layer_draws`, of each client.
        device: Where the layers compute.
    """

    def __init__(
        self, layers: Sequence[nn.Module], seeds: Sequence[int], device: torch.device
    ) -> None:
        self._layers = layers
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._keys = torch.empty((len(seeds), 0), dtype=torch.int64, device=device)
        self._calls = torch.zeros((len(seeds), 1), dtype=torch.int64, device=device)
        self._most = 0

    @contextmanager
    def of(self, rows: Tensor) -> Iterator[None]:
        """Draw for some clients in this scope; tensors of a call begin with an axis of them."""
        with replaced(self._layers, partial(self._next, rows)):
            yield

    def _next(self, rows: Tensor) -> Tensor:
        if self._most == self._keys.shape[1]:
            drawn = [keys_of(one, _AT_ONCE) for one in self._generators]
            self._keys = torch.cat([self._keys, torch.cat(drawn).to(self._keys.device)], 1)
        self._most += 1
        calls = self._calls[rows]
        self._calls[rows] = calls + 1
        return self._keys[rows].gather(1, calls)
