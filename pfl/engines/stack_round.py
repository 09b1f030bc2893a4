"""A round and a test of several clients at once; :mod:`pfl.local` does the same for one."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pfl import batching, metrics
from pfl.context import Context, StoppedError
from pfl.engines.stack import Rows, Stack, walk
from pfl.engines.stack_feed import StackedFeed
from pfl.engines.stack_optimizer import StackedOptimizer
from pfl.state import finite, total
from pfl.training import kept_optimizers, make_optimizer, prepare, release, run_objective
from pfl.types import (
    Batch,
    ClientSplit,
    Job,
    Outcome,
    Pass,
    Phase,
    Plan,
    Result,
    Scores,
    Split,
    State,
    Terms,
    Totals,
)


@dataclass
class StackedTally:
    """What the phases of K jobs add up to.

    Attributes:
        clients: K.
        sums: (K,) of each logged term, by ``"<phase>/<term>"``.
        counts: (K,) the steps that were added to it.
        steps: (K,) optimiser steps.
        samples: (K,) samples seen.
        skipped: (K,) phases without a batch that could be used; see :class:`pfl.training.Tally`.
        rows: For each client what objectives collected since the last pass.
    """

    clients: int
    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steps = [0] * self.clients
        self.samples = [0] * self.clients
        self.skipped = [0] * self.clients
        self.rows = [defaultdict[str, list[Tensor]](list) for _ in range(self.clients)]

    def idle(self, row: int) -> bool:
        """Whether a client had something to train on, and could not take one step."""
        return self.steps[row] == 0 and self.skipped[row] > 0

    def add(self, phase: str, rows: Rows, terms: Terms) -> None:
        """Add up the terms of one step of some of the clients."""
        for name, term in terms.items():
            key, value = f"{phase}/{name}", term.detach()
            if key not in self.sums:
                self.sums[key] = value.new_zeros(self.clients)
                self.counts[key] = torch.zeros(self.clients, dtype=torch.int64)
            self.sums[key][rows] += value
            self.counts[key][rows] += 1

    def collect(self, sizes: Mapping[int, int], found: State) -> None:
        """Take the rows of one batch of some clients, without the padding.

        Args:
            sizes: The number of real samples of each client, in the order of their rows.
            found: (clients, B, ...) rows by name.
        """
        for name, values in found.items():
            for (client, size), value in zip(sizes.items(), values, strict=True):
                self.rows[client][name].append(value[:size].detach())

    def totals(self, row: int, sums: State) -> Totals:
        """Return what a pass works with, and forget the client's rows."""
        rows = {name: torch.cat(values) for name, values in self.rows[row].items()}
        self.rows[row].clear()
        return Totals(sums, rows, self.steps[row], self.samples[row])

    def means(self) -> list[dict[str, float]]:
        """For each client the mean of each term over its steps (one synchronisation)."""
        if not self.sums:
            return [{} for _ in range(self.clients)]
        sums = torch.stack([value.float() for value in self.sums.values()], 1).tolist()
        counts = torch.stack(list(self.counts.values()), 1).tolist()
        return [
            {key: s / c for key, s, c in zip(self.sums, *row, strict=True) if c}
            for row in zip(sums, counts, strict=True)
        ]


def train(context: Context, jobs: Sequence[Job]) -> list[Result]:
    """Run the rounds of several clients, in descending order of their training samples."""
    module, stack, tally = context.module, Stack(context, jobs), StackedTally(len(jobs))
    for row, job in enumerate(jobs):
        if job.broadcast is not None:
            stack.alone(row, module.receive, job.broadcast, job.info)
    with context.isolated(jobs[0]):
        optimisers = run_plan(stack, context.plan, tally)
    uploads = [
        None if tally.idle(row) else stack.alone(row, module.upload, job.info)
        for row, job in enumerate(jobs)
    ]
    names = module.kept_names()
    kept = [
        {name: stack.state[name][row].clone() for name in names}
        | kept_optimizers(job.kept)
        | optimisers[row]
        for row, job in enumerate(jobs)
    ]
    if jobs[0].splits:
        for row, job in enumerate(jobs):
            if not tally.idle(row):
                stack.alone(row, module.personalise, None, job.info)
    sound = _finite(
        [own | ({} if up is None else up.shared) for own, up in zip(kept, uploads, strict=True)]
    )
    means, scores = tally.means(), evaluate(stack)
    return [
        Result(
            client=job.info.client,
            upload=uploads[row],
            kept=kept[row],
            train=means[row],
            steps=tally.steps[row],
            samples=tally.samples[row],
            scores=scores[row],
            finite=sound[row] and all(math.isfinite(v) for v in means[row].values()),
        )
        for row, job in enumerate(jobs)
    ]


def test(context: Context, jobs: Sequence[Job]) -> list[Scores]:
    """Test several clients' models: of all the personalised one, or of all the global one."""
    return evaluate(tested(context, jobs))


