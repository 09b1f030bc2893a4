"""FederatedLoop: sample, broadcast, train, aggregate, evaluate, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.fabric import Fabric

from pfl import checkpoint, local, metrics
from pfl.callbacks import Callback, Checkpoint, LightningLogger, ProgressBar
from pfl.engines.base import Engine
from pfl.engines.sequential import SequentialEngine
from pfl.local import Context
from pfl.records import Records
from pfl.sampling import Sampler, UniformSampler
from pfl.seeds import derive, generator
from pfl.server import Server, ServerState
from pfl.state import clone, fingerprint, nbytes
from pfl.summary import summarise
from pfl.types import (
    ClientInfo,
    EvaluationPoint,
    FederatedData,
    Job,
    Result,
    RoundResult,
    Scores,
    Split,
    State,
)

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

    from lightning_modules.base import ClientModule

Row = dict[str, float]


class NonFiniteError(ArithmeticError):
    """A client's loss or weights are no longer finite numbers."""


@dataclass
class Run:
    """One run: what a callback may read, and what a checkpoint holds.

    Attributes:
        module: The method, playing no client in particular.
        data: The federation's data.
        seed: From which every random choice derives.
        rounds: Planned number of rounds.
        folder: Where the run's files go; ``None`` writes none.
        config: The resolved configuration as YAML, if the run came from one.
        header: What was decided for this run, one line a topic.
        round: Finished rounds.
        server: The server's state after them.
        kept: Each client's state from its last participation.
        history: One row of metrics a round.
        template: The state that every client starts from.
        callbacks: Who listens.
    """

    module: ClientModule
    data: FederatedData
    seed: int
    rounds: int
    folder: Path | None = None
    config: str | None = None
    header: dict[str, str] = field(default_factory=dict)
    round: int = 0
    server: ServerState = field(default_factory=lambda: ServerState(shared={}))
    kept: MutableMapping[int, State] = field(default_factory=dict)
    history: list[Row] = field(default_factory=list)
    template: State = field(default_factory=dict)
    callbacks: Sequence[Callback] = ()

    @property
    def fingerprint(self) -> str:
        """Hash of the server's weights and of every client's kept state."""
        return fingerprint([self.server.shared, *(self.kept[c] for c in sorted(self.kept))])

    @property
    def summary(self) -> dict[str, float]:
        """Last, mean-of-last-10, best-by-validation and best-on-test; see :mod:`pfl.summary`."""
        return summarise(self.history)


