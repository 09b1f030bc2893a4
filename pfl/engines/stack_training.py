"""Phases and passes of several clients at once; :mod:`pfl.training.phases` trains one client."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pfl.core.state import total
from pfl.core.types import Batch, Outcome, Pass, Phase, Plan, State
from pfl.engines.stack import Rows, Stack, walk
from pfl.engines.stack_feed import StackedFeed
from pfl.engines.stack_optimizer import StackedOptimizer
from pfl.engines.stack_tally import StackedTally
from pfl.training import batching
from pfl.training.context import StoppedError
from pfl.training.phases import make_optimizer, prepare, release, run_objective


def run_plan(stack: Stack, plan: Plan, tally: StackedTally) -> list[State]:
    """Run phases and passes in order; return the optimiser state that each client keeps."""
    kept: list[State] = [{} for _ in stack.jobs]
    for part in plan:
        if isinstance(part, Phase):
            for row, state in run_phase(stack, part, tally).items():
                kept[row] |= state
        else:
            run_pass(stack, part, tally)
    return kept


def run_pass(stack: Stack, part: Pass, tally: StackedTally) -> None:
    """Walk over the data once, sum the statistic, and write the entries that ``then`` returns."""
    context, sums = stack.context, dict[str, Tensor]()
    with torch.no_grad():
        rows = [
            row
            for row, (job, split) in enumerate(zip(stack.jobs, stack.splits, strict=True))
            if (part.when is None or part.when(stack.own(row), job.info))
            and (len(split) or not part.walks)
        ]
    context.set_mode(None)
    if part.walks and rows:
        some, size, apart = stack.some(rows), context.data.batch_size, stack.couples_samples()
        with context.fabric.autocast():
            for group in walk(some.splits[: len(rows)], size, apart):
                if part.statistic is not None:
                    found = some.together(part.statistic, group.rows, group.batch)
                    for name, value in found.items():
                        if name not in sums:
                            sums[name] = value.new_zeros(len(rows), *value.shape[1:])
                        sums[name][group.rows] += value.detach()
                if part.collect is not None:
                    sizes = {rows[own]: size for own, size in group.sizes.items()}
                    tally.collect(sizes, some.together(part.collect, group.rows, group.batch))
    for place, row in enumerate(rows):
        totals = tally.totals(row, {name: value[place] for name, value in sums.items()})
        stack.write(row, stack.alone(row, part.then, totals))


def run_phase(stack: Stack, phase: Phase, tally: StackedTally) -> dict[int, State]:
    """Train for one phase; return the kept optimiser states of the clients that took steps.

    Raises:
        StoppedError: The run is ending.
    """
    lengths = [
        batching.length(phase, stack.own(row) if phase.varies else {}, job.info)
        for row, job in enumerate(stack.jobs)
    ]
    schedule = [
        list(batching.steps(stack.context, job, phase, length, len(split)))
        for job, length, split in zip(stack.jobs, lengths, stack.splits, strict=True)
    ]
    for row, (split, length) in enumerate(zip(stack.splits, lengths, strict=True)):
        tally.skipped[row] += bool(len(split) and length and not schedule[row])
    # Clients with more steps come first, so that those still training are always the first rows.
    rows = sorted((r for r, steps in enumerate(schedule) if steps), key=lambda r: -len(schedule[r]))
    if not rows:
        return {}
    some = stack.some(rows)
    feed = StackedFeed(some, phase, [lengths[r] for r in rows], [schedule[r] for r in rows])
    kept = _take_steps(some, phase, feed, [schedule[r] for r in rows], tally, rows)
    stack.put_back(rows, some)
    return dict(zip(rows, kept, strict=False))


def _take_steps(
    stack: Stack,
    phase: Phase,
    feed: StackedFeed,
    schedule: Sequence[Sequence[batching.Step]],
    tally: StackedTally,
    places: Sequence[int],
) -> list[State]:
    """Train all clients of a stack, each for as many steps as its schedule has.

    Args:
        stack: The clients, the one with the most steps first.
        phase: The phase.
        feed: The batches.
        schedule: Steps of each client.
        tally: Counts the steps.
        places: The clients' rows in the tally.
    """
    context, module = stack.context, stack.context.module
    trained = prepare(context, phase)
    single = make_optimizer(module, phase, stack.jobs[0].info, trained)
    optimizer = StackedOptimizer(single, trained, stack, len(schedule), phase)

    def step(own: Batch) -> tuple[Outcome, State]:
        return run_objective(phase, feed.map_inputs(own)), module.take_logged()

    apart = stack.couples_samples()
    index = torch.tensor(places, device=context.fabric.device)
    for number in range(len(schedule[0])):
        if context.stop.is_set():
            raise StoppedError
        optimizer.keep_first(sum(len(steps) > number for steps in schedule))
        losses, entries = [], list[tuple[Rows, State]]()
        with context.fabric.autocast():
            for group in feed.groups(number, apart):
                outcome, logged = stack.together(step, group.rows, group.batch, optimizer.leaves)
                losses.append(total(outcome.terms).sum())
                entries.append((group.rows, outcome.entries))
                sizes = {places[own]: size for own, size in group.sizes.items()}
                tally.add(phase.name, sizes, index[group.rows], outcome.terms, logged)
                tally.collect(sizes, outcome.rows)
        context.fabric.backward(sum(losses[1:], losses[0]))
        optimizer.step(context.gradient_clip_val)
        for rows, values in entries:
            stack.write(rows, values)
    for place, steps in zip(places, schedule, strict=True):
        tally.steps[place] += len(steps)
        tally.samples[place] += sum(len(step.positions) for step in steps)
    release(context)
    return optimizer.kept() if module.persist_optimizer else []
