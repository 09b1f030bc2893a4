"""Batches of several clients in one phase; :mod:`pfl.training.batching` makes those of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pfl.core.state import each
from pfl.core.types import Batch, Phase
from pfl.engines.stack import Group, Stack, groups, mask, pad, walk
from pfl.engines.stack_gather import Gather
from pfl.training import batching
from pfl.training.batching import Length, Step
from pfl.training.noise import Noise

# Types of devices whose memory can hold the samples of all clients as floats.
HOLDS = ("cpu",)


class StackedFeed:
    """Makes the batches of each step, for the clients that are still training.

    If all samples fit into memory and do not change from step to step, they are stacked once, and
    the batches of a step are a single indexing operation. On a GPU, samples that are stored
    together are read as bytes and normalised in each step instead, because floats of all clients
    would fill its memory.

    Args:
        stack: The clients.
        phase: The phase.
        lengths: Lengths of the phase for the first clients of the stack, which take steps.
        schedule: Steps of each of these clients.
    """

    def __init__(
        self,
        stack: Stack,
        phase: Phase,
        lengths: Sequence[Length],
        schedule: Sequence[Sequence[Step]],
    ) -> None:
        self._stack = stack
        self._phase = phase
        self._lengths = lengths
        self._schedule = schedule
        self._splits = stack.splits[: len(schedule)]
        self._feeds = [
            batching.Feed(job, phase, split, None)
            for job, split in zip(stack.jobs, self._splits, strict=False)
        ]
        device = stack.context.fabric.device
        self._noise = Noise(phase, stack.jobs[: len(schedule)], len(schedule[0]), device)
        self._gather = self._gathered()
        with stack.context.fabric.autocast():
            self._held = self._hold() if self._gather is None else None
        if self._held is not None or self._gather is not None:
            self._positions = _positions(schedule).to(device)
            self._sizes = _sizes(schedule).to(device)

    def map_inputs(self, batch: Batch) -> Batch:
        """Apply the phase's map to one client's batch, unless it has been applied beforehand."""
        if self._phase.inputs is None or self._held is not None:
            return batch
        with torch.no_grad():
            return batch._replace(x=self._phase.inputs(batch))

    def groups(self, number: int, apart: bool) -> Iterator[Group]:
        """Make the batches of a step; must be called once for each step, in order.

        Args:
            number: Number of the step.
            apart: As in :func:`pfl.engines.stack.groups`.
        """
        sizes = [len(s[number].positions) for s in self._schedule if len(s) > number]
        noise = self._noise.of_step(number, len(sizes))
        batch = self._samples(number, sizes)._replace(noise=noise)
        return groups(sizes, batch, apart)

    def _samples(self, number: int, sizes: Sequence[int]) -> Batch:
        count, size = len(sizes), max(sizes)
        if self._gather is not None:
            batch = self._gather.batch(self._positions[:count, number, :size])
            return self._weighted(batch, number, sizes)
        if self._held is None:
            pairs = zip(self._feeds[:count], self._schedule, strict=False)
            return pad([feed.samples(steps[number].positions) for feed, steps in pairs])
        if self._phase.full_batch:
            x = each(lambda value: value[:count, :size], self._held.x)
            y = self._held.y[:count, :size]
        else:
            index = self._positions[:count, number, :size]
            rows = torch.arange(count, device=index.device)[:, None]
            x = each(lambda value: value[rows, index], self._held.x)
            y = self._held.y[rows, index]
        return self._weighted(Batch(x, y), number, sizes)

    def _weighted(self, batch: Batch, number: int, sizes: Sequence[int]) -> Batch:
        """Add the weights of a step; numbers that lay on the CPU would have to be waited for."""
        if min(sizes) == batch.y.shape[1]:
            return batch
        return batch._replace(weight=mask(self._sizes[: len(sizes), number], batch.x, batch.y))

    def _gathered(self) -> Gather | None:
        device, augmented = (
            self._stack.context.fabric.device,
            any(s.augmented for s in self._splits),
        )
        if device.type in HOLDS or self._phase.inputs is not None or augmented:
            return None
        gather = Gather.over(self._splits)
        return None if gather is None else gather.to(device)

    def _hold(self) -> Batch | None:
        """Return (K, n, ...) all samples of all clients as the phase sees them, or ``None``."""
        augmented = any(split.augmented for split in self._splits)
        if self._phase.inputs is not None and not augmented:
            return self._constant_inputs()
        size = self._stack.context.data.batch_size
        held = []
        for length, split in zip(self._lengths, self._splits, strict=True):
            samples = batching.hold(self._phase, length, split, size)
            if samples is None:
                return None
            held.append(samples)
        return pad(held)

    def _constant_inputs(self) -> Batch:
        """Return all samples with the phase's constant map applied, in eval mode."""
        assert self._phase.inputs is not None
        context, parts = self._stack.context, [list[Batch]() for _ in self._splits]
        context.set_mode(None)
        apart = self._stack.couples_samples()
        for group in walk(self._splits, context.data.eval_batch_size, apart):
            with torch.no_grad():
                whole = group.batch._replace(weight=None)
                outputs = self._stack.together(self._phase.inputs, group.rows, whole)
            for (row, size), x, y in zip(group.sizes.items(), outputs, whole.y, strict=True):
                parts[row].append(Batch(x[:size], y[:size]))
        return pad(
            [Batch(torch.cat([b.x for b in own]), torch.cat([b.y for b in own])) for own in parts]
        )


def _positions(schedule: Sequence[Sequence[Step]]) -> Tensor:
    """Return (K, steps, B) positions of all steps, padded with zeros."""
    padded = [pad_sequence([s.positions for s in own], batch_first=True) for own in schedule]
    size = max(rows.shape[1] for rows in padded)
    widened = [torch.nn.functional.pad(rows, (0, size - rows.shape[1])) for rows in padded]
    return pad_sequence(widened, batch_first=True)


def _sizes(schedule: Sequence[Sequence[Step]]) -> Tensor:
    """(K, steps) numbers of samples of all steps; zeros where a client is done."""
    numbers = [torch.tensor([len(step.positions) for step in own]) for own in schedule]
    return pad_sequence(numbers, batch_first=True)
