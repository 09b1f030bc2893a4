"""How long a client trains by its plan, as far as a server can know it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from pfl.core.types import ClientInfo, Job, Phase, State
from pfl.training import batching
from pfl.training.context import Context
from pfl.training.gradients import carried
from pfl.training.phases import Plain


class Amount(NamedTuple):
    """How long a client trains.

    Attributes:
        steps: Number of optimiser steps.
        samples: Number of samples that it sees.
        exact: Whether it may report no smaller numbers.
    """

    steps: float = 0
    samples: float = 0
    exact: bool = True

    def allows(self, steps: int, samples: int) -> bool:
        """Return ``True`` if a client may report these numbers."""
        if self.exact:
            return (steps, samples) == self[:2]
        return steps <= self.steps and samples <= self.samples

    def plus(self, other: Amount) -> Amount:
        """Return the sum of two parts of a plan."""
        exact = self.exact and other.exact
        return Amount(self.steps + other.steps, self.samples + other.samples, exact)


_ANY = Amount(math.inf, math.inf, exact=False)


def of_phase(context: Context, phase: Phase, job: Job, entries: State) -> Amount:
    """Return the length of a phase, given the client's entries that are known before it."""
    try:
        length = batching.length(phase, entries, job.info)
    except Exception:
        # It depends on what only the client knows.
        return _ANY
    count, known = _samples(context, phase, job.info, entries)
    if not count or not length:
        return Amount(exact=known or not length)
    if known and not context.own_nets and phase.until is None and carried(job.steps) is None:
        try:
            return _counted(context, phase, job, length, count)
        except batching.BatchError:
            # A client that cannot take a step has no report.
            return Amount()
    most = batching.most_steps(context, phase, length, count)
    if carried(job.steps) is not None:
        # Drawn batches may have any number of samples.
        samples = most * count
    elif length.steps is None:
        samples = math.ceil(length.epochs) * count
    else:
        samples = most * min(count, batching.batch_size(context, phase, count))
    return Amount(most, samples, exact=False)


def _counted(
    context: Context, phase: Phase, job: Job, length: batching.Length, count: int
) -> Amount:
    """Return the length of a phase whose batches have the same sizes in each epoch."""
    of_epoch = batching.epoch_steps(context, phase, count)
    batches = Plain(context).batches(job, phase, 0, count, of_epoch)
    if not batches:
        return Amount()
    if length.steps is None:
        epochs = int(length.epochs)
        rest = length.of_epoch(epochs, len(batches))
    else:
        epochs, rest = divmod(length.steps, len(batches))
    samples = epochs * sum(map(len, batches)) + sum(map(len, batches[:rest]))
    return Amount(epochs * len(batches) + rest, samples)


def _samples(context: Context, phase: Phase, info: ClientInfo, entries: State) -> tuple[int, bool]:
    """Return how many samples a phase sees in an epoch at most, and whether it sees as many."""
    try:
        return len(context.samples_of(phase, info, entries)), True
    except Exception:
        # Which they are only the client knows; they are no more than all.
        return len(context.samples_of(replace(phase, subset=None), info, {})), False
