"""One client's round and one client's test, as functions of a Job.

They define what every engine computes: the sequential engine calls them, and the others must give
the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pfl.core.client import ClientModule
from pfl.core.data import ClientSplit
from pfl.core.failure import during
from pfl.core.state import clone, each_sound, entry
from pfl.core.types import Job, Pass, Phase, Plan, Result, Scores, Split, State, Upload
from pfl.training import own_steps
from pfl.training.batching import chunks, read
from pfl.training.context import Context
from pfl.training.metrics import HELD_NUMBERS, Collector, Scorer
from pfl.training.own_scores import OwnScorer
from pfl.training.phases import Tally, rule_of, run_phase
from pfl.training.received import must_be_moderate
from pfl.training.structure import Mark
from pfl.training.uplink import sent

# What is held of one model's outputs and targets, by split; or its scores, if it has taken them.
Answers: TypeAlias = dict[Split, Any]


def train(context: Context, job: Job) -> Result:
    """Run one client's round, or the work in its place.

    Raises:
        TypeError: The module's optimiser configuration is not a single optimiser.
    """
    module, tally = context.module, Tally()
    with during("", [job]):
        if job.work is not None:
            return job.work.done(context, job)
        with context.isolated(job):
            context.load(job.kept)
            with torch.no_grad():
                begin(module, job)
            optimisers = run_plan(context, job, context.plan, tally)
        context.check_forms(job.info)
        with torch.no_grad():
            message = finish(module, job, tally, optimisers)
        scores = scored(context.scorer, [on_splits(context, job.info.client, job.splits)])
        means = [tally.terms.values()], [tally.logged.values()]
        (result,) = results(context, [job], [message], [tally], *means, scores)
    return result


def begin(module: ClientModule, job: Job) -> None:
    """Begin a client's round: receive the broadcast."""
    if job.broadcast is not None:
        module.receive(job.broadcast, job.info)


def finish(
    module: ClientModule, job: Job, tally: Tally, optimisers: State
) -> tuple[Upload | None, State]:
    """Return a client's upload and kept state after training; turn into the model of its test.

    Args:
        module: With the client's entries.
        job: The job.
        tally: The client's tally; an idle client uploads nothing.
        optimisers: The optimisers' states that it keeps; those of skipped phases stay too.
    """
    upload = None if tally.idle else module.upload(job.info)
    kept = clone({name: entry(module, name) for name in module.kept_names(job.info)})
    if job.splits and not tally.idle:
        module.personalise(None, job.info)
    # What optimisers and steps of the uplink keep has a colon, as no entry of a module has.
    beside = {name: value for name, value in job.kept.items() if ":" in name}
    return upload, kept | beside | optimisers


def results(
    context: Context,
    jobs: Sequence[Job],
    messages: Sequence[tuple[Upload | None, State]],
    tallies: Sequence[Tally],
    terms: Sequence[dict[str, float]],
    logged: Sequence[dict[str, float]],
    scores: Iterable[Scores],
) -> list[Result]:
    """Return the results of some jobs, from each client's output, tally and numbers."""
    kept = [kept for _, kept in messages]
    travels = [must_be_moderate(one, context.module) if one else {} for one, _ in messages]
    columns = (jobs, messages, tallies, terms, logged, scores, each_sound(kept, travels))
    made = []
    for job, (upload, own), tally, losses, numbers, of_splits, sound in zip(*columns, strict=True):
        rule = rule_of(context, job)
        result = Result(
            client=job.info.client,
            upload=upload,
            kept=own,
            train=losses,
            steps=tally.steps,
            samples=tally.samples,
            scores=of_splits,
            finite=sound and rule.sound(losses),
            logged=numbers,
            drawn=tally.drawn,
        )
        made.append(sent(job.steps, job, result, rule.final) if job.steps else result)
    return made


def test(context: Context, job: Job) -> Scores:
    """Test one client's personalised model, or the global one, on the job's splits."""
    (scores,) = scored(context.scorer, [answers(context, job)])
    return scores


def answers(context: Context, job: Job) -> Answers:
    """Return the outputs and targets on the job's splits, of the model that the job tests."""
    return next(all_answers(lambda client: context, [job]))


def all_answers(of: Callable[[int], Context], jobs: Iterable[Job]) -> Iterator[Answers]:
    """Yield the answers of several jobs; a global model that they share is loaded once.

    Args:
        of: Returns a client's context.
        jobs: The jobs.
    """
    shared: tuple[Context, Job, Mark] | None = None
    for job in jobs:
        own = of(job.info.client)
        # A network may change its entries in a test, which the next client must not see.
        if not (
            shared is not None
            and own is shared[0]
            and _shares_model(shared[1], job)
            and shared[2].holds
        ):
            become_tested(own, job)
            shared = (own, job, own.mark()) if job.model == "global" else None
        with during("the test", [job]):
            answers = on_splits(own, job.info.client, job.splits)
        yield answers


