"""How newcomers join a trained federation, tested before and after."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from pfl.core.data import CountedSplit, holders, info_of, members, others
from pfl.core.failure import clients_text, during
from pfl.core.seeds import derive
from pfl.core.server import Server, ServerState
from pfl.core.sheet import Sheet
from pfl.core.state import to
from pfl.core.types import (
    Batch,
    Broadcast,
    ClientInfo,
    Job,
    Pass,
    Phase,
    Scores,
    Split,
    State,
    Terms,
    Upload,
)
from pfl.extras.newcomers.shown import (
    JOINED,
    TUNED,
    UNSEEN,
    VALIDATION,
    ZERO_SHOT,
    curve,
    tables,
)
from pfl.federation.evaluation import Measurement
from pfl.federation.evaluator import Evaluated, Evaluator
from pfl.federation.run import Row
from pfl.training import client_round
from pfl.training.batching import chunks
from pfl.training.context import Context
from pfl.training.declaration import MethodError
from pfl.training.phases import Tally
from pfl.training.server_round import Coordinator


class Joining(Measurement):
    """Lets held-out clients join as the method defines, and tests them; the run is unchanged.

    A newcomer gets what :meth:`pfl.core.server.Server.welcome` returns, introduces itself if the
    method declares how (:meth:`pfl.core.client.ClientModule.introduce`), and takes local rounds by
    the method's plan, with the same broadcast, no further upload and the learning rate of the last
    round. It is tested at the run's first point of evaluation. Before its first local round nothing
    else is trained on its data, even if the method tunes before a test; passes without training,
    such as IFCA's choice, do run.

    Attributes:
        clients: The clients whose scores are reported.

    Args:
        evaluator: Of the run, before its first round.
        every: As in :class:`~pfl.extras.newcomers.newcomers.Newcomers`.
        join_rounds: Likewise.
        tune_epochs: Likewise.

    Raises:
        ValueError: The data hold no client out.
        MethodError: The server has a model for each member but none for others, or an introduction
            is not a declaration.
    """

    def __init__(
        self, evaluator: Evaluator, every: int | None, join_rounds: int, tune_epochs: int
    ) -> None:
        contexts, coordinator = evaluator.contexts, evaluator.coordinator
        apart = others(contexts.data)
        self.clients, self._validation = apart.get(UNSEEN, ()), apart.get(VALIDATION, ())
        if not self.clients:
            raise ValueError("Newcomers: no client is held out to join later; set data.unseen")
        check_welcomes(coordinator.server)
        # Refused before the first round, not when the first of them joins.
        for one in contexts.each():
            one.declared("introduce")
        self._every, self._join_rounds, self._tune_epochs = every, join_rounds, tune_epochs
        self._evaluator = evaluator
        self._contexts, self._coordinator = contexts, coordinator

    def is_due(self, number: int, last: int, regular: bool) -> bool:
        """Return ``True`` after the last round, and every few rounds before."""
        return number == last or (self._every is not None and number % self._every == 0)

    def described(self) -> dict[str, str]:
        """Return how many join, and who chooses the epochs of tuning."""
        reserved = len(self._validation)
        choosing = f"{reserved} more choose" if reserved else "those that train choose"
        line = f"{len(self.clients)} clients join later; {choosing} the baseline's epochs"
        return {"unseen": line}

    def sheets(self, row: Row, rows: Mapping[int, Row], names: Sequence[str]) -> list[Sheet]:
        """Return a table of each client's main score, and one of all mean scores."""
        own = {client: rows[client] for client in self.clients if client in rows}
        curves = {name: curve(name, self._join_rounds) for name in self._evaluator.scorer.better}
        return tables(curves, row, own, names)

    def measure(self, tested: Evaluated) -> Row:
        """Test all newcomers; return summaries, and enter a row for each of them.

        Those without test samples are left out, with a warning. Gaps are relative to the mean
        scores of the clients that trained.
        """
        evaluator, data, state = self._evaluator, self._contexts.data, tested.after
        clients = [client for client in self.clients if len(data.split(client, "test"))]
        _warn_of_untested(sorted({*self.clients} - {*clients}))
        if not clients:
            return {}
        rows = evaluator.rows(clients, state.round)
        for of_client in rows.values():
            of_client["unseen"] = True
        jobs = {client: self.arrival(state, client) for client in clients}
        epochs = self._chosen_epochs(state)
        curves = {client: list(self._tuning(job, epochs or 0)) for client, job in jobs.items()}
        ends = {ZERO_SHOT: 0} | ({} if epochs is None else {TUNED: -1})
        found: dict[str, dict[int, Scores]] = {
            group: {client: {"test": scores[end]} for client, scores in curves.items()}
            for group, end in ends.items()
        }
        rounds = list(self._local_rounds(jobs)) or [found[ZERO_SHOT]]
        found |= {f"{JOINED}_{number}": scores for number, scores in enumerate(rounds[:-1], 1)}
        found[JOINED] = rounds[-1]
        row: Row = {}
        for group, scores in found.items():
            row |= evaluator.collect(scores, group, rows)
        if epochs is not None:
            row["unseen/tuned_epochs"] = epochs
            row["unseen/hurt"] = hurt(list(rows.values()), *self._main)
        tested.rows |= rows
        return row | self._gaps(state, row, tested.row)

    def job(self, state: ServerState, client: int) -> Job | None:
        """Return the job of a client of these after its local rounds."""
        if client not in (*self.clients, *self._validation):
            return None
        jobs = {client: self.arrival(state, client)}
        for _ in self._local_rounds(jobs):
            pass
        return jobs[client]

    def arrival(self, state: ServerState, client: int) -> Job:
        """Return the job of a newcomer on its arrival."""
        coordinator, context = self._coordinator, self._contexts.of(client)
        info = info_of(context.data, client, coordinator.clients[client].rounds)
        info = replace(info, round=state.round)
        seed = derive(self._evaluator.run.seed, "join", state.round, client)
        job = self._welcomed(Job(info=info, kept={}, broadcast=None, seed=seed), state)
        # An introduction would bypass the steps of the uplink.
        if not coordinator.chain.steps and (upload := introduced(context, job)):
            job = self._welcomed(job, state, upload)
        return job

    def _welcomed(self, job: Job, state: ServerState, upload: Upload | None = None) -> Job:
        """Return the job of a newcomer with the server's answer."""
        context = self._contexts.of(job.info.client)
        broadcast, kept = welcome(self._coordinator, state, job.info, upload)
        kept = to(kept, context.fabric.device)
        job = replace(job, kept=kept, broadcast=broadcast)
        return replace(job, kept=kept | _norm_statistics(context, job))

    def _local_rounds(self, jobs: dict[int, Job]) -> Iterator[dict[int, Scores]]:
        """Run the local rounds of newcomers; update their jobs, and yield scores after each."""
        at_once = self._evaluator.points[0] == "post_local"
        splits: tuple[Split, ...] = ("test",) if at_once else ()
        for number in range(1, self._join_rounds + 1):
            turn = [
                replace(job, seed=derive(job.seed, "round", number), splits=splits)
                for job in jobs.values()
            ]
            results = {result.client: result for result in self._evaluator.engine.train(turn)}
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
        data, (main, more) = self._contexts.data, self._main
        clients = [
            client
            for client in self._validation or members(data)
            if len(split := data.split(client, "test")) and not isinstance(split, CountedSplit)
        ]
        most = self._tune_epochs
        tuned = [[*self._tuning(self.arrival(state, client), most)] for client in clients]
        # A client may lack the score.
        curves = [[one[main] for one in rows] for rows in tuned if all(main in one for one in rows)]
        if not curves:
            return None
        means = torch.tensor(curves, dtype=torch.float64).mean(0)
        return int((means if more else -means).nan_to_num(-torch.inf).argmax())

    def _tuning(self, job: Job, epochs: int) -> Iterator[dict[str, float]]:
        """Yield the test scores of the zero-shot model, and after each epoch of SGD on all of it.

        The optimiser is plain SGD with the method's first learning rate.
        """
        client = job.info.client
        context = self._contexts.of(client)
        module = context.module
        job = replace(job, seed=derive(job.seed, "test"))
        untrained = [part for part in context.adapt if isinstance(part, Pass)]
        client_round.become_tested(context, job, untrained)
        optimizer = None
        if not module.net_optimizes:
            rate = module.configure_optimizers().param_groups[0]["lr"]
            optimizer = partial(torch.optim.SGD, lr=rate)
        tested = [n for n, net in context.own_nets.items() if net is module.tested_net]
        trains = tuple(f"{name}.*" for name in tested) or ("*",)
        phase = Phase(name="tuned", objective=self._supervised, trains=trains, optimizer=optimizer)
        # A phase uses its round's learning rate; here no schedule has started.
        fresh = replace(job, kept={}, info=replace(job.info, round=0))
        for epoch in range(epochs + 1):
            if epoch:
                turn = replace(fresh, seed=derive(job.seed, "tuned", epoch))
                with context.isolated(turn):
                    client_round.run_plan(context, turn, [phase], Tally())
            answers = client_round.on_splits(context, client, ("test",))
            (scores,) = client_round.scored(context.scorer, [answers])
            yield scores["test"]

    def _supervised(self, batch: Batch) -> Terms:
        module = self._contexts.module
        own = self._contexts.first.own_nets
        return module.objective(module.tested_net if own else module, batch)

    def _gaps(self, state: ServerState, row: Row, seen: Mapping[str, float]) -> Row:
        """Return the gaps of Yuan et al. (2110.14216), positive where unseen data do worse.

        ``gap/sample`` is the training minus the test score of the members' personal models,
        ``gap/participation`` the members' personal score minus the newcomers' after joining.
        """
        main, more = self._main
        sign = 1 if more else -1
        columns = curve(main, self._join_rounds)
        personal, joined = seen.get(f"test/personal/{main}"), f"test/{JOINED}/{main}"
        gaps: Row = {}
        if personal is not None and joined in row:
            gaps["gap/participation"] = sign * (personal - row[joined])
            reached = [k for k, name in enumerate(columns) if sign * (row[name] - personal) >= 0]
            gaps |= {"unseen/rounds_to_seen": min(reached)} if reached else {}
        tested, job = self._evaluator.test, partial(self._evaluator.job, state)
        scores = tested(holders(self._contexts.data, "train", "test"), job, ("train", "test"))
        # A site that did not answer has no scores.
        both = [one for one in scores.values() if {"train", "test"} <= one.keys()]
        # A client may lack the score.
        held = [one for one in both if main in one["train"] and main in one["test"]]
        apart = [one["train"][main] - one["test"][main] for one in held]
        return gaps | ({"gap/sample": sign * sum(apart) / len(apart)} if apart else {})

    @property
    def _main(self) -> tuple[str, bool]:
        """The main score, and whether more of it is better."""
        return next(iter(self._contexts.scorer.better.items()))


