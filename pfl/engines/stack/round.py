"""A round and a test of several clients at once; :mod:`pfl.training.client_round` runs one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pfl.core.data import ClientSplit
from pfl.core.types import Batch, Job, Result, Scores
from pfl.engines.stack.stack import Stack, walk
from pfl.engines.stack.tally import StackedTally
from pfl.engines.stack.training import run_plan
from pfl.training import client_round
from pfl.training.context import Context
from pfl.training.metrics import Answer, Collector


def train(context: Context, jobs: Sequence[Job]) -> list[Result]:
    """Run the rounds of several clients, in descending order of their training samples.

    All use the network of the context.
    """
    module, stack, tally = context.module, Stack(context, jobs), StackedTally(len(jobs))
    for row, job in enumerate(jobs):
        stack.alone(row, client_round.begin, module, job)
    optimisers = run_plan(stack, context.plan, tally)
    messages = [
        stack.alone(row, client_round.finish, module, job, tally.clients[row], optimisers[row])
        for row, job in enumerate(jobs)
    ]
    means = tally.terms.values(), tally.logged.values()
    return client_round.results(context, jobs, messages, tally.clients, *means, evaluate(stack))


def test(context: Context, jobs: Sequence[Job]) -> list[Scores]:
    """Test several clients' models, either all personalised or all global."""
    return evaluate(tested(context, jobs))


def tested(context: Context, jobs: Sequence[Job]) -> Stack:
    """Return a stack of the models that the jobs test."""
    stack = Stack(context, jobs)
    for row, job in enumerate(jobs):
        stack.alone(row, client_round.load_tested, context.module, job)
    if jobs[0].adapts:
        run_plan(stack, context.adapt, StackedTally(len(jobs)))
    return stack


def evaluate(stack: Stack) -> list[Scores]:
    """Score all clients on the splits of their jobs."""
    return list(client_round.scored(stack.context.scorer, answers(stack)))


def answers(stack: Stack) -> list[client_round.Answers]:
    """Return all clients' answers on the splits of their jobs; one without samples is left out."""
    by_row = [client_round.Answers() for _ in stack.jobs]
    for name in stack.jobs[0].splits:
        splits = [client_round.split_of(stack.context, j.info.client, name) for j in stack.jobs]
        with torch.inference_mode():
            # The common test set exists for all clients or for none.
            for row, answer in outputs(stack, [s for s in splits if s is not None]).items():
                by_row[row][name] = answer
    return by_row


def outputs(stack: Stack, splits: Sequence[ClientSplit]) -> dict[int, Answer]:
    """Return what scores need of the outputs by row, for clients whose split has samples."""
    context = stack.context
    context.set_mode(None)

    def forward(batch: Batch) -> Tensor:
        logits: Tensor = context.module(batch.x)
        return logits

    held: dict[int, Collector] = {}
    with context.fabric.autocast():
        for group in walk(splits, context.data.eval_batch_size, context.couples_samples(None)):
            logits = stack.together(forward, group.rows, group.batch, draws="same")
            for (row, size), z, y in zip(group.sizes.items(), logits, group.batch.y, strict=True):
                if size:
                    held.setdefault(row, Collector(context.scorer)).add(z[:size], y[:size])
    return {row: collector.answer() for row, collector in sorted(held.items())}