class FederatedLoop:
    """Runs a federation: any method, any data, any engine.

    Example::

        loop = FederatedLoop(rounds=20, sampler=UniformSampler(0.5))
        data = CIFAR10(num_clients=20, partition=Dirichlet(0.1), download=True)
        run = loop.fit(FedPer(CNN2(10)), data)
        print(run.summary["test/personal/acc/last"])

    Args:
        rounds: Communication rounds, T.
        sampler: Who trains and who uploads in each round.
        engine: How the jobs of a round are run.
        evaluate_every: Test all models after every this many rounds, and after the last.
        evaluate_at: Points at which personalised models are tested; ``None`` takes the method's
            own. The first gives ``test/personal/...``, further ones ``test/personal_<point>/...``.
        accelerator: As in Lightning.
        devices: As in Lightning; an engine decides how many it can use.
        precision: As in Lightning: ``32-true``, ``64-true``, ``bf16-mixed``, ``16-mixed``.
        gradient_clip_val: Largest gradient norm of a client's step; ``None`` does not clip.
        on_nonfinite: ``stop`` ends the run when a client's loss or weights are not finite; ``skip``
            discards that client's round (its kept state stays, it uploads nothing) and goes on.
        callbacks: Read each round's result.
        loggers: Lightning loggers; each gets one call a round.
        default_root_dir: Below it each run gets a folder ``<name>/<time>``; ``None`` writes none.
        name: Name of the experiment; ``None`` makes it of the method and the data.
        checkpoint_every: Save after every this many rounds, and after the last.
        progress: Show a progress bar and the closing table.
        seed: From which every random choice derives. The network's initial weights are those of the
            module given.

    Raises:
        ValueError: A number is out of its range.
    """

    def __init__(
        self,
        rounds: int = 10,
        sampler: Sampler = UniformSampler(),  # noqa: B008 (frozen)
        engine: Engine | None = None,
        evaluate_every: int = 1,
        evaluate_at: list[EvaluationPoint] | None = None,
        accelerator: str = "auto",
        devices: int | str = 1,
        precision: Literal["32-true", "64-true", "bf16-mixed", "16-mixed"] = "32-true",
        gradient_clip_val: float | None = None,
        on_nonfinite: Literal["stop", "skip"] = "stop",
        callbacks: list[Callback] | None = None,
        loggers: list[Logger] | None = None,
        default_root_dir: str | None = None,
        name: str | None = None,
        checkpoint_every: int = 10,
        progress: bool = True,
        seed: int = 42,
    ) -> None:
        for key, value in (
            ("rounds", rounds),
            ("evaluate_every", evaluate_every),
            ("checkpoint_every", checkpoint_every),
        ):
            if value < 1:
                raise ValueError(f"{key} must be at least 1, got {value}")
        if gradient_clip_val is not None and gradient_clip_val <= 0:
            raise ValueError(f"gradient_clip_val must be positive, got {gradient_clip_val}")
        self.rounds = rounds
        self.sampler = sampler
        self.engine = SequentialEngine() if engine is None else engine
        self.evaluate_every = evaluate_every
        self.evaluate_at = evaluate_at
        self.gradient_clip_val = gradient_clip_val
        self.on_nonfinite = on_nonfinite
        self.default_root_dir = default_root_dir
        self.name = name
        self.seed = seed
        self.fabric = Fabric(accelerator=accelerator, devices=devices, precision=precision)
        self.callbacks: list[Callback] = [*(callbacks or []), *map(LightningLogger, loggers or [])]
        if default_root_dir is not None:
            # Records first: rows beyond the checkpoint are dropped on a resume, never missing.
            self.callbacks += [Records(), Checkpoint(checkpoint_every)]
        if progress:
            self.callbacks.append(ProgressBar())

    # What a user calls.

    def fit(
        self,
        module: ClientModule,
        data: FederatedData,
        ckpt_path: str | None = None,
        config: str | None = None,
    ) -> Run:
        """Train the federation; returns the finished run.

        Args:
            module: The method, with its network's initial weights.
            data: The federation's data.
            ckpt_path: Goes on from there: a checkpoint, a run's folder, or ``last``.
            config: The resolved configuration as YAML, to be stored with the run.

        Raises:
            NonFiniteError: See ``on_nonfinite``.
            CheckpointError: ``ckpt_path`` cannot be used.
            KeyboardInterrupt: The run was interrupted; its checkpoint was saved.
        """
        with closing(_Federation(self, module, data, ckpt_path, config)) as federation:
            run = federation.run
            self._notify("on_fit_start", run)
            try:
                for result in federation.rounds(self._client_done(run)):
                    self._notify("on_round_end", run, result)
                    if any(callback.should_stop for callback in self.callbacks):
                        break
            except BaseException:
                self._notify("on_interrupt", run)
                raise
            self._notify("on_fit_end", run)
        return run

    def rounds_of(self, module: ClientModule, data: FederatedData) -> Iterator[RoundResult]:
        """The rounds one by one, for those who want to write their own outer loop."""
        with closing(_Federation(self, module, data, None, None)) as federation:
            yield from federation.rounds(lambda result: None)

    def test(
        self, module: ClientModule, data: FederatedData, ckpt_path: str | None = None
    ) -> dict[str, float]:
        """Test all models of a checkpoint, or the initial ones, as after a round.

        Raises:
            CheckpointError: ``ckpt_path`` cannot be used.
        """
        with closing(_Federation(self, module, data, ckpt_path, None)) as federation:
            row, _ = federation.evaluate({}, federation.run.server)
        return row

    def personal(
        self, module: ClientModule, data: FederatedData, ckpt_path: str, client: int
    ) -> None:
        """Turn ``module`` into one client's personalised model of a checkpoint.

        Raises:
            CheckpointError: ``ckpt_path`` cannot be used.
            ValueError: There is no such client.
        """
        if not 0 <= client < data.num_clients:
            raise ValueError(
                f"there is no client {client}; the clients are 0 to {data.num_clients - 1}"
            )
        with closing(_Federation(self, module, data, ckpt_path, None)) as federation:
            federation.personal(client)

    def _client_done(self, run: Run) -> Callable[[Result], None]:
        return lambda result: self._notify("on_result", run, result)

    def _notify(self, event: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(*arguments)


class _Federation:
    """A run in progress: the loop's settings applied to one module and one data set."""

    def __init__(
        self,
        loop: FederatedLoop,
        module: ClientModule,
        data: FederatedData,
        ckpt_path: str | None,
        config: str | None,
    ) -> None:
        self.loop = loop
        name = loop.name or f"{type(module).__name__}_{type(data).__name__}".lower()
        root = None if loop.default_root_dir is None else Path(loop.default_root_dir) / name
        source = None if ckpt_path is None else checkpoint.resolve(ckpt_path, root or Path())
        content = None if source is None else checkpoint.load(source)
        data.to(loop.fabric.device)
        self.context = Context(module, data, loop.fabric, loop.gradient_clip_val)
        self.infos = [_info(data, client, loop.rounds) for client in range(data.num_clients)]
        self.eligible = [info.client for info in self.infos if info.samples > 0]
        if not self.eligible:
            raise ValueError("no client has training data")
        self.server: Server[Any] = module.server()
        shared = clone({n: self.context.template[n] for n in module.shared_names()})
        self.run = Run(
            module=module,
            data=data,
            seed=loop.seed,
            rounds=loop.rounds,
            folder=_folder(root, source),
            config=config,
            server=self.server.init(shared, self.infos),
            template=self.context.template,
            callbacks=loop.callbacks,
        )
        if content is not None:
            self._restore(content)
        self.points = loop.evaluate_at or [module.evaluate_at]
        self.run.header = {
            "method": type(module).__name__,
            "clients": f"{data.num_clients}, of which {len(self.eligible)} hold training data",
            "device": f"{loop.fabric.device}, {loop.fabric.strategy.precision.precision}",
            "buffers": module.buffer_policy,
            "evaluated": ", ".join(self.points),
            "engine": loop.engine.setup(self.context),
        }

    def close(self) -> None:
        """Release the engine."""
        self.loop.engine.close()

    # One round.

    def rounds(self, done: Callable[[Result], None]) -> Iterator[RoundResult]:
        """The remaining rounds; ``done`` is called after each client."""
        run, loop = self.run, self.loop
        while run.round < loop.rounds:
            started = time.perf_counter()
            number = run.round + 1
            cohort = loop.sampler(self.eligible, generator(loop.seed, "cohort", number))
            evaluated = number % loop.evaluate_every == 0 or number == loop.rounds
            before = run.server
            jobs = [self._job(client, number, before) for client in cohort.trains]
            if evaluated and "post_local" in self.points:
                jobs = [replace(job, splits=("val", "test")) for job in jobs]
            results = self._train(jobs, done)
            trained = time.perf_counter()
            sent = {job.info.client: nbytes(job.broadcast.shared) + nbytes(job.broadcast.extra)
                    for job in jobs if job.broadcast is not None}  # fmt: skip
            uploads = [
                result.upload
                for client, result in sorted(results.items())
                if client in cohort.uploads and result.upload is not None
            ]
            after = self.server.aggregate(before, uploads)
            # From here on the round counts: what is interrupted before it is done again.
            run.kept.update({client: result.kept for client, result in results.items()})
            run.server, run.round = after, number
            row: Row = {"round": number, **_train_row(results, len(jobs) - len(results))}
            row["comm/bytes_down"] = sum(sent.values())
            row["comm/bytes_up"] = sum(nbytes(u.shared) + nbytes(u.extra) for u in uploads)
            row["comm/bytes_total"] = (
                row["comm/bytes_down"]
                + row["comm/bytes_up"]
                + (run.history[-1]["comm/bytes_total"] if run.history else 0)
            )
            row |= {f"server/{name}": value for name, value in (after.report or {}).items()}
            clients: list[Row] = []
            aggregated = time.perf_counter()
            if evaluated:
                scores, clients = self.evaluate(results, before)
                row |= scores
                for client_row in clients:
                    client_row["trained"] = client_row["client"] in cohort.trains
                    client_row["uploaded"] = client_row["client"] in cohort.uploads
            ended = time.perf_counter()
            row["time/train"] = trained - started
            row["time/aggregate"] = aggregated - trained
            row["time/evaluate"] = ended - aggregated
            row["time/round"] = ended - started
            run.history.append(row)
            yield RoundResult(number, cohort, row, clients, evaluated)

    def _job(self, client: int, number: int, state: ServerState) -> Job:
        return Job(
            info=replace(self.infos[client], round=number),
            kept=self.run.kept.get(client, {}),
            broadcast=self.server.broadcast(state, client, number),
            seed=derive(self.loop.seed, "client", number, client),
        )

    def _train(self, jobs: Sequence[Job], done: Callable[[Result], None]) -> dict[int, Result]:
        results = {}
        for result in self.loop.engine.train(jobs):
            if not result.finite:
                if self.loop.on_nonfinite == "stop":
                    raise NonFiniteError(
                        f"round {self.run.round + 1}, client {result.client}: the loss or the "
                        f"weights are not finite (losses: {_losses(result)}). Lower the learning "
                        "rate, clip gradients (loop.gradient_clip_val), or go on without such "
                        "clients (loop.on_nonfinite: skip)"
                    )
            else:
                results[result.client] = result
            done(result)
        return results

    # Tests.

    def evaluate(self, results: Mapping[int, Result], before: ServerState) -> tuple[Row, list[Row]]:
        """Test the personalised models of all clients at every point, and the global model.

        Args:
            results: This round's training, by client, scored right after it.
            before: The server's state that this round was trained from.
        """
        row: Row = {}
        rows: list[Row] = [
            {"round": self.run.round, "client": i.client, "samples": i.samples} for i in self.infos
        ]
        for position, point in enumerate(self.points):
            group = "personal" if position == 0 else f"personal_{point}"
            found = self._personal_scores(point, results, before)
            row |= self._collect(found, group, rows)
        if self.context.module.has_global_model():
            found = self._test([info.client for info in self.infos], self.run.server, "global")
            row |= self._collect(found, "global", rows)
            if self.context.data.pooled_test() is not None:
                pooled = self._test([-1], self.run.server, "global")[-1]["pooled"]
                row |= {f"test/pooled/{name}": value for name, value in pooled.items()}
        for name, values in (self.run.server.client_report or {}).items():
            for client, value in values.items():
                rows[client][name] = value
        return row, rows

    def _personal_scores(
        self, point: EvaluationPoint, results: Mapping[int, Result], before: ServerState
    ) -> dict[int, Scores]:
        """Scores by client at one point.

        ``post_local``: whoever trained is tested as its training left it, the others with what they
        received at the start of this round.
        """
        clients = [info.client for info in self.infos]
        if point == "post_broadcast":
            return self._test(clients, self.run.server, "personal")
        scored = {client: result.scores for client, result in results.items()}
        others = [client for client in clients if client not in scored]
        return scored | self._test(others, before, "personal")

    def _test(
        self, clients: Sequence[int], state: ServerState, model: Literal["personal", "global"]
    ) -> dict[int, Scores]:
        number = self.run.round
        splits: tuple[Split, ...] = ("val", "test")
        jobs = []
        for client in clients:
            if client < 0:
                job = replace(self._job(0, number, state), kept={}, splits=("pooled",))
                job = replace(job, info=replace(job.info, client=client))
            else:
                job = replace(self._job(client, number, state), splits=splits)
            jobs.append(replace(job, model=model, seed=derive(job.seed, "test")))
        return dict(zip(clients, self.loop.engine.test(jobs), strict=True))

    def _collect(self, found: Mapping[int, Scores], group: str, rows: list[Row]) -> Row:
        summary: Row = {}
        for split in ("test", "val"):
            scored = {c: s[split] for c, s in found.items() if split in s}
            for client, values in scored.items():
                rows[client] |= {f"{split}/{group}/{name}": v for name, v in values.items()}
            sizes = [len(self.context.data.split(client, split)) for client in scored]
            summary |= metrics.over_clients(list(scored.values()), sizes, f"{split}/{group}")
        return summary

    def personal(self, client: int) -> None:
        """Leave the module as the client's personalised model."""
        local.test(self.context, self._job(client, self.run.round, self.run.server))

    def _restore(self, content: Mapping[str, Any]) -> None:
        run, device = self.run, self.loop.fabric.device
        for what, found, wanted in (
            ("method", content["method"], type(run.module).__name__),
            ("partition", content["partition"], run.data.description().get("hash")),
        ):
            if found != wanted:
                raise checkpoint.CheckpointError(
                    f"the checkpoint was written with the {what} {found}, this run has {wanted}"
                )
        template = checkpoint.move(content["template"], device)
        if template.keys() != self.context.template.keys():
            raise checkpoint.CheckpointError(
                "the checkpoint's network has other entries than the configured one"
            )
        self.context.template = run.template = template
        run.round = content["round"]
        run.server = checkpoint.unpack(run.server, content["server"], device)
        run.kept = {int(c): checkpoint.move(k, device) for c, k in content["kept"].items()}
        run.history = content["history"]
        for callback in self.loop.callbacks:
            callback.load_state_dict(content["callbacks"].get(callback.name, {}))


def _info(data: FederatedData, client: int, rounds: int) -> ClientInfo:
    labels = data.split(client, "train").labels
    counts = torch.bincount(labels, minlength=data.num_classes)
    return ClientInfo(client=client, samples=len(labels), label_counts=counts, rounds=rounds)


def _folder(root: Path | None, source: Path | None) -> Path | None:
    """A new folder for the run, or the one that it goes on in."""
    if root is None:
        return None
    if source is not None and source.parent.name == "checkpoints":
        return source.parent.parent
    stamp = time.strftime("%Y%m%d-%H%M%S")
    number = 0
    while True:
        folder = root / (f"{stamp}-{number}" if number else stamp)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return folder


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


def _losses(result: Result) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in result.train.items())
