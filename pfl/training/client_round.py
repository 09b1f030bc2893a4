"""One client's round and one client's test, as functions of a Job.

This is what every engine computes; the sequential engine calls it as it stands, and the others are
held to its numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pfl.core.state import clone, finite
from pfl.core.types import ClientSplit, Job, Pass, Phase, Plan, Result, Scores, Split, State
from pfl.training.batching import chunks
from pfl.training.context import Context
from pfl.training.optimizer_state import of_all_phases
from pfl.training.phases import Tally, run_phase


def train(context: Context, job: Job) -> Result:
    """Run one client's round.

    Raises:
        TypeError: The module's optimiser configuration is not a single optimiser.
    """
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
        # What a method sends besides its weights is for its own server to judge.
        sound = sound and finite(upload.shared)
    return Result(
        client=info.client,
        upload=upload,
        kept=kept,
        train=means,
        steps=tally.steps,
        samples=tally.samples,
        scores=evaluate(context, info.client, job.splits),
        finite=sound,
        logged=tally.logged.values(),
    )


def test(context: Context, job: Job) -> Scores:
    """Test one client's personalised model, or the global one, on the job's splits."""
    become_tested(context, job)
    return evaluate(context, job.info.client, job.splits)


def become_tested(context: Context, job: Job) -> None:
    """Leave the module as the model that a job tests."""
    module = context.module
    with context.isolated(job):
        context.load(job.kept)
        if job.broadcast is not None and job.model == "global":
            with torch.no_grad():
                module.load_global(job.broadcast)
        elif job.broadcast is not None:
            with torch.no_grad():
                module.personalise(job.broadcast, job.info)
            run_plan(context, job, context.adapt, Tally())


def evaluate(context: Context, client: int, splits: tuple[Split, ...]) -> Scores:
    """Scores of the module as it stands; a split without samples is left out."""
    data, found = context.data, dict[Split, tuple[Tensor, Tensor]]()
    for name in splits:
        split = data.pooled_test() if name == "pooled" else data.split(client, name)
        if split is None or len(split) == 0:
            continue
        with torch.inference_mode():
            found[name] = outputs(context, split)
    scores = context.scorer.scores(list(found.values()))
    return dict(zip(found, scores, strict=True))


def outputs(context: Context, split: ClientSplit) -> tuple[Tensor, Tensor]:
    """Return outputs (n, D) and targets (n, ...) of a split that has samples."""
    logits, labels = [], []
    context.module.eval()
    for positions in chunks(len(split), context.data.eval_batch_size):
        with context.fabric.autocast():
            batch = split.batch(positions)
            logits.append(context.module(batch.x))
        labels.append(batch.y)
    return torch.cat(logits), torch.cat(labels)


def run_plan(context: Context, job: Job, plan: Plan, tally: Tally) -> State:
    """Run phases and passes in order; returns optimiser state that is to be kept."""
    kept: State = {}
    split = context.data.split(job.info.client, "train")
    for part in plan:
        if isinstance(part, Phase):
            kept |= run_phase(context, job, part, split, tally)
        else:
            run_pass(context, job, part, split, tally)
    return kept


def run_pass(context: Context, job: Job, part: Pass, split: ClientSplit, tally: Tally) -> None:
    """Walk once over the data, add up the statistic, and write what ``then`` makes of it."""
    with torch.no_grad():
        if part.when is not None and not part.when(context.entries, job.info):
            return
    if part.walks and len(split) == 0:
        return
    context.module.eval()
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
