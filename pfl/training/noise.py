"""The normal draws of a client's steps, such as those that a phase hands out with its batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch

from pfl.core.noise import block, normals, streams_of
from pfl.core.seeds import derive
from pfl.core.types import Job, Phase, State


class Noise:
    """The draws of some clients, step by step; each client's are its own, whoever stands beside it.

    Small draws are made many steps ahead, because a draw is many calls of operations.

    Args:
        shapes: Of the draws of a step, by name.
        keys: Of the clients' streams; not read without shapes.
        steps: How many steps there are, at most.
        device: Where the draws are needed.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        keys: Sequence[int],
        steps: int,
        device: torch.device,
    ) -> None:
        self._shapes = shapes
        self._sizes = [prod(shape) for shape in shapes.values()]
        self._steps, self._first, self._ahead = steps, 0, torch.empty(0, 0, 0)
        if self._shapes:
            # Nothing is copied to the device at a step, which would have to wait for it.
            self._streams = streams_of(keys, device)

    @classmethod
    def of(cls, phase: Phase, jobs: Sequence[Job], steps: int, device: torch.device) -> Noise:
        """Return the draws that a phase declares (:attr:`pfl.core.types.Phase.noise`)."""
        keys = [derive(job.seed, "noise", phase.name) for job in jobs] if phase.noise else []
        return cls(phase.noise, keys, steps, device)

    def of_step(self, number: int, clients: int = 1) -> State:
        """Return (clients, *shape) draws of a step by name, of the first clients.

        Steps may be left out, but not gone back to. Later ones have no more clients.
        """
        if not self._shapes:
            return {}
        if number >= self._first + self._ahead.shape[1]:
            self._draw(number, clients)
        draws = torch.split(self._ahead[:clients, number - self._first], self._sizes, 1)
        shapes = self._shapes.items()
        return {name: d.view(clients, *s) for (name, s), d in zip(shapes, draws, strict=True)}

    def _draw(self, number: int, clients: int) -> None:
        count = sum(self._sizes)
        fit = block(self._streams.device) // max(1, clients * count)
        steps = max(1, min(fit, self._steps - number))
        streams, dtype = self._streams[:, :clients], torch.get_default_dtype()
        self._ahead = normals(streams, number, steps, count, dtype)
        self._first = number
