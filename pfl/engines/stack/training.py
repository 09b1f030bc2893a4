"""Phases and passes of several clients at once; :mod:`pfl.training.phases` trains one client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pfl.core.data import ClientSplit
from pfl.core.failure import during
from pfl.core.state import Entries, total, unflattened
from pfl.core.types import Batch, Pass, Phase, Plan, State
from pfl.engines.stack.feed import StackedFeed
from pfl.engines.stack.optimizer import StackedOptimizer
from pfl.engines.stack.stack import Rows, Stack, walk
from pfl.engines.stack.tally import StackedTally
from pfl.training import batching
from pfl.training.batching import Length, Step
from pfl.training.client_round import takes_part
from pfl.training.context import StoppedError
from pfl.training.gradients import Gradients
from pfl.training.phases import make_optimizer, prepared, rule_of


def run_plan(stack: Stack, plan: Plan, tally: StackedTally) -> list[State]:
    """Run phases and passes in order; return the optimiser state that each client keeps."""
    kept: list[State] = [{} for _ in stack.jobs]
    for part in plan:
        with during(part.label):
            if isinstance(part, Phase):
                for row, state in run_phase(stack, part, tally).items():
                    kept[row] |= state
            else:
                run_pass(stack, part, tally)
    return kept


def run_pass(stack: Stack, part: Pass, tally: StackedTally) -> None:
    """Walk over the data once, sum the statistic, and write the entries that ``then`` returns."""
    context, sums, splits = stack.context, dict[str, Tensor](), stack.samples_of(part)
    rows = [
        row
        for row, (job, split) in enumerate(zip(stack.jobs, splits, strict=True))
        if takes_part(part, stack.own(row) if part.when else {}, job, split)
    ]
    # The clients that still have samples are always the first rows.
    rows.sort(key=lambda row: -len(splits[row]))
    context.set_mode(None)
    if part.walks and rows:
        some, size, apart = stack.some(rows), context.data.batch_size, context.couples_samples(None)
        with context.fabric.autocast():
            for group in walk([splits[row] for row in rows], size, apart):
                if part.statistic is not None:
                    added = some.together(part.statistic, group.rows, group.batch)
                    for name, value in added.items():
                        if name not in sums:
                            sums[name] = value.new_zeros(len(rows), *value.shape[1:])
                        sums[name][group.rows] += value.detach()
                if part.collect is not None:
                    sizes = {rows[index]: size for index, size in group.sizes.items()}
                    tally.collect(sizes, some.together(part.collect, group.rows, group.batch))
    for place, row in enumerate(rows):
        totals = tally.clients[row].totals({name: value[place] for name, value in sums.items()})
        stack.write(row, stack.alone(row, part.then, totals))


def run_phase(stack: Stack, phase: Phase, tally: StackedTally) -> dict[int, State]:
    """Train for one phase; return the kept optimiser states of the clients that took steps.

    Raises:
        StoppedError: The run is ending.
    """
    planned = [
        _planned(stack, phase, row, split) for row, split in enumerate(stack.samples_of(phase))
    ]
    for own, one in zip(tally.clients, planned, strict=True):
        own.skipped += one.skipped
        own.steps += len(one.steps)
        own.samples += sum(step.samples for step in one.steps)
    # Clients with more steps come first, so that those still training are always the first rows.
    rows = [row for row, one in enumerate(planned) if one.steps]
    rows.sort(key=lambda row: -len(planned[row].steps))
    if not rows:
        return {}
    lengths, steps = zip(*(planned[row][:2] for row in rows), strict=True)
    part = stack.some(rows)
    feed = StackedFeed(part, phase, lengths, steps, rows)
    if feed.schedule.overruns and part is stack:
        part = stack.copied(rows)
    with prepared(stack.context, phase) as trained:
        jobs, rule = part.jobs[: len(rows)], rule_of(stack.context, part.jobs[0])
        gradients = rule.gradients(stack.context, phase, jobs, len(feed.schedule))
        kept = _take_steps(stack, part, rows, phase, trained, feed, gradients, tally)
    for place, row in enumerate(rows):
        tally.clients[row].drawn += gradients.drawn(place, len(steps[place]))
    return kept


class _Planned(NamedTuple):
    """What a client of a stack does in a phase.

    Attributes:
        length: The phase's length for it.
        steps: Its steps.
        skipped: Whether it has samples and epochs, but no usable batch.
    """

    length: Length
    steps: list[Step]
    skipped: bool


def _planned(stack: Stack, phase: Phase, row: int, split: ClientSplit) -> _Planned:
    job = stack.jobs[row]
    length = batching.length(phase, stack.own(row) if phase.varies else {}, job.info)
    rule = rule_of(stack.context, job)
    steps = [*rule.steps(stack.context, job, phase, length, len(split))]
    return _Planned(length, steps, bool(len(split) and length and not steps))


def _take_steps(
    stack: Stack,
    part: Stack,
    places: Sequence[int],
    phase: Phase,
    trained: Mapping[str, nn.Parameter],
    feed: StackedFeed,
    gradients: Gradients,
    tally: StackedTally,
) -> dict[int, State]:
    """Train some clients of a stack, each for as many steps as the schedule has.

    ``part`` has these clients, the one with the most steps first; ``places`` are their rows in the
    stack and the tally. The stack gets a client's states back when it has finished.
    """
    context, module, schedule = stack.context, stack.context.module, feed.schedule
    single = make_optimizer(module, phase, part.jobs[0].info, trained)
    optimizer = StackedOptimizer(single, trained, part, len(places), phase, schedule.fixed)
    kept: dict[int, State] = {}

    def step(single: Batch) -> Entries:
        return gradients.sums(feed.map_inputs(single))

    def put_away(finished: Sequence[int]) -> None:
        stack.put_back({row: places[row] for row in finished}, part)
        if module.persist_optimizer:
            kept.update({places[row]: optimizer.kept(row) for row in finished})

    for number in range(len(schedule)):
        if context.stop.is_set():
            raise StoppedError
        put_away(schedule.finished(number))
        optimizer.keep_first(schedule.shape(number)[0])
        losses, given, entries = [], State(), list[tuple[Rows, State]]()
        with context.fabric.autocast():
            inputs = feed.inputs(number)
            for group in feed.groups(number, inputs):
                with torch.set_grad_enabled(gradients.tracks):
                    values = part.together(step, group.rows, group.batch, optimizer.leaves)
                    values = gradients.finish(values, number)
                parts = unflattened(values)
                given |= parts["gradients"]
                terms, logged = parts["terms"], parts["logged"]
                losses.append(total(terms).sum())
                entries.append((group.rows, parts["entries"]))
                sizes = {places[row]: size for row, size in group.sizes.items()}
                tally.add(phase.name, sizes, inputs.places[group.rows], terms, logged)
                tally.collect(sizes, parts["rows"])
        gradients.backward(sum(losses[1:], losses[0]), optimizer.leaves, given)
        optimizer.step(context.gradient_clip_val)
        for rows, new in entries:
            part.write(rows, new)
    put_away(schedule.finished(len(schedule)))
    return kept
