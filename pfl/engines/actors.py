"""Long-lived Ray actors that run jobs, and replacement for those that die."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from lightning.fabric import Fabric

from pfl.core.state import to
from pfl.core.types import FederatedData, Job, Scores, State
from pfl.engines.messages import Letter, Outbox, open_job, seal_result
from pfl.training import client_round
from pfl.training.context import Context

if TYPE_CHECKING:
    from pfl.core.client import Client

ATTEMPTS = 3  # of a job; then the death of its worker ends the run
AHEAD = 2  # jobs that a worker holds, so that it never waits for the next
START_SECONDS = 600.0

Reply: TypeAlias = "Letter | Scores"
# Of Ray, whose types cannot be named where it is not installed.
Actor: TypeAlias = Any
Ref: TypeAlias = Any


class WorkerError(RuntimeError):
    """Workers cannot be started, or die again and again."""


class JobError(RuntimeError):
    """A client's job raised; the cause is what it raised in its worker."""


def import_ray() -> Any:  # noqa: ANN401
    """Ray, which is an optional dependency.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return import_module("ray")
    except ImportError as error:
        raise ImportError("the ray engine needs Ray: pip install 'pfl-lightning[ray]'") from error


@dataclass(frozen=True)
class Recipe:
    """What a worker makes its context of, and how it computes.

    Attributes:
        module: On the CPU.
        data: A module of ``datamodules`` travels as its recipe; each worker reads for itself.
        template: On the CPU; after a resume it is not what the module holds.
        trainable: As in :class:`~pfl.training.context.Context`.
        gradient_clip_val: As in :class:`~pfl.training.context.Context`.
        accelerator: As in Lightning.
        precision: As in Lightning.
        threads: Op threads.
        matmul_precision: As in torch.
        deterministic: Whether torch refuses algorithms that are not.
    """

    module: Client
    data: FederatedData
    template: State
    trainable: set[str]
    gradient_clip_val: float | None
    accelerator: Literal["cpu", "cuda"]
    precision: Any
    threads: int
    matmul_precision: str
    deterministic: bool

    @classmethod
    def of(cls, context: Context, threads: int, gpu: bool) -> Recipe:
        """The recipe of a context, for workers that compute as this process does."""
        fabric, module = context.module.fabric, context.module
        # A module's Fabric belongs to its process.
        module.fabric = None
        try:
            replica = copy.deepcopy(module).cpu()
        finally:
            module.fabric = fabric
        return cls(
            module=replica,
            data=context.data,
            template=to(context.template, "cpu"),
            trainable=context.trainable,
            gradient_clip_val=context.gradient_clip_val,
            accelerator="cuda" if gpu else "cpu",
            precision=context.fabric.strategy.precision.precision,
            threads=threads,
            matmul_precision=torch.get_float32_matmul_precision(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )


class Worker:
    """One actor: plays the clients of the jobs that it is sent."""

    def __init__(self, recipe: Recipe) -> None:
        torch.set_num_threads(recipe.threads)
        torch.set_float32_matmul_precision(recipe.matmul_precision)
        torch.use_deterministic_algorithms(recipe.deterministic)
        fabric = Fabric(accelerator=recipe.accelerator, devices=1, precision=recipe.precision)
        recipe.data.to(fabric.device)
        self._context = Context(
            recipe.module,
            recipe.data,
            fabric,
            recipe.gradient_clip_val,
            template=to(recipe.template, fabric.device),
            trainable=recipe.trainable,
        )

    def ready(self) -> None:
        """Answers once the worker stands."""

    def train(self, letter: Letter, enclosure: bytes) -> Letter:
        """Run a client's round."""
        job = open_job(letter, enclosure, self._context.fabric.device)
        return seal_result(client_round.train(self._context, job))

    def test(self, letter: Letter, enclosure: bytes) -> Scores:
        """Test a job's model."""
        return client_round.test(
            self._context, open_job(letter, enclosure, self._context.fabric.device)
        )


