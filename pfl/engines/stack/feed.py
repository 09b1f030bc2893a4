"""Batches of several clients in one phase; :mod:`pfl.training.batching` makes those of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

import torch
from torch import Tensor

from pfl.core import devices
from pfl.core.noise import Noise
from pfl.core.state import each, joined
from pfl.core.types import Batch, Phase
from pfl.engines.stack.gather import Gather
from pfl.engines.stack.schedule import FixedSchedule, Schedule, StepInputs
from pfl.engines.stack.stack import Group, Stack, groups, pad, walk
from pfl.training import batching
from pfl.training.batching import Length, Step


class StackedFeed:
    """Makes the batches of each step, for the clients that are still training.

    If all samples fit into memory and do not change from step to step, they are stacked once, and
    the batches of a step are a single indexing operation. On a GPU, samples that are stored
    together are read as bytes and normalised in each step instead, because floats of all clients
    would fill its memory.

    Attributes:
        schedule: The clients and samples of each step. Steps have a fixed shape on a GPU if their
            batches are indexed from stacked samples. Where samples are read client by client
            (random transforms, splits of different stores) or a batch norm couples the samples of a
            batch, which then cannot be padded, finished clients leave as on a CPU.

    Args:
        stack: The clients.
        phase: The phase.
        lengths: Lengths of the phase for the first clients of the stack, which take steps.
        steps: Steps of each of these clients.
        places: Their rows in the tally.
    """

    def __init__(
        self,
        stack: Stack,
        phase: Phase,
        lengths: Sequence[Length],
        steps: Sequence[Sequence[Step]],
        places: Sequence[int],
    ) -> None:
        self._stack = stack
        self._phase = phase
        self._lengths = lengths
        self._steps = steps
        self._splits = stack.samples_of(phase)[: len(steps)]
        self._feeds = [
            batching.Feed(job, phase, split, None)
            for job, split in zip(stack.jobs, self._splits, strict=False)
        ]
        context = stack.context
        device = context.fabric.device
        jobs, most = stack.jobs[: len(steps)], len(steps[0])
        self._noise = Noise.of(phase, jobs, most, device) if phase.noise else None
        self._apart = context.couples_samples(phase.evals)
        with context.fabric.autocast():
            # Mapped inputs are kept if possible, as they would be computed again in each step.
            self._gather = self._gathered() if phase.inputs is None else None
            self._held = self._hold() if self._gather is None else None
            if self._held is None and phase.inputs is not None:
                self._gather = self._gathered()
            read = self._held is None and self._gather is None
            fixed = devices.repeats(device) and not read and not self._apart
            self.schedule = (FixedSchedule if fixed else Schedule)(steps, places, device)
        if self._held is not None:
            held, most = self._held.y.shape[:2]
            self._starts = most * torch.arange(held, device=device)[:, None]

    def map_inputs(self, batch: Batch) -> Batch:
        """Apply the phase's map to one client's batch, unless it has been applied beforehand."""
        return batch if self._held is not None else batching.map_inputs(self._phase, batch)

    def inputs(self, number: int) -> StepInputs:
        """Prepare the inputs of a step; must be called once for each step, in order."""
        clients, _ = self.schedule.shape(number)
        noise = {} if self._noise is None else self._noise.of_step(number, clients)
        return self.schedule.inputs(number, noise)

    def groups(self, number: int, inputs: StepInputs) -> Iterator[Group]:
        """Make the batches of a step from its inputs."""
        batch = self._samples(number, inputs)._replace(noise=inputs.noise)
        return groups(self.schedule.sizes[number], batch, self._apart)

    def _samples(self, number: int, inputs: StepInputs) -> Batch:
        count, size = self.schedule.shape(number)
        if self._gather is not None:
            batch = self._gather.batch(inputs.positions)
        elif self._held is None:
            turn = [steps[number] for steps in self._steps[:count]]
            pairs = zip(self._feeds, turn, strict=False)
            batch = pad([feed.read(number, step.positions) for feed, step in pairs])
            # The placeholder sample of an empty batch has no weight.
            empty = any(step.empty for step in turn)
            return batch._replace(weight=inputs.weights) if empty else batch
        elif self._phase.full_batch:
            x = each(lambda value: value[:count, :size], self._held.x)
            batch = Batch(x, self._held.y[:count, :size], index=inputs.positions)
        else:
            rows = (inputs.positions + self._starts[:count]).flatten()

            def taken(value: Tensor) -> Tensor:
                chosen = value.flatten(0, 1).index_select(0, rows)
                return chosen.reshape(*inputs.positions.shape, *value.shape[2:])

            x = each(taken, self._held.x)
            batch = Batch(x, taken(self._held.y), index=inputs.positions)
        if self._apart:
            return batch
        # Even without padding: all steps are then alike, and vmap computes the unweighted
        # F.cross_entropy in Python.
        return batch._replace(weight=inputs.weights)

    def _gathered(self) -> Gather | None:
        device = self._stack.context.fabric.device
        if devices.roomy(device) or any(split.augmented for split in self._splits):
            return None
        return Gather.over(self._splits, device)

    def _hold(self) -> Batch | None:
        """Return (K, n, ...) all samples of all clients as the phase sees them, or ``None``."""
        context, held = self._stack.context, list[Batch]()
        pairs = zip(self._lengths, self._splits, strict=True)
        if not all(batching.constant(context, self._phase, *pair) for pair in pairs):
            return None
        if self._phase.inputs is not None:
            return self._mapped()
        for length, split in zip(self._lengths, self._splits, strict=True):
            samples = batching.hold(context, self._phase, length, split)
            if samples is None:
                return None
            held.append(samples)
        return pad(held)

    def _mapped(self) -> Batch | None:
        """Return all samples with the phase's map applied, in eval mode; ``None`` if too large."""
        assert self._phase.inputs is not None
        context, parts = self._stack.context, [list[Batch]() for _ in self._splits]
        most = max(map(len, self._splits))
        context.set_mode(None)
        apart = context.couples_samples(None)
        for group in walk(self._splits, context.data.eval_batch_size, apart):
            with torch.no_grad():
                whole = group.batch._replace(weight=None)
                x = self._stack.together(self._phase.inputs, group.rows, whole)
            if not batching.fits(self._phase, x, whole.y.shape[:2].numel(), most):
                return None
            for place, (row, size) in enumerate(group.sizes.items()):
                mapped = each(itemgetter((place, slice(size))), x)
                parts[row].append(Batch(mapped, whole.y[place, :size]))
        return pad(
            [
                Batch(joined(torch.cat, [b.x for b in batches]), torch.cat([b.y for b in batches]))
                for batches in parts
            ]
        )