def tested(context: Context, jobs: Sequence[Job]) -> Stack:
    """Return several clients as the models that are tested."""
    module, stack = context.module, Stack(context, jobs)
    personal = jobs[0].model == "personal"
    for row, job in enumerate(jobs):
        if job.broadcast is not None and personal:
            stack.alone(row, module.personalise, job.broadcast, job.info)
        elif job.broadcast is not None:
            stack.alone(row, module.generalise, job.broadcast)
    if personal and jobs[0].broadcast is not None:
        with context.isolated(jobs[0]):
            run_plan(stack, context.adapt, StackedTally(len(jobs)))
    return stack


def evaluate(stack: Stack) -> list[Scores]:
    """Scores of all clients on the splits of their jobs; a split without samples is left out."""
    context, (first, *_) = stack.context, stack.jobs
    context.module.eval()

    def forward(batch: Batch) -> Tensor:
        logits: Tensor = context.module(batch.x)
        return logits

    found: dict[tuple[int, Split], Tensor] = {}
    for name in first.splits:
        if (splits := _splits(stack, name)) is None:
            continue
        logits, labels = [list[Tensor]() for _ in splits], [list[Tensor]() for _ in splits]
        with torch.inference_mode(), context.fabric.autocast():
            for group in walk(splits, context.data.eval_batch_size, stack.couples_samples()):
                outputs = stack.together(forward, group.rows, group.batch, draws="same")
                for (row, size), z, y in zip(
                    group.sizes.items(), outputs, group.batch.y, strict=True
                ):
                    logits[row].append(z[:size])
                    labels[row].append(y[:size])
        for row, own in enumerate(splits):
            if len(own):
                found[row, name] = metrics.scores(torch.cat(logits[row]), torch.cat(labels[row]))
    values = torch.stack(list(found.values())).tolist() if found else []
    scores: list[Scores] = [{} for _ in stack.jobs]
    for (row, name), numbers in zip(found, values, strict=True):
        scores[row][name] = dict(zip(metrics.NAMES, numbers, strict=True))
    return scores


def run_plan(stack: Stack, plan: Plan, tally: StackedTally) -> list[State]:
    """Run phases and passes in order; returns each client's optimiser state that is to be kept."""
    kept: list[State] = [{} for _ in stack.jobs]
    for part in plan:
        if isinstance(part, Phase):
            for row, state in run_phase(stack, part, tally).items():
                kept[row] |= state
        else:
            run_pass(stack, part, tally)
    return kept


def run_pass(stack: Stack, part: Pass, tally: StackedTally) -> None:
    """Walk once over the data, add up the statistic, and write what ``then`` makes of it."""
    context, sums = stack.context, dict[str, Tensor]()
    with torch.no_grad():
        rows = [
            row
            for row, (job, split) in enumerate(zip(stack.jobs, stack.splits, strict=True))
            if (part.when is None or part.when(stack.own(row), job.info))
            and (len(split) or not part.walks)
        ]
    context.module.eval()
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
    """Train for one phase; returns the optimiser states of the clients that took steps, if kept.

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
    # Clients with more steps stand before those with fewer: who is still at work comes first.
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
        stack: The client with the most steps first.
        phase: What is trained.
        feed: The batches.
        schedule: Of each client.
        tally: Where the steps are counted.
        places: The clients' rows in the tally.
    """
    context, module = stack.context, stack.context.module
    trained = prepare(context, phase)
    single = make_optimizer(module, phase, stack.jobs[0].info, trained)
    optimizer = StackedOptimizer(single, trained, stack, len(schedule), phase)

    def step(own: Batch) -> Outcome:
        return run_objective(phase, feed.map_inputs(own))

    apart, index = stack.couples_samples(), torch.tensor(places)
    for number in range(len(schedule[0])):
        if context.stop.is_set():
            raise StoppedError
        optimizer.keep_first(sum(len(steps) > number for steps in schedule))
        losses, entries = [], list[tuple[Rows, State]]()
        with context.fabric.autocast():
            for group in feed.groups(number, apart):
                outcome = stack.together(step, group.rows, group.batch, optimizer.leaves)
                losses.append(total(outcome.terms).sum())
                entries.append((group.rows, outcome.entries))
                tally.add(phase.name, index[group.rows], outcome.terms)
                sizes = {places[own]: size for own, size in group.sizes.items()}
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


def _splits(stack: Stack, name: Split) -> list[ClientSplit] | None:
    """The split of each client, or the one that is common to all; ``None`` if there is no such."""
    data = stack.context.data
    if name != "pooled":
        return [data.split(job.info.client, name) for job in stack.jobs]
    pooled = data.pooled_test()
    return None if pooled is None else [pooled] * len(stack)


def _finite(states: Sequence[State]) -> list[bool]:
    """Whether each state holds finite numbers only (one synchronisation where all do)."""
    sums = [
        sum((value.sum().float() for value in state.values()), start=torch.zeros(()))
        for state in states
    ]
    told = torch.stack([value.cpu() for value in sums]).isfinite().tolist()
    return [sound or finite(state) for sound, state in zip(told, states, strict=True)]
