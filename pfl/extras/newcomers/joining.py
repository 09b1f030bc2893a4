"""How newcomers join a trained federation, tested before and after."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pfl.core.data import CountedSplit, holders, info_of, members, others
from pfl.core.failure import clients_text, during
from pfl.core.seeds import derive
from pfl.core.server import Server, ServerState
from pfl.core.sheet import Sheet
from pfl.core.state import to
from pfl.core.types import Broadcast, ClientInfo, Job, Scores, Split, State, Upload
from pfl.extras.newcomers.shown import (
    JOINED,
    TUNED,
    UNSEEN,
    VALIDATION,
    ZERO_SHOT,
    curve,
    tables,
)
from pfl.extras.newcomers.work import Arrival, Tuning
from pfl.federation.evaluation import Measurement
from pfl.federation.evaluator import Evaluated, Evaluator
from pfl.federation.run import Row
from pfl.training.declaration import MethodError
from pfl.training.server_round import Coordinator

# Clients that try the epochs at a time, as the server may have another message for each.
_TOGETHER = 32


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
        jobs = self.arrivals(state, clients)
        epochs = self._chosen_epochs(state)
        curves = self._tuned([*jobs.values()], epochs or 0)
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
        if epochs is not None and curves:
            row["unseen/tuned_epochs"] = epochs
            row["unseen/hurt"] = hurt([rows[client] for client in curves], *self._main)
        tested.rows |= rows
        return row | self._gaps(state, row, tested.row)

    def job(self, state: ServerState, client: int) -> Job | None:
        """Return the job of a client of these after its local rounds."""
        if client not in (*self.clients, *self._validation):
            return None
        jobs = self.arrivals(state, [client])
        for _ in self._local_rounds(jobs):
            pass
        return jobs[client]

    def arrivals(self, state: ServerState, clients: Sequence[int]) -> dict[int, Job]:
        """Return the jobs of newcomers on their arrival."""
        # An introduction would bypass the steps of the uplink.
        first = Arrival(introduces=not self._coordinator.chain.steps)
        jobs = {client: self._welcomed(self._arrival(state, client), state) for client in clients}
        sent = self._settle(jobs, first)
        answers = {c: self._welcomed(jobs[c], state, upload) for c, upload in sent.items()}
        self._settle(answers, Arrival(introduces=False))
        return jobs | answers

    def _arrival(self, state: ServerState, client: int) -> Job:
        """Return the job of a newcomer before the server's answer."""
        rounds = self._coordinator.clients[client].rounds
        info = replace(info_of(self._contexts.data, client, rounds), round=state.round)
        seed = derive(self._evaluator.run.seed, "join", state.round, client)
        return Job(info=info, kept={}, broadcast=None, seed=seed)

    def _welcomed(self, job: Job, state: ServerState, upload: Upload | None = None) -> Job:
        """Return the job of a newcomer with the server's answer."""
        broadcast, kept = welcome(self._coordinator, state, job.info, upload)
        return replace(job, kept=to(kept, self._contexts.fabric.device), broadcast=broadcast)

    def _settle(self, jobs: dict[int, Job], work: Arrival) -> dict[int, Upload]:
        """Let newcomers do their work on arrival; update their jobs, and return their uploads."""
        turn = [
            replace(job, work=work)
            for client, job in jobs.items()
            if work.does(self._contexts.of(client), job.info)
        ]
        uploads = {}
        for result in self._evaluator.engine.train(turn) if turn else ():
            job = jobs[result.client]
            jobs[result.client] = replace(job, kept=job.kept | result.kept)
            if result.upload is not None:
                uploads[result.client] = result.upload
        return uploads

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
        tuned = list[list[dict[str, float]]]()
        for start in range(0, len(clients), _TOGETHER):
            jobs = self.arrivals(state, clients[start : start + _TOGETHER])
            tuned += self._tuned([*jobs.values()], self._tune_epochs).values()
        # A client may lack the score.
        curves = [[one[main] for one in rows] for rows in tuned if all(main in one for one in rows)]
        if not curves:
            return None
        means = torch.tensor(curves, dtype=torch.float64).mean(0)
        return int((means if more else -means).nan_to_num(-torch.inf).argmax())

    def _tuned(self, jobs: Sequence[Job], epochs: int) -> dict[int, list[dict[str, float]]]:
        """Return test scores of zero-shot models, and after each epoch of SGD, by client.

        A client that fails has none, if the run continues then.
        """
        turn = [replace(job, splits=("test",), work=Tuning(epochs)) for job in jobs]
        results = self._evaluator.engine.train(turn)
        return {one.client: [scores["test"] for scores in one.course] for one in results}

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
