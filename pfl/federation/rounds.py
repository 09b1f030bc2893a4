"""A run in progress: the loop's settings applied to one method and one data set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pfl.core.client import Client
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
from pfl.federation import checkpoint
from pfl.federation.evaluation import Evaluator
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
        ckpt_path: A checkpoint to go on from, a run's folder, or ``last``.

    Raises:
        ValueError: No client has training data.
        CheckpointError: ``ckpt_path`` cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        module: Client,
        data: FederatedData,
        ckpt_path: str | None = None,
    ) -> None:
        self.settings = settings
        name = settings.name or f"{type(module).__name__}_{type(data).__name__}".lower()
        self.root = (
            None if settings.default_root_dir is None else Path(settings.default_root_dir) / name
        )
        self.source = None
        if ckpt_path is not None:
            self.source = checkpoint.resolve(ckpt_path, self.root or Path())
        content = None if self.source is None else checkpoint.load(self.source)
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
            server=self.server.init(shared, clients),
            kept=kept,
            template=self.context.template,
            constants=fingerprint([constants(module)]),
            reports=self.server.reports,
            callbacks=settings.callbacks,
        )
        if content is not None:
            self._restore(content)
        points = settings.evaluate_at or [module.evaluate_at]
        self.evaluator = Evaluator(
            settings.engine,
            data,
            clients,
            points,
            module.has_global_model(),
            self.context.scorer,
            self._job,
        )
        self.run.header = {
            "method": type(module).__name__,
            "clients": f"{data.num_clients}, of which {len(self.eligible)} hold training data",
            "device": f"{settings.fabric.device}, {settings.fabric.strategy.precision.precision}",
            "buffers": module.buffer_policy,
            "evaluated": ", ".join(points),
            "engine": settings.engine.setup(self.context),
        }

    def close(self) -> None:
        """Release the engine."""
        self.settings.engine.close()

    def open_folder(self) -> None:
        """Make the run's folder, or go on in the one of the checkpoint."""
        if self.root is None:
            return
        if self.source is not None and self.source.parent.name == "checkpoints":
            self.run.folder = self.source.parent.parent
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

    def rounds(self, done: Callable[[Result], None]) -> Iterator[RoundResult]:
        """The remaining rounds; ``done`` is called after each client.

        Raises:
            NonFiniteError: A client's numbers are not finite, and the loop is to stop then.
        """
        run, settings = self.run, self.settings
        while run.round < settings.rounds:
            clock = _Clock()
            number = run.round + 1
            cohort = settings.sampler(self.eligible, generator(settings.seed, "cohort", number))
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
            clients: list[Row] = []
            with self._outcome(jobs, results, after):
                if evaluated:
                    scores, clients = self.evaluator.evaluate(results, before, after)
                    row |= scores
                    trained, uploaded = set(cohort.trains), set(cohort.uploads)
                    for client_row in clients:
                        client_row["trained"] = client_row["client"] in trained
                        client_row["uploaded"] = client_row["client"] in uploaded
                clock.lap("time/evaluate")
                row |= clock.laps
                run.history.append(row)
            yield RoundResult(number, cohort, row, clients, evaluated)

    @contextmanager
    def _outcome(
        self, jobs: Sequence[Job], results: Mapping[int, Result], after: ServerState
    ) -> Iterator[None]:
        """A round's outcome becomes the run's; if its tests are interrupted, it is taken back.

        Then the round is done again on a resume, and no row of the history is missing.
        """
        run, before, number = self.run, self.run.server, self.run.round
        try:
            run.kept.update({client: result.kept for client, result in results.items()})
            run.server, run.round = after, number + 1
            yield
        except BaseException:
            run.server, run.round = before, number
            for job in jobs:
                run.kept.pop(job.info.client, None)
            run.kept.update({job.info.client: job.kept for job in jobs if job.kept})
            raise

    def personal(self, client: int) -> None:
        """Leave the module as the client's personalised model."""
        client_round.test(self.context, self._job(client, self.run.server))

    def _job(self, client: int, state: ServerState, number: int | None = None) -> Job:
        """The client's job on a server's state, in the round at hand or the one to come."""
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
            ("method", content["method"], type(module).__name__),
            ("partition", content["partition"], data.description().get("hash")),
        ):
            if found != wanted:
                raise checkpoint.CheckpointError(
                    f"the checkpoint was written with the {what} {found}, this run has {wanted}"
                )
        template: State = content["template"]
        if template.keys() != module.state_dict().keys():
            raise checkpoint.CheckpointError(
                "the checkpoint's network has other entries than the configured one"
            )
        return {n: v.to(self.settings.fabric.device, copy=True) for n, v in template.items()}

    def _restore(self, content: Mapping[str, Any]) -> None:
        run, device = self.run, self.settings.fabric.device
        if content.get("constants", run.constants) != run.constants:
            raise checkpoint.CheckpointError(
                "the checkpoint was written with other frozen parts of the network, which it does "
                "not hold: build the network with the weights that they had"
            )
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


def _uploads(results: Mapping[int, Result], cohort: Cohort) -> list[Upload]:
    """What reaches the server, in ascending order of clients."""
    found = [results[client].upload for client in cohort.uploads if client in results]
    return [upload for upload in found if upload is not None]


def _train_row(results: Mapping[int, Result], discarded: int) -> Row:
    """Sample-weighted means over clients of what they report of their training."""
    sums: dict[str, float] = {}
    weights: dict[str, float] = {}
    for _, result in sorted(results.items()):
        for name, value in result.train.items():
            sums[name] = sums.get(name, 0.0) + value * result.samples
            weights[name] = weights.get(name, 0.0) + result.samples
    row: Row = {f"train/{name}": sums[name] / weights[name] for name in sums}
    row["train/samples"] = sum(result.samples for result in results.values())
    row["train/steps"] = sum(result.steps for result in results.values())
    row["train/discarded"] = discarded
    return row
