"""Newcomers: held-out clients that join a trained federation, tested before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from pfl.core.data import CountedSplit, holders, info_of, members, others
from pfl.core.seeds import derive
from pfl.core.server import ServerState
from pfl.core.state import to
from pfl.core.types import Batch, Job, Pass, Phase, Scores, Split, State, Terms, Upload
from pfl.federation import soundness
from pfl.federation.evaluation import Evaluator
from pfl.federation.run import Row
from pfl.federation.settings import Settings
from pfl.training import client_round
from pfl.training.batching import chunks
from pfl.training.context import Context
from pfl.training.phases import Tally, run_phase
from pfl.training.server_round import Coordinator

ZERO_SHOT, JOINED, TUNED = "unseen", "unseen_joined", "unseen_tuned"


class Newcomers:
    """Lets held-out clients join as the method defines, and tests them; the run is unchanged.

    A newcomer gets what :meth:`pfl.core.server.Server.welcome` returns, introduces itself if the
    method declares how (:meth:`pfl.core.client.ClientModule.introduce`), and takes local rounds by
    the method's plan, with the same broadcast, no further upload and the learning rate of the last
    round. It is tested at the run's first point of evaluation. Before its first local round nothing
    else is trained on its data, even if the method tunes before a test; passes without training,
    such as IFCA's choice, do run.

    Attributes:
        clients: The clients whose scores are reported.
    """

    def __init__(
        self, settings: Settings, context: Context, coordinator: Coordinator, evaluator: Evaluator
    ) -> None:
        apart = others(context.data)
        self.clients, self._validation = apart.get("unseen", ()), apart.get("validation", ())
        self._settings, self._context = settings, context
        self._coordinator, self._evaluator = coordinator, evaluator

    def are_due(self, number: int, last: int) -> bool:
        """Return ``True`` if newcomers join after a round, of a run that ends with the last."""
        every = self._settings.unseen_every
        regular = every is not None and number % every == 0
        return bool(self.clients) and (number == last or regular)

    def evaluate(self, state: ServerState, seen: Mapping[str, float]) -> tuple[Row, list[Row]]:
        """Test all newcomers; return one row of summaries, and one row for each of them.

        Those without test samples are left out, with a warning. Gaps are relative to ``seen``, the
        mean scores of the clients that trained.
        """
        evaluator, data = self._evaluator, self._context.data
        clients = [client for client in self.clients if len(data.split(client, "test"))]
        soundness.warn_of_untested(sorted({*self.clients} - {*clients}))
        if not clients:
            return {}, []
        rows = evaluator.rows(clients, state.round)
        for of_client in rows.values():
            of_client["unseen"] = True
        jobs = {client: self.arrival(state, client) for client in clients}
        epochs = self._chosen_epochs(state)
        curves = {client: list(self._tuning(job, epochs or 0)) for client, job in jobs.items()}
        ends = {ZERO_SHOT: 0} | ({} if epochs is None else {TUNED: -1})
        tested: dict[str, dict[int, Scores]] = {
            group: {client: {"test": scores[end]} for client, scores in curves.items()}
            for group, end in ends.items()
        }
        curve = list(self._joining(jobs)) or [tested[ZERO_SHOT]]
        tested |= {f"{JOINED}_{number}": scores for number, scores in enumerate(curve[:-1], 1)}
        tested[JOINED] = curve[-1]
        row: Row = {}
        for group, scores in tested.items():
            row |= evaluator.collect(scores, group, rows)
        if epochs is not None:
            row["unseen/tuned_epochs"] = epochs
            row["unseen/hurt"] = hurt(list(rows.values()), *self._main)
        row |= self._gaps(state, row, seen)
        return row, list(rows.values())

    def arrival(self, state: ServerState, client: int) -> Job:
        """Return the job of a newcomer on its arrival."""
        coordinator, context = self._coordinator, self._context
        info = info_of(context.data, client, self._settings.rounds)
        info = replace(info, round=state.round)
        seed = derive(self._settings.seed, "join", state.round, client)
        job = self._welcomed(Job(info=info, kept={}, broadcast=None, seed=seed), state)
        # An introduction would bypass the steps of the uplink.
        if not coordinator.uplink and (upload := client_round.introduced(context, job)):
            job = self._welcomed(job, state, upload)
        return job

    def _welcomed(self, job: Job, state: ServerState, upload: Upload | None = None) -> Job:
        """Return the job of a newcomer with the server's answer."""
        context = self._context.of(job.info.client)
        broadcast, kept = self._coordinator.welcome(state, job.info, upload)
        kept = to(kept, context.fabric.device)
        job = replace(job, kept=kept, broadcast=broadcast)
        return replace(job, kept=kept | _norm_statistics(context, job))

    def joined(self, state: ServerState, client: int) -> Job:
        """Return the job of a newcomer after ``join_rounds`` local rounds."""
        jobs = {client: self.arrival(state, client)}
        for _ in self._joining(jobs):
            pass
        return jobs[client]

    def _joining(self, jobs: dict[int, Job]) -> Iterator[dict[int, Scores]]:
        """Run the local rounds of newcomers; update their jobs, and yield scores after each."""
        at_once = self._evaluator.points[0] == "post_local"
        splits: tuple[Split, ...] = ("test",) if at_once else ()
        for number in range(1, self._settings.join_rounds + 1):
            turn = [
                replace(job, seed=derive(job.seed, "round", number), splits=splits)
                for job in jobs.values()
            ]
            results = {result.client: result for result in self._settings.runner.train(turn)}
            for client, result in results.items():
                jobs[client] = replace(jobs[client], kept=result.kept)
            trained = {client: result.scores for client, result in results.items()}
            if not at_once:
                trained = self._evaluator.test([*jobs], jobs.__getitem__, ("test",))
            yield trained

    def _chosen_epochs(self, state: ServerState) -> int | None:
        """Return the epochs of tuning that are best for the validation clients, on average.

        Without validation clients, those that trained choose, as if they joined; ``None`` if their
        data are not available.
        """
        data, (main, more) = self._context.data, self._main
        clients = [
            client
            for client in self._validation or members(data)
            if len(split := data.split(client, "test")) and not isinstance(split, CountedSplit)
        ]
        if not clients:
            return None
        most = self._settings.tune_epochs
        curves = [
            [scores[main] for scores in self._tuning(self.arrival(state, client), most)]
            for client in clients
        ]
        means = torch.tensor(curves, dtype=torch.float64).mean(0)
        return int((means if more else -means).nan_to_num(-torch.inf).argmax())

    def _tuning(self, job: Job, epochs: int) -> Iterator[dict[str, float]]:
        """Yield the test scores of the zero-shot model, and after each epoch of SGD on all of it.

        The optimiser is plain SGD with the method's first learning rate.
        """
        client = job.info.client
        context = self._context.of(client)
        module, data = context.module, context.data
        job = replace(job, seed=derive(job.seed, "test"))
        untrained = [part for part in context.adapt if isinstance(part, Pass)]
        client_round.become_tested(context, job, untrained)
        rate = module.configure_optimizers().param_groups[0]["lr"]
        phase = Phase(
            name="tuned", objective=self._supervised, optimizer=partial(torch.optim.SGD, lr=rate)
        )
        # A phase uses its round's learning rate; here no schedule has started.
        fresh = replace(job, kept={}, info=replace(job.info, round=0))
        for epoch in range(epochs + 1):
            if epoch:
                turn = replace(fresh, seed=derive(job.seed, "tuned", epoch))
                with context.isolated(turn):
                    run_phase(context, turn, phase, data.split(client, "train"), Tally())
            answers = client_round.on_splits(context, client, ("test",))
            (scores,) = client_round.scored(context.scorer, [answers])
            yield scores["test"]

    def _supervised(self, batch: Batch) -> Terms:
        module = self._context.module
        return module.supervised(module(batch.x), batch)

    def _gaps(self, state: ServerState, row: Row, seen: Mapping[str, float]) -> Row:
        """Return the gaps of Yuan et al. (2110.14216), positive where unseen data do worse.

        ``gap/sample`` is the training minus the test score of the members' personal models,
        ``gap/participation`` the members' personal score minus the newcomers' after joining.
        """
        main, more = self._main
        sign = 1 if more else -1
        personal, joined = seen.get(f"test/personal/{main}"), f"test/{JOINED}/{main}"
        gaps: Row = {}
        if personal is not None and joined in row:
            gaps["gap/participation"] = sign * (personal - row[joined])
            reached = [k for k, name in enumerate(self.curve) if sign * (row[name] - personal) >= 0]
            gaps |= {"unseen/rounds_to_seen": min(reached)} if reached else {}
        tested, job = self._evaluator.test, partial(self._evaluator.job, state)
        scores = tested(holders(self._context.data, "train", "test"), job, ("train", "test"))
        # A site that did not answer has no scores.
        both = [one for one in scores.values() if {"train", "test"} <= one.keys()]
        apart = [one["train"][main] - one["test"][main] for one in both]
        return gaps | ({"gap/sample": sign * sum(apart) / len(apart)} if apart else {})

    @property
    def curve(self) -> list[str]:
        """Columns of the main score: zero-shot, and after each local round."""
        main, rounds = self._main[0], self._settings.join_rounds
        between = [f"{JOINED}_{k}" for k in range(1, rounds)]
        groups = [ZERO_SHOT, *between, *([JOINED] if rounds else [])]
        return [f"test/{group}/{main}" for group in groups]

    @property
    def _main(self) -> tuple[str, bool]:
        """The main score, and whether more of it is better."""
        return next(iter(self._context.scorer.better.items()))


def hurt(rows: Sequence[Mapping[str, Any]], score: str, more: bool) -> float:
    """Return the share of clients whose score was strictly better before tuning than after."""
    names = f"test/{ZERO_SHOT}/{score}", f"test/{TUNED}/{score}"
    pairs = [[float(row[name]) for name in names] for row in rows]
    worse = [before > after if more else before < after for before, after in pairs]
    return sum(worse) / len(worse)


def _norm_statistics(context: Context, job: Job) -> State:
    """Measure the statistics of the batch norms that a newcomer keeps, in one pass over its data.

    Their initial values fit no data. Batches of one sample are left out.
    """
    module, data = context.module, context.data
    kept = set(module.kept_names(job.info))
    norms = {
        name: norm
        for name, norm in module.named_modules()
        if isinstance(norm, _BatchNorm) and f"{name}.running_mean" in kept
        # Frozen copies keep the statistics of the network that they copy.
        if name in context.batch_norms
    }
    split = data.split(job.info.client, "train")
    if not norms or len(split) < 2:
        return {}
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
