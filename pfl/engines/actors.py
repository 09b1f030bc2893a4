"""A pool of long-lived Ray actors that run jobs; an actor that dies is replaced."""

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
from pfl.engines.messages import Message, MessageEncoder, decode_job, encode_result
from pfl.training import client_round
from pfl.training.context import Context

if TYPE_CHECKING:
    from pfl.core.client import Client

ATTEMPTS = 3  # worker deaths under one job before the run ends
AHEAD = 2  # jobs sent to a worker at a time, so that it never waits for the next one
START_SECONDS = 600.0

Reply: TypeAlias = "Message | Scores"
# Ray is optional, so its types cannot be named here.
Actor: TypeAlias = Any
Ref: TypeAlias = Any


class WorkerError(RuntimeError):
    """A worker could not be started, or workers died too often under one job."""


class JobError(RuntimeError):
    """A client's job raised an error in its worker; the message shows that error."""


def import_ray() -> Any:  # noqa: ANN401
    """Import and return Ray, an optional dependency.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return import_module("ray")
    except ImportError as error:
        raise ImportError("the ray engine needs Ray: pip install 'pfl-lightning[ray]'") from error


@dataclass(frozen=True)
class Recipe:
    """Everything a worker needs to build its context, and its numerical settings.

    Attributes:
        module: The method, on the CPU.
        data: The data module; one of ``datamodules`` is sent without its samples, which each
            worker reads itself.
        template: Initial values, on the CPU; after a resume they differ from the module's.
        trainable: As in :class:`~pfl.training.context.Context`.
        gradient_clip_val: As in :class:`~pfl.training.context.Context`.
        accelerator: As in Lightning.
        precision: As in Lightning.
        threads: Op threads of a worker.
        matmul_precision: As in torch.
        deterministic: Whether torch must use deterministic algorithms.
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
        """Return the recipe of a context, with the numerical settings of this process."""
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
    """A Ray actor that runs the jobs it receives."""

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
        """Return once the worker is built; the pool waits for it."""

    def train(self, message: Message, shared_payload: bytes) -> Message:
        """Run a client's round and return its encoded result."""
        job = decode_job(message, shared_payload, self._context.fabric.device)
        return encode_result(client_round.train(self._context, job))

    def test(self, message: Message, shared_payload: bytes) -> Scores:
        """Test a job's model and return its scores."""
        return client_round.test(
            self._context, decode_job(message, shared_payload, self._context.fabric.device)
        )