class Pool:
    """Actors of equal standing; a dead one is replaced while the others go on.

    Args:
        recipe: Put into the object store once, for all actors and their successors.
        count: Number of actors.
        options: What each actor reserves, and where, as Ray takes it.

    Raises:
        WorkerError: An actor does not start.
    """

    def __init__(self, recipe: Recipe, count: int, **options: Any) -> None:
        ray = import_ray()
        self._recipe = ray.put(recipe)
        self._kind = ray.remote(Worker).options(**options)
        self._standing: list[Actor] = []
        self._starting: dict[Ref, Actor] = {}
        for _ in range(count):
            self._start()
        while self._starting:
            self._wait([])

    def run(self, call: str, jobs: Sequence[Job], order: Sequence[int]) -> Iterator[Reply]:
        """The workers' answers to jobs, in the order of the jobs.

        Args:
            call: Which method of the worker.
            jobs: All jobs.
            order: In which they are started.

        Raises:
            JobError: A job raised.
            WorkerError: Workers die again and again.
        """
        errand = _Errand(call, jobs, order)
        for answered in range(len(jobs)):
            while answered not in errand.done:
                self._send(errand)
                for ref in self._wait([*errand.flying]):
                    self._receive(ref, errand)
            yield errand.done.pop(answered)

    def close(self) -> None:
        """Stop the actors."""
        ray = import_ray()
        for worker in (*self._standing, *self._starting.values()):
            ray.kill(worker)

    def _send(self, errand: _Errand) -> None:
        """Give waiting jobs to the workers that hold fewest, until all hold enough."""
        load = dict.fromkeys(self._standing, 0)
        for worker, index in errand.flying.values():
            if worker in load:
                load[worker] += errand.weight(index)
        while errand.waiting and load:
            index = errand.waiting[0]
            worker = min(load, key=lambda worker: load[worker])
            if load[worker] + errand.weight(index) > AHEAD:
                return
            errand.waiting.popleft()
            ref = getattr(worker, errand.call).remote(*errand.letter(index))
            errand.flying[ref] = (worker, index)
            load[worker] += errand.weight(index)

    def _receive(self, ref: Ref, errand: _Errand) -> None:
        """Take an answer; what a dead worker leaves undone waits again."""
        ray = import_ray()
        worker, index = errand.flying.pop(ref)
        try:
            errand.done[index] = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            raise JobError(f"{errand.name(index)}: {error.cause!r}") from error
        except ray.exceptions.RayError as error:
            errand.deaths[index] += 1
            if errand.deaths[index] == ATTEMPTS:
                raise WorkerError(
                    f"{errand.name(index)}: its worker died {ATTEMPTS} times ({error})"
                ) from error
            errand.waiting.appendleft(index)
            self._replace(worker)

    def _wait(self, flying: list[Ref]) -> list[Ref]:
        """Wait until something arrives; those of ``flying`` that did."""
        ray = import_ray()
        # Without a job under way it is only a worker's start that can end the waiting.
        limit = None if flying else START_SECONDS
        arrived, _ = ray.wait([*flying, *self._starting], timeout=limit)
        if not arrived:
            raise WorkerError(f"no Ray worker stands after {START_SECONDS:g} seconds")
        for ref in arrived:
            if ref in self._starting:
                worker = self._starting.pop(ref)
                try:
                    ray.get(ref)
                except ray.exceptions.RayError as error:
                    raise WorkerError(f"a Ray worker could not start: {error}") from error
                self._standing.append(worker)
        return [ref for ref in arrived if ref in flying]

    def _start(self) -> None:
        worker = self._kind.remote(self._recipe)
        self._starting[worker.ready.remote()] = worker

    def _replace(self, worker: Actor) -> None:
        """Start a successor, once for all jobs that a dead worker held."""
        ray = import_ray()
        if worker in self._standing:
            self._standing.remove(worker)
            # One that is only out of reach must not keep its place.
            ray.kill(worker)
            self._start()


class _Errand:
    """A call of :meth:`Pool.run`, and how far it is.

    Attributes:
        call: Which method of the worker.
        waiting: Jobs not sent yet, by their place in the call.
        flying: Jobs on their way or at work, and with whom.
        deaths: How often each job's worker died under it.
        done: Answers that arrived before their turn.
    """

    def __init__(self, call: str, jobs: Sequence[Job], order: Sequence[int]) -> None:
        self.call = call
        self.waiting = deque(order)
        self.flying: dict[Ref, tuple[Actor, int]] = {}
        self.deaths = [0] * len(jobs)
        self.done: dict[int, Reply] = {}
        self._jobs = jobs
        self._outbox = Outbox(jobs, import_ray().put)

    def letter(self, index: int) -> tuple[Letter, Any]:
        """A job as it is sent."""
        return self._outbox.letter(self._jobs[index])

    def weight(self, index: int) -> int:
        """Places that a job takes at a worker.

        One whose worker died has it to itself: if that one dies too, it is known by which job.
        """
        return AHEAD if self.deaths[index] else 1

    def name(self, index: int) -> str:
        """A job as it is named in messages."""
        info = self._jobs[index].info
        return f"client {info.client} in round {info.round}"
