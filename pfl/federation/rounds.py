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
from pfl.federation import checkpoint, resume, schema
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
    """Sample, broadcast, train, aggregate, evaluate: round by round.

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
        content = None if source is None else source.content
        data.to(settings.fabric.device)
        template = None if content is None else self._template(content, module, data)
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
            callbacks=settings.callbacks,
        )
        # What a client keeps, and its group, may depend on the initial values.
        self.context.load({})
        if content is not None:
            self._restore(content)
        points = settings.evaluate_at or [module.evaluate_at]
        self.evaluator = Evaluator(
            settings.engine, data, clients, points, module, self.context.scorer, self._job
        )
        local = module.buffer_policy == "local" and not self.evaluator.has_global_model
        self.run.header = {
            "method": type(module).__name__,
            "network": _network(module),
            "data": _described(data),
            "clients": f"{data.num_clients}, of which {len(self.eligible)} hold training data",
            "device": f"{settings.fabric.device}, {settings.fabric.strategy.precision.precision}",
            "buffers": "local, so no global model is tested" if local else module.buffer_policy,
            "evaluated": ", ".join(points),
            "engine": settings.engine.setup(self.context),
        }
        if sizes := self.evaluator.group_sizes():
            self.run.header["groups"] = sizes
        self._kernels = ExitStack()
        self._kernels.enter_context(repeatable())

    def close(self) -> None:
        """Release the engine, and compute as before."""
        self._kernels.close()
        self.settings.engine.close()

    @contextmanager
    def folder(self) -> Iterator[None]:
        """Inside, the run has a folder of its own, that of the checkpoint or a new one.

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
            clock = _Clock()
            number = run.round + 1
            cohort = settings.sampler(
                self.eligible, generator(settings.seed, "cohort", number), number
            )
            evaluated = number % settings.evaluate_every == 0 or number == settings.rounds
            before = run.server
            jobs = [self._job(client, before, number) for client in cohort.trains]
            if evaluated and "post_local" in self.evaluator.points:
                jobs = [replace(job, splits=("val", "test")) for job in jobs]
            results = self._train(jobs, done)
            clock.lap("time/train")
            uploads = _uploads(results, cohort)
            after = self.server.aggregate(before, uploads)
            clock.lap("time/aggregate")
            row: Row = {"round": number, **_train_row(results, len(jobs) - len(results))}
            row |= self._traffic(jobs, uploads)
            row |= {f"server/{name}": value for name, value in (after.report or {}).items()}
            row |= _over_clients(results, "log", lambda result: result.logged)
            clients: list[Row] = []
            with self._outcome(jobs, results, after):
                if evaluated:
                    scores, clients = self.evaluator.evaluate(results, before, after)
                    row |= scores
                    trained, uploaded = set(cohort.trains), set(cohort.uploads)
                    for client_row in clients:
                        client_row["trained"] = client_row["client"] in trained
                        client_row["uploaded"] = client_row["client"] in uploaded
                    for client, result in results.items():
                        clients[client] |= {f"log/{n}": v for n, v in result.logged.items()}
                clock.lap("time/evaluate")
                row |= clock.laps
                run.history.append(row)
                run.latest = RoundResult(number, cohort, row, clients, evaluated)
            yield run.latest

    @contextmanager
    def _outcome(
        self, jobs: Sequence[Job], results: Mapping[int, Result], after: ServerState
    ) -> Iterator[None]:
        """Make a round's outcome the run's; take it back if its tests are interrupted.

        Then the round is done again on a resume, and no row of the history is missing.
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
        """Leave the module as the client's personalised model; return its context."""
        client_round.become_tested(self.context, self._job(client, self.run.server))
        return self.context

    def _job(self, client: int, state: ServerState, number: int | None = None) -> Job:
        """Make a client's job on a server's state, in the round at hand or the one to come."""
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

    def _traffic(self, jobs: Sequence[Job], uploads: Sequence[Upload]) -> Row:
        """Bytes of this round, and of all rounds so far."""
        sent = [job.broadcast for job in jobs if job.broadcast is not None]
        down = sum(nbytes(item.shared) + nbytes(item.extra) for item in sent)
        up = sum(nbytes(item.shared) + nbytes(item.extra) for item in uploads)
        earlier = self.run.history[-1]["comm/bytes_total"] if self.run.history else 0
        return {
            "comm/bytes_down": down,
            "comm/bytes_up": up,
            "comm/bytes_total": earlier + down + up,
        }

    def _template(self, content: Mapping[str, Any], module: Client, data: FederatedData) -> State:
        """Return the initial state in a checkpoint, if the checkpoint is of such a federation."""
        for what, found, wanted in (
            ("method", content.get("method"), type(module).__name__),
            ("partition", content.get("partition"), data.description().get("hash")),
        ):
            if found != wanted:
                raise checkpoint.CheckpointError(
                    f"the checkpoint was written with the {what} {found}, this run has {wanted}"
                )
        template: State = schema.template(content, module)
        return {n: v.to(self.settings.fabric.device, copy=True) for n, v in template.items()}

    def _restore(self, content: Mapping[str, Any]) -> None:
        run, device = self.run, self.settings.fabric.device
        schema.check(content, run, self.clients)
        run.round = content["round"]
        run.server = checkpoint.unpack(run.server, content["server"], device)
        for client, kept in content["kept"].items():
            run.kept[int(client)] = clone(kept)
        run.history = content["history"]
        for callback in self.settings.callbacks:
            callback.load_state_dict(content["callbacks"].get(callback.name, {}))


class _Clock:
    """Seconds between laps, and of all of them as ``time/round``."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self.laps: Row = {}

    def lap(self, name: str) -> None:
        """End a lap."""
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self.laps["time/round"] = now - self._start
        self._last = now


def _network(module: Client) -> str:
    """Describe a network: its class, and how many parameters it has."""
    count = sum(parameter.numel() for parameter in module.net.parameters())
    return f"{type(module.net).__name__}, {count:,} parameters"


def _described(data: FederatedData) -> str:
    """Describe data: its class, and how it is divided."""
    name, recipe = type(data).__name__, data.description().get("partition")
    if not isinstance(recipe, Mapping):
        return name
    options = ", ".join(f"{key}={value}" for key, value in recipe["init_args"].items())
    return f"{name}, {recipe['class_path'].rpartition('.')[2]}({options})"


def _uploads(results: Mapping[int, Result], cohort: Cohort) -> list[Upload]:
    """Return the uploads that reach the server, in ascending order of clients."""
    found = [results[client].upload for client in cohort.uploads if client in results]
    return [upload for upload in found if upload is not None]


def _train_row(results: Mapping[int, Result], discarded: int) -> Row:
    """Return what clients report of their training, and the counts of all."""
    row = _over_clients(results, "train", lambda result: result.train)
    row["train/samples"] = sum(result.samples for result in results.values())
    row["train/steps"] = sum(result.steps for result in results.values())
    row["train/discarded"] = discarded
    return row


def _over_clients(
    results: Mapping[int, Result], prefix: str, numbers: Callable[[Result], Mapping[str, float]]
) -> Row:
    """Return sample-weighted means over clients of numbers that their results hold by name."""
    sums: dict[str, float] = {}
    weights: dict[str, float] = {}
    for _, result in sorted(results.items()):
        for name, value in numbers(result).items():
            sums[name] = sums.get(name, 0.0) + value * result.samples
            weights[name] = weights.get(name, 0.0) + result.samples
    return {f"{prefix}/{name}": sums[name] / weights[name] for name in sums}