def _shares_model(one: Job, other: Job) -> bool:
    """Return ``True`` if two jobs test the same global model, without any client's state."""
    if {one.model, other.model} != {"global"} or one.kept or other.kept:
        return False
    sent, again = one.broadcast, other.broadcast
    if sent is None or again is None or sent.extra or again.extra:
        return False
    return sent.shared is again.shared


def scored(scorer: Scorer, answers: Iterable[Answers]) -> Iterator[Scores]:
    """Score the answers of several models, many at once; yield the scores in the same order."""
    if isinstance(scorer, OwnScorer):
        # Its own steps have taken them.
        yield from answers
        return
    held, size = list[Answers](), 0
    for splits in answers:
        held.append(splits)
        size += sum(answer[0].nelement() for answer in splits.values())
        if size > HELD_NUMBERS:
            yield from _scored(scorer, held)
            held, size = [], 0
    yield from _scored(scorer, held)


def _scored(scorer: Scorer, answers: Sequence[Answers]) -> list[Scores]:
    rows = iter(scorer.scores([model for splits in answers for model in splits.values()]))
    return [{name: next(rows) for name in splits} for splits in answers]


def become_tested(context: Context, job: Job, adapt: Plan | None = None) -> None:
    """Turn the module into the model that a job tests; ``adapt`` replaces the method's plan."""
    with during("before the test", [job]), context.isolated(job):
        context.load(job.kept)
        with torch.no_grad():
            load_tested(context.module, job)
        if job.adapts:
            run_plan(context, job, context.adapt if adapt is None else adapt, Tally())


def load_tested(module: ClientModule, job: Job) -> None:
    """Turn a module with a client's kept entries into the tested model, before it adapts."""
    if job.adapts:
        module.personalise(job.broadcast, job.info)
    elif job.broadcast is not None:
        module.load_global(job.broadcast)


def on_splits(context: Context, client: int, splits: tuple[Split, ...]) -> Answers:
    """Return the module's current answers; a split without samples is left out."""
    answers, scorer = Answers(), context.scorer
    found = {name: split_of(context, client, name) for name in splits}
    held = {name: split for name, split in found.items() if split is not None and len(split)}
    if isinstance(scorer, OwnScorer):
        return scorer.measure(held)
    for name, split in held.items():
        with torch.inference_mode():
            # Batches have the network's precision; scores use the targets as read.
            collector = Collector(scorer, partial(getattr, split, "targets"))
            for batch in _batches(context, split):
                collector.add(*batch)
            answers[name] = collector.answer()
    return answers


def split_of(context: Context, client: int, name: Split) -> ClientSplit | None:
    """Return a client's split; ``None`` if it is the common test set and there is none."""
    data = context.data
    return data.pooled_test() if name == "pooled" else data.split(client, name)


def outputs(context: Context, split: ClientSplit) -> tuple[Tensor, Tensor]:
    """Return (n, D, ...) outputs and (n, ...) targets of a split that has samples."""
    outputs, y = (torch.cat(parts) for parts in zip(*_batches(context, split), strict=True))
    return outputs, split.targets if y.is_floating_point() else y


def _batches(context: Context, split: ClientSplit) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the outputs and targets of each batch of a split."""
    context.set_mode(None)
    with context.fabric.autocast():
        for positions in chunks(len(split), context.data.eval_batch_size):
            batch = split.batch(positions)
            yield context.module(batch.x), batch.y


def run_plan(context: Context, job: Job, plan: Plan, tally: Tally) -> State:
    """Run phases and passes in order; return the optimiser state that the client keeps."""
    kept: State = {}
    for part in plan:
        split = context.samples_of(part, job.info, context.entries if part.subset else {})
        with during(part.label):
            if not isinstance(part, Phase):
                run_pass(context, job, part, split, tally)
            elif context.own_nets and (net := own_steps.of_phase(context, part)) is not None:
                kept |= own_steps.run_phase(context, job, part, split, tally, net)
            else:
                kept |= run_phase(context, job, part, split, tally)
    return kept


def takes_part(part: Pass, entries: State, job: Job, split: ClientSplit) -> bool:
    """Return ``True`` if a client with these entries and samples takes part in a pass."""
    with torch.no_grad():
        wanted = part.when is None or part.when(entries, job.info)
    return wanted and (len(split) > 0 or not part.walks)


def run_pass(context: Context, job: Job, part: Pass, split: ClientSplit, tally: Tally) -> None:
    """Walk over the data once, sum the statistic, and write the entries that ``then`` returns."""
    if not takes_part(part, context.entries if part.when else {}, job, split):
        return
    context.set_mode(None)
    sums: State = {}
    if part.walks:
        for positions in chunks(len(split), context.data.batch_size):
            with context.fabric.autocast():
                batch = read(split, positions)
                added = part.statistic(batch) if part.statistic else {}
                tally.collect(part.collect(batch) if part.collect else {})
            for name, value in added.items():
                sums[name] = sums[name] + value.detach() if name in sums else value.detach()
    with torch.no_grad():
        context.write(part.then(tally.totals(sums)))