def check_welcomes(server: Server[Any]) -> None:
    """Refuse a server that has a model for each member but does not handle newcomers.

    Raises:
        MethodError: It inherits :meth:`pfl.core.server.Server.welcome`, which would broadcast to
            them.
    """
    if server.per_client and type(server).welcome is Server.welcome:
        raise MethodError(
            f"{type(server).__name__} has a model for each member (per_client) and none for "
            "clients that are held out: override welcome() to return what they start with"
        )


def welcome(
    coordinator: Coordinator, state: ServerState, info: ClientInfo, upload: Upload | None = None
) -> tuple[Broadcast, State]:
    """Return what a newcomer starts with; see :meth:`pfl.core.server.Server.welcome`.

    ``upload`` is its upload after the introduction.
    """
    members = coordinator.members
    (known,) = coordinator.disclosed([info])
    # Also for a member that is treated as a newcomer.
    known = replace(known, client=len(members) + info.client)
    with during(f"the server's welcome to client {info.client}"):
        # A server without introductions need not accept the argument.
        sent = () if upload is None else (replace(upload, client=known.client),)
        answer: tuple[Broadcast, State] = coordinator.server.welcome(state, known, members, *sent)
    return answer


def introduced(context: Context, job: Job) -> Upload | None:
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


def hurt(rows: Sequence[Mapping[str, Any]], score: str, more: bool) -> float:
    """Return the share of clients whose score was strictly better before tuning than after."""
    names = f"test/{ZERO_SHOT}/{score}", f"test/{TUNED}/{score}"
    pairs = [[float(row[name]) for name in names] for row in rows]
    worse = [before > after if more else before < after for before, after in pairs]
    return sum(worse) / len(worse)


def _warn_of_untested(clients: Sequence[int]) -> None:
    """Warn if clients that are held out have no test samples; shown once a run."""
    if clients:
        warnings.warn(
            f"{clients_text(clients)}: held out, but without test samples, and so without scores",
            stacklevel=2,
        )


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
