"""The engine that runs clients in processes of this machine."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import torch

from pfl.core.checks import at_least_one
from pfl.core.devices import on_host
from pfl.core.failure import error_line
from pfl.engines import cores
from pfl.engines.absences import OnError
from pfl.engines.transport.engine import Task
from pfl.engines.transport.pool import DeathError, Helper, PooledEngine, WorkerError
from pfl.engines.transport.worker import Recipe, Worker
from pfl.training.contexts import Contexts

Line: TypeAlias = "Connection[Any, Any]"
# A forked process shares all that was loaded; outside Linux it may be unable to compute.
_PROCESSES: Any = get_context("fork" if sys.platform == "linux" else "spawn")
_GLANCE = 0.5  # seconds


class ProcessesEngine(PooledEngine):
    """An engine of processes on this machine, each with one op thread.

    Its numbers equal bit for bit those of the sequential engine with one op thread. It supports
    networks with dropout, and short steps do not wait for a shared interpreter, as they do in
    threads; but all that a client receives, sends and keeps is copied.

    Args:
        workers: Number of processes; ``None`` starts as many as there are free cores.
        on_error: As for :class:`~pfl.engines.transport.pool.PooledEngine`.

    Raises:
        ValueError: ``workers`` is below one, or ``on_error`` is unknown.
    """

    def __init__(self, workers: int | None = None, on_error: OnError = "stop") -> None:
        super().__init__(on_error)
        at_least_one(workers=workers)
        self.workers, self._scope = workers, ExitStack()

    def setup(self, contexts: Contexts) -> str:
        """Start the processes.

        Raises:
            ValueError: The loop does not run on a CPU.
            WorkerError: A process does not start.
        """
        if not on_host(contexts.fabric.device):
            raise ValueError(
                f"the loop runs on {contexts.fabric.device}, and processes are for CPUs: take "
                "another engine, or set loop.accelerator to cpu"
            )
        self.share = cores.Share(self.workers)
        share = self._scope.enter_context(self.share)
        count = min(share, contexts.data.num_clients)
        self.employ(contexts, partial(Process, Recipe.of(contexts)), count, op_threads=1)
        return f"processes: {count} clients side by side, one op thread each"

    def close(self) -> None:
        """End the processes."""
        super().close()
        self._scope.close()
        self.share = None


class Process(Helper):
    """A worker in a process of this machine.

    Args:
        recipe: The worker's recipe.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._line, there = _PROCESSES.Pipe()
        self._common = b""
        self._process = _PROCESSES.Process(
            target=_serve, args=(there, recipe, os.getpid()), name="pfl-worker", daemon=True
        )
        self._process.start()
        there.close()

    def ready(self) -> None:
        """Wait until the worker is built.

        Raises:
            WorkerError: It cannot be built.
        """
        try:
            why = self._line.recv_bytes().decode()
        except (EOFError, OSError):
            why = self._end()
        if why:
            raise WorkerError(f"a worker process could not start: {why}")

    def answer(self, task: Task, content: bytes, common: bytes) -> bytes:
        """Return the worker's answer to a message.

        Raises:
            DeathError: The worker has died.
        """
        try:
            if common is not self._common:
                self._send("common", common)
                self._common = common
            self._send(task, content)
            answer: bytes = self._line.recv_bytes()
        except (EOFError, OSError) as error:
            raise DeathError(self._end()) from error
        return answer

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.join()

    def _send(self, verb: str, content: bytes) -> None:
        self._line.send_bytes(verb.encode())
        self._line.send_bytes(content)

    def _end(self) -> str:
        self._process.join()
        return f"it ended with exit code {self._process.exitcode}"


def _serve(line: Line, recipe: Recipe, parent: int) -> None:
    """Answer messages until the run's process ends."""
    # Ctrl-C is handled by the run, which ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # A forked process lacks its parent's op threads, and would wait for them.
    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        worker = Worker(recipe)
    except Exception as error:
        line.send_bytes(error_line(error).encode())
        return
    line.send_bytes(b"")
    common = b""
    while True:
        verb, content = line.recv_bytes().decode(), line.recv_bytes()
        if verb == "common":
            common = content
        else:
            line.send_bytes(worker.answer(verb, content, common))


def _end_with(parent: int) -> None:
    """End this process, even in the middle of a job, if the run's process is killed."""
    while os.getppid() == parent:
        time.sleep(_GLANCE)
    os._exit(1)
