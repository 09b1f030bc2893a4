"""A round and a test of several clients at once; :mod:`pfl.local` does the same for one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pfl import batching, metrics
from pfl.context import Context, StoppedError
from pfl.engines.stack import Rows, Stack, walk
from pfl.engines.stack_feed import StackedFeed
from pfl.engines.stack_optimizer import StackedOptimizer
from pfl.state import finite
from pfl.training import make_optimizer, prepare, release, training_step
from pfl.types import (
    Batch,
    ClientSplit,
    Job,
    Pass,
    Phase,
    Plan,
    Result,
    Scores,
    Split,
    State,
    Terms,
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
    """

    clients: int
    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steps = [0] * self.clients
        self.samples = [0] * self.clients
        self.skipped = [0] * self.clients

    def idle(self, row: int) -> bool:
        """Whether a client had something to train on, and could not take one step."""
        return self.steps[row] == 0 and self.skipped[row] > 0

    def add(self, phase: str, rows: Rows, terms: Terms) -> None:
        """Count one step of some of the clients."""
        for name, term in terms.items():
            key, value = f"{phase}/{name}", term.detach()
            if key not in self.sums:
                self.sums[key] = value.new_zeros(self.clients)
                self.counts[key] = torch.zeros(self.clients, dtype=torch.int64)
            self.sums[key][rows] += value
            self.counts[key][rows] += 1

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
        optimisers = run_plan(stack, module.plan(), tally)
    uploads = [
        None if tally.idle(row) else stack.alone(row, module.upload, job.info)
        for row, job in enumerate(jobs)
    ]
    names = module.kept_names()
    kept = [
        {name: stack.state[name][row].clone() for name in names} | optimisers[row]
        for row in range(len(jobs))
    ]
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
    module, stack = context.module, Stack(context, jobs)
    personal = jobs[0].model == "personal"
    for row, job in enumerate(jobs):
        if job.broadcast is not None and personal:
            stack.alone(row, module.personalise, job.broadcast, job.info)
        elif job.broadcast is not None:
            stack.alone(row, module.generalise, job.broadcast)
    if personal and jobs[0].broadcast is not None:
        with context.isolated(jobs[0]):
            run_plan(stack, module.adapt(), StackedTally(len(jobs)))
    return evaluate(stack)


def evaluate(stack: Stack) -> list[Scores]:
    """Scores of all clients on the splits of their jobs; a split without samples is left out."""
    context, (first, *_) = stack.context, stack.jobs
    context.module.eval()
    found: dict[tuple[int, Split], Tensor] = {}
    for name in first.splits:
        if (splits := _splits(stack, name)) is None:
            continue
        logits, labels = [list[Tensor]() for _ in splits], [list[Tensor]() for _ in splits]
        with torch.inference_mode(), context.fabric.autocast():
            for group in walk(splits, context.data.eval_batch_size, stack.couples_samples()):
                outputs = stack.together(lambda own: context.module(own.x), group.rows, group.batch)
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
            for own, state in zip(kept, run_phase(stack, part, tally), strict=False):
                own |= state
        else:
            run_pass(stack, part)
    return kept


def run_pass(stack: Stack, part: Pass) -> None:
    """Walk once over the data, add up the statistic, and write what ``then`` makes of it."""
    context, totals = stack.context, dict[str, Tensor]()
    context.module.eval()
    if part.statistic is not None:
        size = part.batch_size or context.data.batch_size
        with context.fabric.autocast():
            for group in walk(stack.splits, size, stack.couples_samples()):
                sums = stack.together(part.statistic, group.rows, group.batch)
                for name, value in sums.items():
                    if name not in totals:
                        totals[name] = value.new_zeros(len(stack), *value.shape[1:])
                    totals[name][group.rows] += value.detach()
    for row, split in enumerate(stack.splits):
        if part.statistic is None or len(split):
            own = {name: value[row] for name, value in totals.items()}
            for name, value in stack.alone(row, part.then, own).items():
                stack.state[name][row].copy_(value)


def run_phase(stack: Stack, phase: Phase, tally: StackedTally) -> list[State]:
    """Train for one phase; returns the optimiser states of the clients that took steps, if kept.

    Raises:
        StoppedError: The run is ending.
    """
    context, module = stack.context, stack.context.module
    if (phase.epochs if phase.steps is None else phase.steps) == 0:
        return []
    pairs = zip(stack.jobs, stack.splits, strict=True)
    schedule = [list(batching.steps(context, job, phase, len(split))) for job, split in pairs]
    for row, (split, steps) in enumerate(zip(stack.splits, schedule, strict=True)):
        tally.skipped[row] += bool(len(split) and not steps)
    schedule = [steps for steps in schedule if steps]
    if not schedule:
        return []
    feed = StackedFeed(stack, phase, schedule)
    trained = prepare(context, phase)
    single = make_optimizer(module, phase, stack.jobs[0].info, trained)
    optimizer = StackedOptimizer(single, trained, stack, len(schedule), phase)
    objective = training_step(module, phase)

    def step(own: Batch) -> Terms:
        # What reads its place in the epoch does not run for several clients at once.
        return objective(feed.map_inputs(own), 0)

    apart = stack.couples_samples()
    for number in range(len(schedule[0])):
        if context.stop.is_set():
            raise StoppedError
        optimizer.keep_first(sum(len(steps) > number for steps in schedule))
        losses = []
        with context.fabric.autocast():
            for group in feed.groups(number, apart):
                terms = stack.together(step, group.rows, group.batch, optimizer.leaves)
                loss = terms.pop("loss")
                losses.append(loss.sum())
                tally.add(phase.name, group.rows, terms or {"loss": loss})
        context.fabric.backward(sum(losses[1:], losses[0]))
        optimizer.step(context.gradient_clip_val)
    for row, steps in enumerate(schedule):
        tally.steps[row] += len(steps)
        tally.samples[row] += sum(len(step.positions) for step in steps)
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
