"""The batches of a client's steps: samples and their order, derived from the job's seed.

Every engine makes its batches here, so they are the same under all engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pfl.core.data import ClientSplit
from pfl.core.failure import ExplainedError
from pfl.core.noise import Noise
from pfl.core.state import each, joined, nbytes
from pfl.core.types import Batch, ClientInfo, Count, Inputs, Job, Phase, State

if TYPE_CHECKING:
    from pfl.training.context import Context

HELD_BYTES = 2**26
"""Size in bytes up to which a client's samples are normalised and mapped only once per phase."""


class BatchError(ExplainedError, ValueError):
    """The batch size of the configuration does not suit the network."""


@dataclass(frozen=True, slots=True)
class Step:
    """One optimiser step.

    Attributes:
        epoch: Number of the epoch, from 0.
        index: Number of the step within the epoch, from 0.
        last: Whether it is the last step of the epoch.
        positions: (B,) positions of the samples in the client's split.
        samples: Number that counts; its expectation if nobody may know the draw.
        empty: Whether a Poisson batch has no sample: the one at ``positions`` has no weight.
    """

    epoch: int
    index: int
    last: bool
    positions: Tensor
    samples: int
    empty: bool = False


class Length(NamedTuple):
    """The length of a phase for one client.

    Attributes:
        epochs: Number of epochs, unless ``steps`` is given; of the last one perhaps only a part.
        steps: Number of optimiser steps.
    """

    epochs: float
    steps: int | None = None

    def __bool__(self) -> bool:
        """Return ``True`` if there is anything to do."""
        return (self.epochs if self.steps is None else self.steps) > 0

    def of_epoch(self, epoch: int, batches: int) -> int:
        """Return how many of the batches of an epoch are used, unless ``steps`` is given."""
        share = min(1.0, max(0.0, self.epochs - epoch))
        # 0.3 of ten batches are three, though 0.3 * 10 is a little more.
        return ceil(round(share * batches, 9))


def length(phase: Phase, entries: State, info: ClientInfo) -> Length:
    """Return the length of a phase for one client, given its entries just before the phase."""

    def number(count: Count) -> float:
        return count(entries, info) if callable(count) else count

    with torch.no_grad():
        steps = None if phase.steps is None else int(number(phase.steps))
        return Length(float(number(phase.epochs)), steps)


def batch_size(context: Context, phase: Phase, samples: int) -> int:
    """Return the size of a phase's full batches on a client with ``samples`` samples."""
    return samples if phase.full_batch else phase.batch_size or context.data.batch_size


def epoch_steps(context: Context, phase: Phase, samples: int) -> int:
    """Return the number of batches in an epoch, at least one."""
    return max(1, -(-samples // max(1, batch_size(context, phase, samples))))


def most_steps(context: Context, phase: Phase, length: Length, samples: int) -> int:
    """Return the largest number of steps that a phase can take on a client."""
    if length.steps is not None:
        return length.steps
    batches, whole = epoch_steps(context, phase, samples), int(length.epochs)
    return whole * batches + length.of_epoch(whole, batches)


def read(split: ClientSplit, positions: Tensor, rng: torch.Generator | None = None) -> Batch:
    """Return the samples at ``positions`` of a split, with these as their index."""
    batch = split.batch(positions, rng)
    return batch._replace(index=positions.to(batch.y.device))


def chunks(samples: int, size: int) -> Sequence[Tensor]:
    """Return positions 0 to ``samples - 1`` in chunks of ``size``; no chunk without samples."""
    starts = range(0, samples, size)
    return [torch.arange(start, min(start + size, samples)) for start in starts]


class Feed:
    """The batches of one client in one phase.

    Attributes:
        held: All samples in stored order, if they are held.

    Args:
        job: The job, whose seed determines the transforms.
        phase: The phase.
        split: The samples of the phase.
        held: All samples in stored order, from :func:`hold`; ``split`` is not used then.
        noise: The draws that the phase declares, where a batch has them.
    """

    def __init__(
        self,
        job: Job,
        phase: Phase,
        split: ClientSplit,
        held: Batch | None,
        noise: Noise | None = None,
    ) -> None:
        self._phase = phase
        self._split = split
        self._noise = noise
        self.held = held
        self._transforms: torch.Generator | None = None
        if split.augmented:
            self._transforms = torch.Generator().manual_seed(job.seed_of("augment", phase.name))

    def batch(self, number: int, positions: Tensor) -> Batch:
        """Return the batch of a step, with its draws, and the phase's map applied."""
        batch = self.read(number, positions)
        return batch if self.held is not None else map_inputs(self._phase, batch)

    def read(self, number: int, positions: Tensor) -> Batch:
        """Return the samples of a step, with its draws; must be called once a step, in order.

        The phase's map is applied only if they are held.
        """
        if self.held is None:
            batch = read(self._split, positions, self._transforms)
        elif self._phase.full_batch:
            batch = self.held
        else:
            index = positions.to(self.held.y.device)
            x = each(lambda value: value.index_select(0, index), self.held.x)
            batch = Batch(x, self.held.y.index_select(0, index), index=index)
        if self._noise is None:
            return batch
        draws = self._noise.of_step(number).items()
        return batch._replace(noise={name: drawn[0] for name, drawn in draws})


def map_inputs(phase: Phase, batch: Batch) -> Batch:
    """Apply a phase's map, if it has one, to a batch that was read."""
    if phase.inputs is None:
        return batch
    with torch.no_grad():
        return batch._replace(x=phase.inputs(batch))


def hold(context: Context, phase: Phase, length: Length, split: ClientSplit) -> Batch | None:
    """Return all samples as a phase sees them, normalised and mapped at once, or ``None``.

    It is ``None`` unless :func:`constant` holds, or if they are too large.
    """
    if not constant(context, phase, length, split):
        return None
    if phase.inputs is not None:
        return _mapped(context, phase, split)
    first = split.batch(torch.zeros(1, dtype=torch.int64)).x
    if not fits(phase, first, 1, len(split)):
        return None
    return read(split, torch.arange(len(split)))


def constant(context: Context, phase: Phase, length: Length, split: ClientSplit) -> bool:
    """Return ``True`` if samples are the same in each step and the phase sees all of them."""
    size = batch_size(context, phase, len(split))
    steps = most_steps(context, phase, length, len(split))
    return not split.augmented and steps * size >= len(split)


def fits(phase: Phase, x: Inputs, count: int, samples: int) -> bool:
    """Return ``True`` if all samples of a client may be held during a phase.

    Args:
        phase: The phase.
        x: Inputs of some samples, as the phase sees them.
        count: Number of samples in ``x``.
        samples: Number of the client's samples.
    """
    return phase.full_batch or nbytes(x) * samples <= HELD_BYTES * count


def _mapped(context: Context, phase: Phase, split: ClientSplit) -> Batch | None:
    """Return all samples with the phase's map applied, in eval mode; ``None`` if too large."""
    assert phase.inputs is not None
    context.set_mode(None)
    xs, ys = list[Inputs](), []
    with torch.no_grad():
        for positions in chunks(len(split), context.data.eval_batch_size):
            batch = read(split, positions)
            xs.append(phase.inputs(batch))
            ys.append(batch.y)
            if not fits(phase, xs[0], len(ys[0]), len(split)):
                return None
    y = torch.cat(ys)
    return Batch(joined(torch.cat, xs), y, index=torch.arange(len(y), device=y.device))
