"""A run in progress: the loop's settings applied to one method and one data set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from pfl.core.client import Client
from pfl.core.kernels import repeatable
from pfl.core.lock import locked
from pfl.core.mapped import in_file
from pfl.core.seeds import derive, generator
from pfl.core.server import Server, ServerState
from pfl.core.state import clone, constants, fingerprint, nbytes, to
from pfl.core.types import (
    ClientInfo,
    Cohort,
    FederatedData,
    Job,
    Result,
    RoundResult,
    State,
    Upload,
)
from pfl.federation import header, restore, resume, rows, sampling
from pfl.federation.evaluation import Evaluator
from pfl.federation.resume import Source
from pfl.federation.run import Row, Run
from pfl.federation.settings import Settings
from pfl.federation.store import KeptStates
from pfl.training import client_round
from pfl.training.context import Context


class NonFiniteError(ArithmeticError):
    """A client's loss or weights are no longer finite numbers."""


class Federation:
    """Runs the rounds: sample, broadcast, train, aggregate, evaluate.

    Args:
        settings: Of the run.
        module: The method, with its network's initial weights.
        data: The federation's data.
        source: The checkpoint to resume from.

    Raises:
        ValueError: No client has training data.
        CheckpointError: The checkpoint is of another federation, or damaged.
    """

    def __init__(
        self,
        settings: Settings,
        module: Client,
        data: FederatedData,
        source: Source | None = None,
    ) -> None:
        self.settings = settings
        self.root = resume.root_of(settings, module, data)
        self.source = source
        content = None if source is None else source.take()
        device = settings.fabric.device
        data.to(device)
        template = None if content is None else restore.template(content, module, data, device)
        self.context = Context(
            module, data, settings.fabric, settings.gradient_clip_val, template=template
        )
        clients = [
            ClientInfo.of(data, client, settings.rounds) for client in range(data.num_clients)
        ]
        self.clients = clients
        self.eligible = [info.client for info in clients if info.samples > 0]
        if not self.eligible:
            raise ValueError("no client has training data")
        tested = None
        if settings.evaluate_clients is not None:
            holders = [c for c in range(data.num_clients) if _has_tests(data, c)]
            rng = generator(settings.seed, "evaluate")
            tested = sampling.subset(holders, settings.evaluate_clients, rng)
        self.server: Server[Any] = module.server()
        shared = clone({n: self.context.template[n] for n in module.shared_names()})
        kept: MutableMapping[int, State] = {}
        if settings.kept_memory is not None:
            kept = KeptStates(int(settings.kept_memory * 1e9), self.root)
        self.run = Run(
            module=module,
            data=data,
            seed=settings.seed,
            rounds=settings.rounds,
            name=resume.name_of(settings, module, data),
            personal=self.personal,
            server=self.server.init(shared, clients),
            kept=kept,
            template=self.context.template,
            constants=fingerprint([constants(module)]),
            reports=self.server.reports,
            scores=self.context.scorer.better,
            tested=tested,
            callbacks=settings.callbacks,
        )
        # What a client keeps, and its group, may depend on the initial values.
        self.context.load({})
        if content is not None:
            restore.restore(content, self.run, clients, device)
        self.run.server = self._bounded(self.run.server)
        points = settings.evaluate_at or [module.evaluate_at]
        self.evaluator = Evaluator(
            settings.engine, data, clients, points, module, self.context.scorer, self._job
        )
        settings.engine.stacks = None if content is None else restore.stacked(content, device)
        engine = settings.engine.setup(self.context)
        self.run.stacked = settings.engine.stacks
        first = [replace(clients[client], round=1) for client in self._cohort(1).trains]
        samples = [client_round.samples_seen(self.context, info) for info in first]
        self.run.header = header.describe(self.run, self.evaluator, settings.fabric, engine)
        self.run.header |= header.slow_tests(
            self.evaluator, self._tested(1), settings.evaluate_every, samples
        )
        self._kernels = ExitStack()
        self._kernels.enter_context(repeatable())

    def close(self) -> None:
        """Release the engine and restore how the process computes."""
        self._kernels.close()
        self.settings.engine.close()

    @contextmanager
    def folder(self) -> Iterator[None]:
        """Give the run its folder: that of the checkpoint, or a new one that is locked meanwhile.

        Raises:
            OSError: It cannot be made.
        """
        if self.root is None or (self.source is not None and self.source.folder is not None):
            self.run.folder = None if self.source is None else self.source.folder
            yield
            return
        stamp, number = time.strftime("%Y%m%d-%H%M%S"), 0
        while self.run.folder is None:
            folder = self.root / (f"{stamp}-{number}" if number else stamp)
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                number += 1
            else:
                self.run.folder = folder
        with locked(self.run.folder):
            yield

    def rounds(self, done: Callable[[Result], None]) -> Iterator[RoundResult]:
        """Run the remaining rounds; ``done`` is called after each client.

        Raises:
            NonFiniteError: A client's numbers are not finite, and the loop is to stop then.
        """
        run, settings = self.run, self.settings
        while run.round < settings.rounds:
            clock = rows.Clock()
            number = run.round + 1
            cohort = self._cohort(number)
            evaluated = number % settings.evaluate_every == 0 or number == settings.rounds
            before = run.server
            jobs = [self._job(client, before, number) for client in cohort.trains]
            tested = self._tested(number) if evaluated else []
            if "post_local" in self.evaluator.points:
                jobs = _with_tests(jobs, tested)
            results = self._train(jobs, done)
            clock.lap("time/train")
            uploads = _uploads(results, cohort)
            after = self.server.aggregate(before, uploads)
            clock.lap("time/aggregate")
            row: Row = {"round": number, **rows.of_training(results, len(jobs) - len(results))}
            row |= rows.of_traffic(jobs, uploads, run.history)
            row |= {f"server/{name}": value for name, value in (after.report or {}).items()}
            row |= rows.over_clients(results, "log", lambda result: result.logged)
            clients: list[Row] = []
            with self._outcome(jobs, results, after):
                if evaluated:
                    scores, clients = self.evaluator.evaluate(tested, results, before, after)
                    row |= scores
                    trained, uploaded = set(cohort.trains), set(cohort.uploads)
                    for client_row in clients:
                        client = int(client_row["client"])
                        client_row["trained"] = client in trained
                        client_row["uploaded"] = client in uploaded
                        logged = results[client].logged if client in results else {}
                        client_row |= {f"log/{name}": value for name, value in logged.items()}
                clock.lap("time/evaluate")
                row |= clock.laps
                run.history.append(row)
                run.latest = RoundResult(number, cohort, row, clients, evaluated)
            yield run.latest

    def _bounded(self, state: ServerState) -> ServerState:
        """Move the models that a server holds for each client into files, beyond the bound."""
        memory = self.settings.kept_memory
        small = memory is None or nbytes(state.shared) <= memory * 1e9
        if small or not self.server.per_client:
            return state
        shared = {name: in_file(value, self.root) for name, value in state.shared.items()}
        return replace(state, shared=shared)

    def _cohort(self, number: int) -> Cohort:
        """Draw the clients of a round."""
        rng = generator(self.settings.seed, "cohort", number)
        return self.settings.sampler(self.eligible, rng, number)

    def _tested(self, number: int) -> Sequence[int]:
        """Return the clients that are tested after a round."""
        everyone = [info.client for info in self.clients]
        last = number == self.settings.rounds
        return everyone if last or self.run.tested is None else self.run.tested

    @contextmanager
    def _outcome(
        self, jobs: Sequence[Job], results: Mapping[int, Result], after: ServerState
    ) -> Iterator[None]:
        """Enter a round's outcome into the run; take it back if its tests are interrupted.

        A resume then repeats the round, and no row of the history is missing.
        """
        run, before, number, latest = self.run, self.run.server, self.run.round, self.run.latest
        try:
            run.kept.update({client: result.kept for client, result in results.items()})
            run.server, run.round = after, number + 1
            yield
        except BaseException:
            run.server, run.round, run.latest = before, number, latest
            del run.history[number:]
            for job in jobs:
                run.kept.pop(job.info.client, None)
            run.kept.update({job.info.client: job.kept for job in jobs if job.kept})
            raise

    def personal(self, client: int) -> Context:
        """Turn the module into the client's personalised model, and return its context."""
        client_round.become_tested(self.context, self._job(client, self.run.server))
        return self.context

    def _job(self, client: int, state: ServerState, number: int | None = None) -> Job:
        """Make a client's job from a server's state; the round is the current one by default."""
        number = self.run.round if number is None else number
        return Job(
            info=replace(self.clients[client], round=number),
            kept=to(self.run.kept.get(client, {}), self.settings.fabric.device),
            broadcast=self.server.broadcast(state, client, number),
            seed=derive(self.settings.seed, "client", number, client),
        )

    def _train(self, jobs: Sequence[Job], done: Callable[[Result], None]) -> dict[int, Result]:
        results = {}
        for result in self.settings.engine.train(jobs):
            if result.finite:
                results[result.client] = result
            elif self.settings.on_nonfinite == "stop":
                losses = ", ".join(f"{name} {value:g}" for name, value in result.train.items())
                raise NonFiniteError(
                    f"round {self.run.round + 1}, client {result.client}: the loss or the weights "
                    f"are not finite (losses: {losses}). Lower the learning rate, clip gradients "
                    "(loop.gradient_clip_val), or go on without such clients "
                    "(loop.on_nonfinite: skip)"
                )
            done(result)
        return results


def _has_tests(data: FederatedData, client: int) -> bool:
    return len(data.split(client, "test")) > 0


def _uploads(results: Mapping[int, Result], cohort: Cohort) -> list[Upload]:
    """Return the uploads that reach the server, in ascending order of clients."""
    found = [results[client].upload for client in cohort.uploads if client in results]
    return [upload for upload in found if upload is not None]


def _with_tests(jobs: Sequence[Job], tested: Sequence[int]) -> list[Job]:
    """Have the tested ones among the training clients scored right after their training."""
    chosen = set(tested)
    return [
        replace(job, splits=("val", "test")) if job.info.client in chosen else job for job in jobs
    ]
