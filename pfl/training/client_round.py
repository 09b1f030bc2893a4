"""One client's round and one client's test, as functions of a Job.

Every engine computes this: the sequential engine calls these functions, and the others must give
the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from pfl.core.failure import at_work, during
from pfl.core.state import clone, finite
from pfl.core.types import (
    ClientInfo,
    ClientSplit,
    Job,
    Pass,
    Phase,
    Plan,
    Result,
    Scores,
    Split,
    State,
)
from pfl.training import batching
from pfl.training.batching import chunks
from pfl.training.context import Context
from pfl.training.metrics import Scorer
from pfl.training.optimizer_state import of_all_phases
from pfl.training.phases import Tally, run_phase

# Outputs (n, D) and targets (n, ...) of one model, by split.
Answers: TypeAlias = dict[Split, tuple[Tensor, Tensor]]

HELD_NUMBERS = 2**22
"""Largest number of outputs that are collected before they are scored."""


def train(context: Context, job: Job) -> Result:
    """Run one client's round.

    Raises:
        TypeError: The module's optimiser configuration is not a single optimiser.
    """
    with during(at_work([job])):
        return _train(context, job)


def _train(context: Context, job: Job) -> Result:
    module, info = context.module, job.info
    tally = Tally()
    with context.isolated(job):
        context.load(job.kept)
        if job.broadcast is not None:
            with torch.no_grad():
                module.receive(job.broadcast, info)
        optimisers = of_all_phases(job.kept) | run_plan(context, job, context.plan, tally)
    with torch.no_grad():
        upload = None if tally.idle else module.upload(info)
        names = module.kept_names(info)
        kept = clone({name: context.entries[name] for name in names}) | optimisers
        if job.splits and not tally.idle:
            module.personalise(None, info)
    means = tally.terms.values()
    sound = finite(kept) and all(v - v == 0 for v in means.values())
    if upload is not None:
        # The extra part of an upload may be non-finite; the method's own server handles it.
        sound = sound and finite(upload.shared)
    (scores,) = scored(context.scorer, [on_splits(context, info.client, job.splits)])
    return Result(
        client=info.client,
        upload=upload,
        kept=kept,
        train=means,
        steps=tally.steps,
        samples=tally.samples,
        scores=scores,
        finite=sound,
        logged=tally.logged.values(),
    )


def test(context: Context, job: Job) -> Scores:
    """Test one client's personalised model, or the global one, on the job's splits."""
    (scores,) = scored(context.scorer, [answers(context, job)])
    return scores


def answers(context: Context, job: Job) -> Answers:
    """Return the outputs and targets on the job's splits, of the model that the job tests."""
    become_tested(context, job)
    with during(f"{at_work([job])}, the test"):
        return on_splits(context, job.info.client, job.splits)


def all_answers(context: Context, jobs: Iterable[Job]) -> Iterator[Answers]:
    """Yield the answers of several jobs; a global model that they share is loaded once."""
    loaded: Job | None = None
    for job in jobs:
        if loaded is None or not _shares_model(loaded, job):
            become_tested(context, job)
        loaded = job
        with during(f"{at_work([job])}, the test"):
            found = on_splits(context, job.info.client, job.splits)
        yield found


def _shares_model(one: Job, other: Job) -> bool:
    """Return ``True`` if two jobs test the same global model, without any client's state."""
    if {one.model, other.model} != {"global"} or one.kept or other.kept:
        return False
    sent, again = one.broadcast, other.broadcast
    if sent is None or again is None or sent.extra or again.extra:
        return False
    return sent.shared is again.shared


def scored(scorer: Scorer, found: Iterable[Answers]) -> Iterator[Scores]:
    """Score the answers of several models, many at once; yield the scores in the same order."""
    held, size = list[Answers](), 0
    for own in found:
        held.append(own)
        size += sum(outputs.nelement() for outputs, _ in own.values())
        if size > HELD_NUMBERS:
            yield from _scored(scorer, held)
            held, size = [], 0
    yield from _scored(scorer, held)


def _scored(scorer: Scorer, found: Sequence[Answers]) -> list[Scores]:
    rows = iter(scorer.scores([model for own in found for model in own.values()]))
    return [{name: next(rows) for name in own} for own in found]


def become_tested(context: Context, job: Job) -> None:
    """Turn the module into the model that a job tests."""
    module = context.module
    with during(f"{at_work([job])}, before the test"), context.isolated(job):
        context.load(job.kept)
        if job.broadcast is not None and job.model == "global":
            with torch.no_grad():
                module.load_global(job.broadcast)
        elif job.broadcast is not None:
            with torch.no_grad():
                module.personalise(job.broadcast, job.info)
            run_plan(context, job, context.adapt, Tally())


def on_splits(context: Context, client: int, splits: tuple[Split, ...]) -> Answers:
    """Return the module's current answers; a split without samples is left out."""
    data, found = context.data, Answers()
    for name in splits:
        split = data.pooled_test() if name == "pooled" else data.split(client, name)
        if split is None or len(split) == 0:
            continue
        with torch.inference_mode():
            found[name] = outputs(context, split)
    return found


def outputs(context: Context, split: ClientSplit) -> tuple[Tensor, Tensor]:
    """Return (n, D) outputs and (n, ...) targets of a split that has samples."""
    logits, labels = [], []
    context.set_mode(None)
    with context.fabric.autocast():
        for positions in chunks(len(split), context.data.eval_batch_size):
            batch = split.batch(positions)
            logits.append(context.module(batch.x))
            labels.append(batch.y)
    return torch.cat(logits), torch.cat(labels)


def samples_seen(context: Context, info: ClientInfo) -> int:
    """Return an approximate upper bound of the samples that a client sees in one round of training.

    The lengths of phases are computed with the module's current entries.
    """
    seen = 0.0
    for part in context.plan:
        if isinstance(part, Phase):
            length = batching.length(part, context.entries, info)
            size = part.batch_size or context.data.batch_size
            walks = length.epochs * part.share * info.samples
            seen += walks if length.steps is None else length.steps * min(size, info.samples)
    return int(seen)


def run_plan(context: Context, job: Job, plan: Plan, tally: Tally) -> State:
    """Run phases and passes in order; return the optimiser state that the client keeps."""
    kept: State = {}
    split = context.data.split(job.info.client, "train")
    for part in plan:
        with during(part.label):
            if isinstance(part, Phase):
                kept |= run_phase(context, job, part, split, tally)
            else:
                run_pass(context, job, part, split, tally)
    return kept


def run_pass(context: Context, job: Job, part: Pass, split: ClientSplit, tally: Tally) -> None:
    """Walk over the data once, sum the statistic, and write the entries that ``then`` returns."""
    with torch.no_grad():
        if part.when is not None and not part.when(context.entries, job.info):
            return
    if part.walks and len(split) == 0:
        return
    context.set_mode(None)
    sums: State = {}
    if part.walks:
        for positions in chunks(len(split), context.data.batch_size):
            with context.fabric.autocast():
                batch = split.batch(positions)
                found = part.statistic(batch) if part.statistic else {}
                tally.collect(part.collect(batch) if part.collect else {})
            for name, value in found.items():
                sums[name] = sums[name] + value.detach() if name in sums else value.detach()
    with torch.no_grad():
        context.write(part.then(tally.totals(sums)))
