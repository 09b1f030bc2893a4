"""Workers that compute for any client; one that dies is replaced, and its job runs again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Protocol

from pfl.core.failure import JobError
from pfl.core.types import Job
from pfl.engines.absences import OnError, tolerated
from pfl.engines.transport import wire
from pfl.engines.transport.engine import CarriedEngine, FormT, Task
from pfl.training.contexts import Contexts

ATTEMPTS = 3  # worker deaths under one job before the run ends
# Jobs packed ahead for each busy worker, so that it never waits for the next one.
AHEAD = 2
GLANCE = 0.5  # seconds


class WorkerError(OSError):
    """One or all workers failed, for reasons other than the method's code."""


class DeadlyJobError(WorkerError):
    """Every worker that runs a job dies."""


class DeathError(Exception):
    """A worker has died; the message has its last output."""


class Helper(Protocol):
    """A worker, as seen by the run's process."""

    def ready(self) -> None:
        """Wait until the worker is ready.

        Raises:
            WorkerError: It does not start.
        """

    def answer(self, task: Task, content: bytes, common: bytes) -> bytes:
        """Return the worker's answer to a message.

        Raises:
            DeathError: The worker has died.
            WorkerError: All workers have died.
        """

    def end(self) -> None:
        """End the worker, even if it is busy."""


class Pool:
    """Workers that each answer one message at a time; a dead one is replaced in the background.

    Args:
        start: Starts a worker.
        count: Number of workers.

    Raises:
        WorkerError: A worker does not start.
    """

    def __init__(self, start: Callable[[], Helper], count: int) -> None:
        self._start = start
        self._error: WorkerError | None = None
        self._helpers = [start() for _ in range(count)]
        self._idle = SimpleQueue[Helper]()
        try:
            for helper in self._helpers:
                helper.ready()
                self._idle.put(helper)
        except BaseException:
            self.close()
            raise

    def call(self, task: Task, content: bytes, common: bytes) -> bytes:
        """Get a worker's answer to a message; several threads may call at a time.

        Raises:
            DeadlyJobError: Several workers died of it.
            WorkerError: There are no workers left.
        """
        said = ""
        for _ in range(ATTEMPTS):
            helper = self._waited_for()
            try:
                answer = helper.answer(task, content, common)
            except DeathError as error:
                said = str(error)
                self._replace(helper)
            else:
                self._idle.put(helper)
                return answer
        raise DeadlyJobError(f"its worker died {ATTEMPTS} times; last output: {said}")

    def close(self) -> None:
        """End the workers, and stop all waiting for one."""
        self._error = self._error or WorkerError("the run has ended")
        for helper in [*self._helpers]:
            helper.end()

    def _waited_for(self) -> Helper:
        while self._error is None:
            with suppress(Empty):
                return self._idle.get(timeout=GLANCE)
        raise self._error

    def _enter(self, helper: Helper) -> None:
        """Wait for a replacement."""
        try:
            helper.ready()
            self._idle.put(helper)
        except WorkerError as error:
            self._helpers.remove(helper)
            # The others continue without it.
            if not self._helpers:
                self._error = self._error or error

    def _replace(self, dead: Helper) -> None:
        dead.end()
        self._helpers.remove(dead)
        if self._error is None:
            self._helpers.append(new := self._start())
            # The others keep working until it is ready.
            Thread(target=self._enter, args=(new,), daemon=True).start()


class PooledEngine(CarriedEngine):
    """An engine of long-lived workers; what clients keep travels with their jobs.

    A subclass for a kind of worker calls :meth:`employ` in its ``setup``.

    Args:
        on_error: ``stop`` ends the run if a client's job fails; with ``absent`` the round continues
            without the client: it uploads nothing, has no scores, and takes part again in the next.

    Raises:
        ValueError: ``on_error`` is unknown.
    """

    def __init__(self, on_error: OnError = "stop") -> None:
        super().__init__(*tolerated(on_error, JobError, DeadlyJobError))
        self._pool: Pool | None = None

    def employ(
        self, contexts: Contexts, start: Callable[[], Helper], count: int, op_threads: int
    ) -> None:
        """Start workers for a run.

        Raises:
            WorkerError: One does not start.
        """
        self.begin(contexts)
        self._op_threads = op_threads
        self._pool = Pool(start, count)
        self._threads = ThreadPoolExecutor(AHEAD * count, "pfl-worker")

    def ask(
        self, job: Job, task: Task, form: type[FormT], common: wire.Common
    ) -> tuple[FormT, wire.Tensors]:
        """Make a worker run a job; return its record and the tensors that it sent.

        Raises:
            JobError: The method failed.
            WorkerError: The workers failed.
        """
        assert self._pool is not None
        own, shared = common.split(wire.tensors_of(job.broadcast, job.kept))
        order = self.order(job)
        content = wire.packed(task, order, own)
        try:
            answer = self._pool.call(task, content, shared)
        except DeadlyJobError as error:
            name = f"client {job.info.client} in round {job.info.round}"
            raise DeadlyJobError(f"{name}: {error}") from error
        identity = wire.identity(order, content, shared)
        record, tensors = wire.answered(task, form, answer, identity)
        if isinstance(record, wire.Failure):
            raise JobError(record.message)
        return record, tensors

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.close()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._pool = self._threads = None
