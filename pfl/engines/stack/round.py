"""A round and a test of several clients at once; :mod:`pfl.training.client_round` runs one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pfl.core.state import finite, together
from pfl.core.types import (
    Batch,
    ClientSplit,
    Job,
    Result,
    Scores,
    Split,
    State,
)
from pfl.engines.stack.stack import Stack, walk
from pfl.engines.stack.tally import StackedTally
from pfl.engines.stack.training import run_plan
from pfl.training.context import Context
from pfl.training.optimizer_state import of_all_phases


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
    kept = [
        {name: stack.state[name][row].clone() for name in module.kept_names(job.info)}
        | of_all_phases(job.kept)
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
    means, logged, scores = tally.terms.values(), tally.logged.values(), evaluate(stack)
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
            logged=logged[row],
        )
        for row, job in enumerate(jobs)
    ]


def test(context: Context, jobs: Sequence[Job]) -> list[Scores]:
    """Test several clients' models, either all personalised or all global."""
    return evaluate(tested(context, jobs))


def tested(context: Context, jobs: Sequence[Job]) -> Stack:
    """Return a stack of the models that the jobs test."""
    module, stack = context.module, Stack(context, jobs)
    personal = jobs[0].model == "personal"
    for row, job in enumerate(jobs):
        if job.broadcast is not None and personal:
            stack.alone(row, module.personalise, job.broadcast, job.info)
        elif job.broadcast is not None:
            stack.alone(row, module.load_global, job.broadcast)
    if personal and jobs[0].broadcast is not None:
        with context.isolated(jobs[0]):
            run_plan(stack, context.adapt, StackedTally(len(jobs)))
    return stack


def evaluate(stack: Stack) -> list[Scores]:
    """Score all clients on the splits of their jobs; a split without samples is left out."""
    found: dict[tuple[int, Split], tuple[Tensor, Tensor]] = {}
    for name in stack.jobs[0].splits:
        if (splits := _splits(stack, name)) is None:
            continue
        with torch.inference_mode():
            for row, own in outputs(stack, splits).items():
                found[row, name] = own
    scores: list[Scores] = [{} for _ in stack.jobs]
    values = stack.context.scorer.scores(list(found.values()))
    for (row, name), own_scores in zip(found, values, strict=True):
        scores[row][name] = own_scores
    return scores


def outputs(stack: Stack, splits: Sequence[ClientSplit]) -> dict[int, tuple[Tensor, Tensor]]:
    """Return (n, D) outputs and (n, ...) targets by row, for clients whose split has samples."""
    context = stack.context
    context.set_mode(None)

    def forward(batch: Batch) -> Tensor:
        logits: Tensor = context.module(batch.x)
        return logits

    parts: dict[int, list[tuple[Tensor, Tensor]]] = {}
    with context.fabric.autocast():
        for group in walk(splits, context.data.eval_batch_size, stack.couples_samples()):
            found = stack.together(forward, group.rows, group.batch, draws="same")
            for (row, size), z, y in zip(group.sizes.items(), found, group.batch.y, strict=True):
                parts.setdefault(row, []).append((z[:size], y[:size]))
    return {row: own[0] if len(own) == 1 else _joined(own) for row, own in sorted(parts.items())}


def _joined(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([z for z, _ in parts]), torch.cat([y for _, y in parts])


def _splits(stack: Stack, name: Split) -> list[ClientSplit] | None:
    """Return each client's split; ``None`` if the common test set is asked for and missing."""
    data = stack.context.data
    if name != "pooled":
        return [data.split(job.info.client, name) for job in stack.jobs]
    pooled = data.pooled_test()
    return None if pooled is None else [pooled] * len(stack)


def _finite(states: Sequence[State]) -> list[bool]:
    """Return for each state whether all numbers are finite (one synchronisation if all are)."""
    sums = [
        sum((value.sum().float() for value in state.values()), start=torch.zeros(()))
        for state in states
    ]
    told = together(sums).isfinite().tolist()
    return [sound or finite(state) for sound, state in zip(told, states, strict=True)]