class Pool:
    """A fixed number of actors; a dead one is replaced while the others continue.

    Args:
        recipe: Stored in the object store once, for all actors and their replacements.
        count: Number of actors.
        options: Resources and placement of each actor, as Ray's ``options`` takes them.

    Raises:
        WorkerError: An actor does not start.
    """

    def __init__(self, recipe: Recipe, count: int, **options: Any) -> None:
        ray = import_ray()
        self._recipe = ray.put(recipe)
        self._kind = ray.remote(Worker).options(**options)
        self._running: list[Actor] = []
        self._starting: dict[Ref, Actor] = {}
        for _ in range(count):
            self._start()
        while self._starting:
            self._wait([])

    def run(self, call: str, jobs: Sequence[Job], order: Sequence[int]) -> Iterator[Reply]:
        """Run jobs and yield the workers' replies, in the order of ``jobs``.

        Args:
            call: Name of the worker's method: ``train`` or ``test``.
            jobs: The jobs.
            order: Indices of the jobs, in the order in which they are sent.

        Raises:
            JobError: A job raised.
            WorkerError: Workers died too often under one job, or a replacement did not start.
        """
        pending = _PendingJobs(call, jobs, order)
        for answered in range(len(jobs)):
            while answered not in pending.done:
                self._send(pending)
                for ref in self._wait([*pending.in_flight]):
                    self._receive(ref, pending)
            yield pending.done.pop(answered)

    def close(self) -> None:
        """Stop the actors."""
        ray = import_ray()
        for worker in (*self._running, *self._starting.values()):
            ray.kill(worker)

    def _send(self, pending: _PendingJobs) -> None:
        """Send queued jobs to the least loaded workers, up to ``AHEAD`` slots each."""
        load = dict.fromkeys(self._running, 0)
        for worker, index in pending.in_flight.values():
            if worker in load:
                load[worker] += pending.slots(index)
        while pending.queued and load:
            index = pending.queued[0]
            worker = min(load, key=lambda worker: load[worker])
            if load[worker] + pending.slots(index) > AHEAD:
                return
            pending.queued.popleft()
            ref = getattr(worker, pending.call).remote(*pending.message(index))
            pending.in_flight[ref] = (worker, index)
            load[worker] += pending.slots(index)

    def _receive(self, ref: Ref, pending: _PendingJobs) -> None:
        """Store a reply; queue the job again if its worker died."""
        ray = import_ray()
        worker, index = pending.in_flight.pop(ref)
        try:
            pending.done[index] = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            raise JobError(f"{pending.name(index)}: {error.cause!r}") from error
        except ray.exceptions.RayError as error:
            pending.deaths[index] += 1
            if pending.deaths[index] == ATTEMPTS:
                raise WorkerError(
                    f"{pending.name(index)}: its worker died {ATTEMPTS} times ({error})"
                ) from error
            pending.queued.appendleft(index)
            self._replace(worker)

    def _wait(self, in_flight: list[Ref]) -> list[Ref]:
        """Wait for replies and starting workers; return the replies that arrived."""
        ray = import_ray()
        # A job may take any time; the start of a worker may not.
        limit = None if in_flight else START_SECONDS
        arrived, _ = ray.wait([*in_flight, *self._starting], timeout=limit)
        if not arrived:
            raise WorkerError(f"no Ray worker has started after {START_SECONDS:g} seconds")
        for ref in arrived:
            if ref in self._starting:
                worker = self._starting.pop(ref)
                try:
                    ray.get(ref)
                except ray.exceptions.RayError as error:
                    raise WorkerError(f"a Ray worker could not start: {error}") from error
                self._running.append(worker)
        return [ref for ref in arrived if ref in in_flight]

    def _start(self) -> None:
        worker = self._kind.remote(self._recipe)
        self._starting[worker.ready.remote()] = worker

    def _replace(self, worker: Actor) -> None:
        """Replace a dead worker, once however many jobs it held."""
        ray = import_ray()
        if worker in self._running:
            self._running.remove(worker)
            # An actor that is only unreachable must release its resources.
            ray.kill(worker)
            self._start()


class _PendingJobs:
    """The jobs of one :meth:`Pool.run`, by index: queued, in flight and done.

    Attributes:
        call: Name of the worker's method.
        queued: Jobs not sent yet.
        in_flight: Worker and job of each awaited reply.
        deaths: Number of workers that died under each job.
        done: Replies that arrived before their turn.
    """

    def __init__(self, call: str, jobs: Sequence[Job], order: Sequence[int]) -> None:
        self.call = call
        self.queued = deque(order)
        self.in_flight: dict[Ref, tuple[Actor, int]] = {}
        self.deaths = [0] * len(jobs)
        self.done: dict[int, Reply] = {}
        self._jobs = jobs
        self._encoder = MessageEncoder(jobs, import_ray().put)

    def message(self, index: int) -> tuple[Message, Any]:
        """Return a job's message and its shared payload."""
        return self._encoder.encode(self._jobs[index])

    def slots(self, index: int) -> int:
        """Return the number of slots that a job takes at a worker.

        A job whose worker died takes all slots of the next one. If that one dies too, the job is
        at fault.
        """
        return AHEAD if self.deaths[index] else 1

    def name(self, index: int) -> str:
        """Return a job's name for error messages."""
        info = self._jobs[index].info
        return f"client {info.client} in round {info.round}"
