"""A pool of long-lived Ray actors that run jobs; an actor that dies is replaced."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from time import monotonic
from typing import Any, TypeAlias

from pfl.core.failure import JobError
from pfl.core.types import Job, Scores
from pfl.engines.messages import Message, MessageEncoder
from pfl.engines.remote.leash import last_words
from pfl.engines.worker import Recipe, Worker

ATTEMPTS = 3  # worker deaths under one job before the run ends
AHEAD = 2  # jobs sent to a worker at a time, so that it never waits for the next one
START_SECONDS = 600.0
ALIVE_SECONDS = 20.0  # silence after which Ray is asked which nodes are alive
_SAID = 250  # characters of a worker's output in an error message

Reply: TypeAlias = "Message | Scores | Exception"
# Ray is optional, so its types cannot be named here.
Actor: TypeAlias = Any
Ref: TypeAlias = Any


class WorkerError(OSError):
    """The cluster or a worker failed, independently of what the method computes."""


class DeadlyJobError(WorkerError):
    """Every worker that runs a job dies."""


def import_ray() -> Any:  # noqa: ANN401
    """Import and return Ray, an optional dependency.

    Raises:
        ImportError: Ray is not installed.
    """
    try:
        return import_module("ray")
    except ImportError as error:
        raise ImportError("the ray engine needs Ray: pip install 'pfl-lightning[ray]'") from error


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
        self._ray = import_ray()
        self._recipe = self._ray.put(recipe)
        self._worker = self._ray.remote(Worker).options(**options)
        self._running: list[Actor] = []
        self._starting: dict[Ref, Actor] = {}
        self._logs: dict[Actor, str] = {}
        for _ in range(count):
            self._start()
        while self._starting:
            self._wait([])

    def run(self, call: str, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Run jobs, the largest clients' first, and yield the workers' replies in their order.

        The reply to a job that fails is its error: :class:`JobError`, or :class:`DeadlyJobError`
        if several workers died while running it.

        Args:
            call: Name of the worker's method: ``train`` or ``test``.
            jobs: The jobs.

        Raises:
            MethodError: The method breaks a promise.
            WorkerError: A replacement of a worker did not start, or the cluster died.
        """
        pending = _PendingJobs(call, jobs)
        for answered in range(len(jobs)):
            while answered not in pending.done:
                self._send(pending)
                for ref in self._wait([*pending.in_flight]):
                    self._receive(ref, pending)
            yield pending.done.pop(answered)

    def close(self) -> None:
        """Stop the actors."""
        for worker in (*self._running, *self._starting.values()):
            self._ray.kill(worker)

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
        """Store a reply, or the job's error; queue the job again if its worker died."""
        ray = self._ray
        worker, index = pending.in_flight.pop(ref)
        try:
            pending.done[index] = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            if not isinstance(error.cause, JobError):
                raise error.cause from error
            pending.done[index] = error.cause
        except ray.exceptions.RayError as error:
            pending.deaths[index] += 1
            if pending.deaths[index] < ATTEMPTS:
                pending.queued.appendleft(index)
            else:
                pending.done[index] = DeadlyJobError(
                    f"{pending.name(index)}: its worker died {ATTEMPTS} times; last output: "
                    f"{_last_output(Path(self._logs[worker]), error)}"
                )
            self._replace(worker)

    def _wait(self, in_flight: list[Ref]) -> list[Ref]:
        """Wait for replies and starting workers; return the replies that arrived."""
        ray = self._ray
        until = monotonic() + START_SECONDS
        while not (arrived := ray.wait([*in_flight, *self._starting], timeout=ALIVE_SECONDS)[0]):
            # Ray goes on waiting for workers that no node is left for.
            if not any(node["Alive"] for node in ray.nodes()):
                raise WorkerError("the Ray cluster has died: none of its nodes is alive")
            # A job may take any time; the start of a worker may not.
            if not in_flight and monotonic() > until:
                raise WorkerError(f"no Ray worker has started after {START_SECONDS:g} seconds")
        for ref in arrived:
            if ref in self._starting:
                worker = self._starting.pop(ref)
                try:
                    self._logs[worker] = ray.get(ref)
                except ray.exceptions.RayError as error:
                    # The cause stands below the traceback.
                    cause = shorten(str(error).strip().splitlines()[-1], _SAID)
                    raise WorkerError(f"a Ray worker could not start: {cause}") from error
                self._running.append(worker)
        return [ref for ref in arrived if ref in in_flight]

    def _start(self) -> None:
        worker = self._worker.remote(self._recipe)
        self._starting[worker.ready.remote()] = worker

    def _replace(self, worker: Actor) -> None:
        """Replace a dead worker once, even if it held several jobs."""
        if worker in self._running:
            self._running.remove(worker)
            # An actor that is only unreachable must release its resources.
            self._ray.kill(worker)
            self._start()


class _PendingJobs:
    """The jobs of one :meth:`Pool.run`, by index: queued, in flight and done.

    Attributes:
        call: Name of the worker's method.
        queued: Jobs not sent yet.
        in_flight: Worker and job of each awaited reply.
        deaths: Number of workers that died while running each job.
        done: Replies that arrived before their turn.
    """

    def __init__(self, call: str, jobs: Sequence[Job]) -> None:
        self.call = call
        self.queued = deque(sorted(range(len(jobs)), key=lambda index: -jobs[index].info.samples))
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


def _last_output(log: Path, error: Exception) -> str:
    """Return a worker's last words, or what Ray's error says of its end, without its advice.

    Args:
        log: The worker's error output, which may be on another machine.
        error: The error that tells of its death.
    """
    detail = str(error).rpartition("Worker exit detail: ")[2].partition("Some common causes")[0]
    said = last_words(log) if log.is_file() else ""
    return shorten(said or detail, _SAID)
