"""A run in progress: the loop's settings applied to one method and one data set."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from pfl.core.data import ClientSplit
from pfl.core.devices import repeatable
from pfl.core.failure import ExplainedError
from pfl.core.foreign import NeedError
from pfl.core.seeds import generator
from pfl.core.server import Round, ServerState
from pfl.core.types import Cohort, Job, Result, RoundResult
from pfl.disk.lock import locked
from pfl.engines import op_threads
from pfl.federation import rows, soundness
from pfl.federation.evaluation import Measurement, of_run
from pfl.federation.evaluator import Evaluated, Evaluator
from pfl.federation.models import Global, Personal, Pooled
from pfl.federation.run import Row, Run
from pfl.federation.settings import Settings
from pfl.training import client_round
from pfl.training.context import Context
from pfl.training.contexts import Contexts
from pfl.training.server_round import Coordinator


@dataclass(frozen=True)
class Played:
    """A round before its outcome is entered into the run.

    Attributes:
        cohort: The clients that trained, and those that upload.
        jobs: Of the clients that trained.
        results: The results that count, by client.
        failed: Why other results do not count, by client, where the numbers show it.
        gathering: The uploads at the server.
        before: The server's state before the round.
        after: The server's state after the round.
        discarded: The clients whose results are not finite or did not arrive, and do not count.
        withheld: The step of the uplink that withheld an upload, by client.
    """

    cohort: Cohort
    jobs: Sequence[Job]
    results: Mapping[int, Result]
    failed: Mapping[int, str]
    gathering: Round[ServerState]
    before: ServerState
    after: ServerState
    discarded: Sequence[int]
    withheld: Mapping[int, str]


@dataclass
class Federation:
    """Runs the rounds: sample, broadcast, train, aggregate, evaluate.

    Attributes:
        settings: Of the run.
        contexts: The method with its data and device.
        coordinator: Makes the clients' jobs and aggregates their uploads.
        run: What callbacks read and a checkpoint stores.
        root: Folder of all runs of this name; ``None`` writes none.
        origin: The run folder of the checkpoint that the run resumes from.
        op_threads: Number of threads that an operation uses on a CPU.
        evaluator: Tests the models.
        evaluations: What is measured after a round.
    """

    settings: Settings
    contexts: Contexts
    coordinator: Coordinator
    run: Run
    root: Path | None
    origin: Path | None
    op_threads: int = 1
    evaluator: Evaluator = field(init=False)
    evaluations: Sequence[Measurement] = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        self.evaluator = Evaluator(
            settings.runner, self.contexts, self.coordinator, self.run, settings.evaluate_at
        )
        own: list[Measurement] = [Personal(self.evaluator)]
        if self.evaluator.has_global_model:
            own += [Global(self.evaluator)]
            if self.run.data.pooled_test() is not None:
                own += [Pooled(self.evaluator)]
        others = of_run(settings.evaluations or (), self.run.data)
        self.evaluations = [*own, *(one.bound(self.evaluator) for one in others)]
        self.run.personal = self._personal

    def _personal(self, client: int) -> Context:
        """Turn the module into a client's personalised model; return the module's context.

        Raises:
            ValueError: The client is not of the federation, and no evaluation lets it join.
        """
        jobs = (one.job(self.run.server, client) for one in self.evaluations)
        if (job := next(filter(None, jobs), None)) is None:
            raise ValueError(f"client {client} is not of the federation, and has no model")
        context = self.contexts.of(client)
        client_round.become_tested(context, job)
        return context

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Apply this run's settings of kernels and threads in this scope.

        It must not stay open while a caller's code runs: two runs that take turns would each
        restore the other's settings.
        """
        with op_threads.using(self.op_threads), repeatable():
            yield

    def suspended(self) -> AbstractContextManager[None]:
        """Leave the cores to other runs while a caller's code runs."""
        share = self.settings.runner.share
        return nullcontext() if share is None else share.lent()

    @contextmanager
    def folder(self) -> Iterator[None]:
        """Use the folder of the checkpoint, or a new one that is locked in this scope.

        A new folder is removed if the first round shows that method and data do not fit.

        Raises:
            OSError: It cannot be created.
        """
        if self.root is None or self.origin is not None:
            self.run.folder = self.origin
            yield
            return
        stamp, number = time.strftime("%Y%m%d-%H%M%S"), 0
        while self.run.folder is None:
            folder = self.root / (f"{stamp}-{number}" if number else stamp)
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                number += 1
            except OSError as error:
                raise OSError(
                    f"the run's folder {folder} cannot be made ({error.strerror}): give another "
                    "default_root_dir"
                ) from error
            else:
                self.run.folder = folder
        try:
            with locked(self.run.folder):
                yield
        except ExplainedError:
            if self.run.round == 0:
                shutil.rmtree(self.run.folder, ignore_errors=True)
            raise

    def rounds(self, done: Callable[[Result], None]) -> Iterator[RoundResult]:
        """Run the remaining rounds; ``done`` is called after each client.

        Raises:
            NonFiniteError: The server's numbers are not finite, or a client's are not and
                ``on_nonfinite`` is ``stop``.
        """
        while self.run.round < self.run.rounds:
            # In its own function, so that a round's memory is freed before the next one trains.
            with soundness.watched_stream(self.contexts.fabric.device):
                result = self._play_round(done)
            yield result

    def _play_round(self, done: Callable[[Result], None]) -> RoundResult:
        run, clock = self.run, rows.Clock()
        run.cohort = cohort = self.cohort(run.round + 1)
        run.keeper.begin()
        jobs = self._jobs(cohort)
        goes_on = self.settings.on_nonfinite == "skip" or self.settings.runner.tolerates
        sending = self.coordinator.sending & {*cohort.uploads}
        senders = [job.info for job in jobs if job.info.client in sending]
        gathering = self.coordinator.begin(run.server, senders)
        results, failed = self._train(jobs, gathering, done)
        clock.lap("time/train")
        server = self.coordinator.server
        after, blamed = soundness.aggregated(gathering, server, run.server, goes_on)
        failed |= blamed
        results = {client: one for client, one in results.items() if client not in blamed}
        clock.lap("time/aggregate")
        lost = [client for client in cohort.trains if client not in results]
        withheld = {client: one.withheld for client, one in results.items() if one.withheld}
        states = run.server, after
        played = Played(cohort, jobs, results, failed, gathering, *states, lost, withheld)
        row = self._row(played)
        with self._entered(played):
            run.latest = self._evaluated(played, row, clock)
        return run.latest

    def conclude(self) -> None:
        """State what was guaranteed in the rounds that were played, by what they show.

        Raises:
            NonFiniteError: Every client of every round was discarded.
            JobError: Likewise, because they failed.
            ValueError: A round does not show what is guaranteed.
        """
        run = self.run
        soundness.check_anything_trained(run)
        # A run that ended by itself was planned to.
        planned = self.settings.rounds if run.round == run.rounds else run.round
        if (guarantee := self.coordinator.chain.guarantee) is not None:
            run.guaranteed = guarantee.stated(run.history, planned, run.round)
            run.header |= run.guaranteed

    def cohort(self, number: int) -> Cohort:
        """Draw the clients of a round."""
        chain, seed = self.coordinator.chain, self.settings.seed
        rng = chain.stream() if chain.secret else generator(seed, "cohort", number)
        return self.settings.sampler(self.coordinator.eligible, rng, number)

    def measured(self) -> Row:
        """Test all models as they are, as after a round."""
        state, row = self.run.server, Row()
        tested = Evaluated(self.evaluator, self.evaluator.members, {}, state, state, row)
        for one in self.evaluations:
            row |= one.measure(tested)
        self.evaluator.undefined([*tested.rows.values()])
        return row

    def predicted(self, client: int, samples: ClientSplit) -> tuple[Tensor, Tensor]:
        """Return the predictions of a client's personalised model, and the targets.

        Raises:
            NeedError: Only the network knows what it predicts.
        """
        context, task = self.run.personal(client), self.run.data.task
        if context.own_nets:
            raise NeedError(
                f"only {type(context.module.net).__name__} knows what it predicts: export the "
                "client, and call the predict_step of its net"
            )
        with torch.inference_mode():
            outputs, targets = client_round.outputs(context, samples)
        return task.predictions(outputs), task.targets(targets)

    def tested(self, number: int) -> Sequence[int]:
        """Return the clients to test after a round; none if no test is due."""
        last = number == self.run.rounds
        return self.evaluator.members if last or self.run.tested is None else self.run.tested

    def _jobs(self, cohort: Cohort) -> list[Job]:
        """Make the jobs of a round; clients tested as trained are scored right after training."""
        run, number = self.run, self.run.round + 1
        at_once = (
            self.settings.is_tested(number, run.rounds) and "post_local" in self.evaluator.points
        )
        scored = set(self.tested(number) if at_once else ())
        jobs, chain = [], self.coordinator.chain
        for job in self.coordinator.jobs(run.server, cohort.trains, number):
            job = run.keeper.fill(job)
            if job.info.client in scored:
                job = replace(job, splits=("val", "test"))
            if chain.steps:
                job = chain.job(job, run.server, job.info.client in cohort.uploads)
            jobs.append(job)
        return jobs

    def _train(
        self, jobs: Sequence[Job], gathering: Round[ServerState], done: Callable[[Result], None]
    ) -> tuple[dict[int, Result], dict[int, str]]:
        """Return the results that count, and why others do not."""
        results, failed = dict[int, Result](), dict[int, str]()
        # By client, as one that fails has no result.
        of = {job.info.client: job for job in jobs}
        taken = partial(self._taken, of, {*self.run.cohort.uploads}, gathering, done)
        # No name holds what a client sent while the next one trains.
        for result in map(taken, self.settings.runner.train(jobs)):
            if result.finite:
                results[result.client] = result
            else:
                failed[result.client] = soundness.NOT_FINITE
        return results, failed

    def _taken(
        self,
        of: Mapping[int, Job],
        uploading: Collection[int],
        gathering: Round[ServerState],
        done: Callable[[Result], None],
        arrived: Result,
    ) -> Result:
        """Hand a result's upload to the server and what stays to the keeper; return the rest.

        Raises:
            NonFiniteError: Its numbers are not finite, and ``on_nonfinite`` is ``stop``.
        """
        chain, run = self.coordinator.chain, self.run
        result = chain.received(of[arrived.client], arrived) if chain.steps else arrived
        shown = chain.shown(result) if chain.steps else result
        if result.finite:
            if result.client in uploading:
                result = gathering.take(result)
            result = run.keeper.take(result)
        elif self.settings.on_nonfinite == "stop":
            raise soundness.error_of(result, run.round + 1)
        done(shown)
        return result

    def _row(self, played: Played) -> Row:
        """Return the round's row of metrics before its tests; warn of suspicious losses."""
        run, number, results = self.run, self.run.round + 1, played.results
        row: Row = {"round": number, **rows.of_training(results, len(played.discarded))}
        if not played.gathering.arrived:
            lost = played.discarded, played.withheld
            soundness.warn_of_no_upload(*lost, len(results), number)
        soundness.warn_of_losses(run.module, row)
        row |= rows.of_traffic(
            played.jobs, played.gathering.arrived, played.gathering.unheard, run.history
        )
        if (cost := self.settings.cost) is not None:
            row |= cost.of_round(
                played.jobs, results, played.gathering.arrived, run.seed, run.history
            )
        row |= {f"server/{name}": value for name, value in (played.after.report or {}).items()}
        if (guarantee := self.coordinator.chain.guarantee) is not None:
            row |= guarantee.witnessed(results, played.after)
        return row | rows.over_clients(results, "log", lambda result: result.logged)

    @contextmanager
    def _entered(self, played: Played) -> Iterator[None]:
        """Enter a round's outcome into the run; revert it if its tests are interrupted.

        A resume then repeats the round, and no row of the history is missing.
        """
        run, before = self.run, {**vars(self.run)}
        try:
            with run.keeper.entered(played.results.keys()):
                run.server, run.round = played.after, run.round + 1
                yield
        except BaseException:
            vars(run).update(before)
            del run.history[run.round :]
            raise

    def _evaluated(self, played: Played, row: Row, clock: rows.Clock) -> RoundResult:
        """Test the models after a round if a test is due, and enter its row into the history."""
        run, results, discarded = self.run, played.results, played.discarded
        evaluated = self.settings.is_tested(run.round, run.rounds)
        clients = self.tested(run.round) if evaluated else ()
        tested = Evaluated(self.evaluator, clients, results, played.before, played.after, row)
        for one in self.evaluations:
            if one.is_due(run.round, run.rounds, evaluated):
                row |= one.measure(tested)
        if evaluated and not any(name.startswith(("test/", "val/")) for name in row):
            soundness.warn_of_no_score(run.data, clients, self.evaluator.has_global_model)
        sent = {upload.client for upload in played.gathering.arrived}
        reported = self.coordinator.reported(played.after)
        for client in clients:
            of_server = {name: v[client] for name, v in reported.items() if client in v}
            done = rows.of_client(client, results, sent, discarded)
            tested.rows[client] |= of_server | done
        undefined = self.evaluator.undefined([*tested.rows.values()])
        clock.lap("time/evaluate")
        row |= self.settings.runner.measured()
        failed = {**dict.fromkeys(discarded, "there was no answer"), **played.failed}
        failed |= self.settings.runner.failed()
        untested = sorted(failed.keys() - {*discarded})
        row |= clock.laps
        run.history.append(row)
        if discarded or untested or undefined:
            run.failures = soundness.counted(
                run.failures, discarded=discarded, untested=untested, undefined=undefined
            )
        run.reasons = {**run.reasons, **failed}
        of_clients = [*tested.rows.values()]
        return RoundResult(
            run.round, played.cohort, row, of_clients, evaluated, failed, played.withheld
        )
