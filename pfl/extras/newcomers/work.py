"""What a client computes when it joins, besides its local rounds: jobs of the run's engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from torch.nn.modules.batchnorm import _BatchNorm

from pfl.core.failure import during
from pfl.core.seeds import derive
from pfl.core.types import (
    Batch,
    ClientInfo,
    ClientWork,
    Job,
    Pass,
    Phase,
    Result,
    Scores,
    State,
    Terms,
    Upload,
)
from pfl.training import client_round
from pfl.training.batching import chunks
from pfl.training.context import Context
from pfl.training.phases import Tally


@dataclass(frozen=True)
class Arrival(ClientWork):
    """Measures the batch norms that a newcomer keeps, and runs its introduction.

    Attributes:
        introduces: Whether it introduces itself, if the method declares how.
    """

    introduces: bool

    def does(self, context: Context, info: ClientInfo) -> bool:
        """Return whether there is anything to do."""
        introduces = self.introduces and bool(context.declared("introduce"))
        return introduces or bool(_kept_norms(context, info))

    def done(self, context: Context, job: Job) -> Result:
        """Return the statistics, as what it keeps, and its upload."""
        statistics = _norm_statistics(context, job)
        job = replace(job, kept=job.kept | statistics)
        upload = _introduced(context, job) if self.introduces else None
        return Result(job.info.client, upload, statistics, train={}, steps=0, samples=0)


@dataclass(frozen=True)
class Tuning(ClientWork):
    """Tunes a newcomer's zero-shot model by plain SGD on all its entries, and tests it.

    The learning rate is the method's first. Before the first test only passes without training run.

    Attributes:
        epochs: Number of epochs.
    """

    epochs: Annotated[int, Field(ge=0)]

    def done(self, context: Context, job: Job) -> Result:
        """Return the scores of the zero-shot model, and after each epoch, as its course."""
        course = [*self._course(context, replace(job, seed=derive(job.seed, "test")))]
        return Result(job.info.client, None, {}, train={}, steps=0, samples=0, course=course)

    def _course(self, context: Context, job: Job) -> Iterator[Scores]:
        module = context.module
        untrained = [part for part in context.adapt if isinstance(part, Pass)]
        client_round.become_tested(context, job, untrained)
        optimizer = None
        if not module.net_optimizes:
            rate = module.configure_optimizers().param_groups[0]["lr"]
            optimizer = partial(torch.optim.SGD, lr=rate)
        tested = [n for n, net in context.own_nets.items() if net is module.tested_net]
        trains = tuple(f"{name}.*" for name in tested) or ("*",)
        model = module.tested_net if context.own_nets else module

        def supervised(batch: Batch) -> Terms:
            return module.objective(model, batch)

        phase = Phase(name="tuned", objective=supervised, trains=trains, optimizer=optimizer)
        # A phase uses its round's learning rate; here no schedule has started.
        fresh = replace(job, kept={}, info=replace(job.info, round=0))
        for epoch in range(self.epochs + 1):
            if epoch:
                turn = replace(fresh, seed=derive(job.seed, "tuned", epoch))
                with context.isolated(turn):
                    client_round.run_plan(context, turn, [phase], Tally())
            answers = client_round.on_splits(context, job.info.client, job.splits)
            yield from client_round.scored(context.scorer, [answers])


def _introduced(context: Context, job: Job) -> Upload | None:
    """Return the upload after a newcomer's introduction; ``None`` if the method declares none."""
    tally = Tally()
    if not (plan := context.declared("introduce")):
        return None
    with during(f"the introduction of client {job.info.client}"), context.isolated(job):
        context.load(job.kept)
        with torch.no_grad():
            client_round.begin(context.module, job)
        client_round.run_plan(context, job, plan, tally)
        with torch.no_grad():
            return None if tally.idle else context.module.upload(job.info)


def _kept_norms(context: Context, info: ClientInfo) -> dict[str, _BatchNorm]:
    """Return the batch norms whose statistics a newcomer keeps, if it has data to measure them."""
    kept = set(context.module.kept_names(info))
    if len(context.data.split(info.client, "train")) < 2:
        return {}
    return {
        name: norm
        for name, norm in context.module.named_modules()
        if isinstance(norm, _BatchNorm) and f"{name}.running_mean" in kept
        # Frozen copies keep the statistics of the network that they copy.
        if name in context.batch_norms
    }


def _norm_statistics(context: Context, job: Job) -> State:
    """Measure the statistics of the batch norms that a newcomer keeps, in one pass over its data.

    Their initial values fit no data. Batches of one sample are left out.
    """
    module, data, norms = context.module, context.data, _kept_norms(context, job.info)
    if not norms:
        return {}
    split = data.split(job.info.client, "train")
    context.load(job.kept)
    momentum = {name: norm.momentum for name, norm in norms.items()}
    with torch.no_grad(), context.fabric.autocast(), context.isolated(job):
        if job.broadcast is not None:
            module.personalise(job.broadcast, job.info)
        context.set_mode(None)
        for norm in norms.values():
            norm.reset_running_stats()
            # The statistics are then plain means over the batches.
            norm.momentum = None
            norm.train()
        for positions in chunks(len(split), data.batch_size):
            if len(positions) > 1:
                module(split.batch(positions).x)
    for name, norm in norms.items():
        norm.momentum = momentum[name]
    context.set_mode(None)
    ends = ("running_mean", "running_var", "num_batches_tracked")
    return {f"{n}.{end}": context.entries[f"{n}.{end}"].clone() for n in norms for end in ends}
