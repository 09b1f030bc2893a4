"""The clients and samples that each step of a stack computes, as clients finish one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pfl.core.state import copy_all
from pfl.core.types import State
from pfl.training.batching import Step


class StepInputs(NamedTuple):
    """The inputs of one step of K clients, on the device.

    Attributes:
        positions: (K, B) positions of the samples in the clients' splits.
        weights: (K, B) ones for real samples, zeros for padding.
        places: (K,) rows of the clients in the tally; -1 for finished clients.
        noise: (K, ...) draws by name.
    """

    positions: Tensor
    weights: Tensor
    places: Tensor
    noise: State


class Schedule:
    """The steps of several clients in one phase; finished clients leave the stack.

    A step computes the clients that are still training, which are the first rows, and as many
    samples of each as the largest of their batches has.

    Attributes:
        fixed: Whether all steps have the same shape, as finished clients stay.
        sizes: For each step, the numbers of samples of the clients that take it.
        overruns: Whether rows of the stack change after their client has finished.

    Args:
        steps: Steps of each client, at least one; the client with the most comes first.
        places: Rows of the clients in the tally.
        device: The device of the stack.
    """

    fixed = False

    def __init__(
        self, steps: Sequence[Sequence[Step]], places: Sequence[int], device: torch.device
    ) -> None:
        sizes = [[len(step.positions) for step in one] for one in steps]
        self.sizes = [
            [one[number] for one in sizes if len(one) > number] for number in range(len(steps[0]))
        ]
        self.overruns = self.fixed and len(self.sizes[-1]) < len(steps)
        self._clients, self._largest = len(steps), max(map(max, sizes))
        table = pad_sequence([torch.tensor(one) for one in sizes], batch_first=True)
        real = table > 0
        # Batches of finished clients count as full, because a mean over no samples is NaN.
        table = table.where(real, self._largest)
        weights = torch.arange(self._largest) < table[..., None]
        for row, one in enumerate(steps):
            weights[row, [number for number, step in enumerate(one) if step.empty]] = False
        self._weights = weights.to(torch.get_default_dtype()).to(device)
        self._places = torch.tensor(places)[:, None].where(real, -1).to(device)
        self._positions = _positions(steps, self._largest).to(device)

    def __len__(self) -> int:
        """Return the number of steps of the client with the most."""
        return len(self.sizes)

    def finished(self, number: int) -> range:
        """Return the rows of the clients that took their last step just before a step."""
        counts = [self._clients, *map(len, self.sizes), 0]
        return range(counts[number + 1], counts[number])

    def shape(self, number: int) -> tuple[int, int]:
        """Return the numbers of clients and of samples per client that a step computes."""
        return len(self.sizes[number]), max(self.sizes[number])

    def inputs(self, number: int, noise: State) -> StepInputs:
        """Return the inputs of a step, ``noise`` included."""
        count, size = self.shape(number)
        return StepInputs(
            self._positions[:count, number, :size],
            self._weights[:count, number, :size],
            self._places[:count, number],
            noise,
        )


class FixedSchedule(Schedule):
    """The steps of several clients in one phase, all alike; finished clients stay in the stack.

    Each step calls the same operations with the same shapes, on inputs in the same memory, so it
    can be captured as a CUDA graph. A finished client repeats its first sample: its state must be
    saved before, and its row is meaningless afterwards.
    """

    fixed = True
    _memory: list[Tensor] | None = None

    def shape(self, number: int) -> tuple[int, int]:
        """Return the numbers of all clients and of the samples in the largest batch."""
        return self._clients, self._largest

    def inputs(self, number: int, noise: State) -> StepInputs:
        """Return the inputs of a step, which overwrite those of the previous step."""
        *values, noise = super().inputs(number, noise)
        values += noise.values()
        if self._memory is not None:
            copy_all(self._memory, values)
        else:
            self._memory = [value.clone() for value in values]
        positions, weights, places, *draws = self._memory
        return StepInputs(positions, weights, places, dict(zip(noise, draws, strict=True)))


def _positions(steps: Sequence[Sequence[Step]], size: int) -> Tensor:
    """Return (K, steps, B) positions of all steps, padded with zeros."""
    padded = [pad_sequence([s.positions for s in one], batch_first=True) for one in steps]
    widened = [torch.nn.functional.pad(rows, (0, size - rows.shape[1])) for rows in padded]
    return pad_sequence(widened, batch_first=True)
