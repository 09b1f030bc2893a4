"""The engine that runs clients in Ray actors, on one machine or on a cluster."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib import import_module
from math import inf
from pathlib import Path
from textwrap import shorten
from time import monotonic
from typing import Any, TypeAlias

from pfl.core.checks import at_least_one, not_negative
from pfl.core.devices import on_host
from pfl.core.failure import last_words
from pfl.engines.absences import OnError
from pfl.engines.transport.engine import Task
from pfl.engines.transport.pool import DeathError, Helper, PooledEngine, WorkerError
from pfl.engines.transport.worker import Recipe, Worker
from pfl.training.contexts import Contexts

# Ray is optional, so its types cannot be named here.
Place: TypeAlias = Any
Ref: TypeAlias = Any
ROOM_SECONDS = 60.0
START_SECONDS = 600.0
ALIVE_SECONDS = 20.0  # silence after which Ray is asked which nodes are alive
_SAID = 250  # characters of a worker's output in an error message


def import_ray() -> Any:  # noqa: ANN401
    """Import and return Ray, an optional dependency.

    Raises:
        ImportError: Ray is not installed.
    """
    try:
        return import_module("ray")
    except ImportError as error:
        raise ImportError("the ray engine needs Ray: pip install 'pfl-lightning[ray]'") from error


class Actor(Helper):
    """A worker in a Ray actor.

    Args:
        ray: Ray.
        options: Resources and placement of the actor, as Ray's ``options`` takes them.
        recipe: Reference to the worker's recipe.
        put: Stores bytes for all actors, and returns a reference.
    """

    def __init__(self, ray: Any, options: Any, recipe: Ref, put: Any) -> None:  # noqa: ANN401
        self._ray, self._put, self._log = ray, put, Path()
        self._actor = ray.remote(Worker).options(**options).remote(recipe)

    def ready(self) -> None:
        """Wait until the worker is built.

        Raises:
            WorkerError: It cannot be built, or the cluster has died.
        """
        try:
            self._log = Path(self._get(self._actor.ready.remote(), START_SECONDS))
        except self._ray.exceptions.RayError as error:
            # The cause is below the traceback.
            cause = shorten(str(error).strip().splitlines()[-1], _SAID)
            raise WorkerError(f"a Ray worker could not start: {cause}") from error

    def answer(self, task: Task, content: bytes, common: bytes) -> bytes:
        """Return the worker's answer to a message.

        Raises:
            DeathError: The worker has died.
            WorkerError: The cluster has died.
        """
        try:
            answer: bytes = self._get(self._actor.answer.remote(task, content, self._put(common)))
        except self._ray.exceptions.RayError as error:
            raise DeathError(_last_output(self._log, error)) from error
        return answer

    def end(self) -> None:
        """Release its resources, even if it is merely unreachable."""
        self._ray.kill(self._actor)

    def _get(self, ref: Ref, seconds: float = inf) -> Any:  # noqa: ANN401
        until = monotonic() + seconds
        while not self._ray.wait([ref], timeout=ALIVE_SECONDS)[0]:
            # Ray keeps waiting for workers for which no node is left.
            if not any(node["Alive"] for node in self._ray.nodes()):
                raise WorkerError("the Ray cluster has died: none of its nodes is alive")
            if monotonic() > until:
                raise WorkerError(f"no Ray worker has started after {seconds:g} seconds")
        return self._ray.get(ref)


class RayEngine(PooledEngine):
    """An engine of long-lived Ray actors; on CPUs its results equal the sequential engine's bits.

    Each actor has the method and reads the data once. An actor that dies is replaced, and its
    unfinished jobs are run again, with the same results.

    Args:
        workers: Number of actors; ``None`` starts as many as the cluster has resources for.
        address: Address of a running cluster. ``None`` uses the cluster that the program is
            connected to or that ``RAY_ADDRESS`` names; otherwise it starts a cluster on this
            machine and stops it at the end.
        cpus_per_worker: CPUs that an actor reserves, and the number of its op threads.
        gpus_per_worker: GPUs that an actor reserves; 0.25 lets four share one.
        on_error: ``stop`` ends the run if a client's job fails; with ``absent`` the round continues
            without the client: it uploads nothing, has no scores, and takes part again in the next.

    Raises:
        ImportError: Ray is not installed.
        ValueError: A number is out of its range, or ``on_error`` is unknown.
    """

    def __init__(
        self,
        workers: int | None = None,
        address: str | None = None,
        cpus_per_worker: int = 1,
        gpus_per_worker: float = 0.0,
        on_error: OnError = "stop",
    ) -> None:
        super().__init__(on_error)
        at_least_one(workers=workers, cpus_per_worker=cpus_per_worker)
        not_negative(gpus_per_worker=gpus_per_worker)
        self.workers = workers
        self.address = address
        self.cpus_per_worker = cpus_per_worker
        self.gpus_per_worker = gpus_per_worker
        self._ray = import_ray()
        self._connected = False
        self._place: Place | None = None

    def setup(self, contexts: Contexts) -> str:
        """Connect to the cluster and start the actors.

        Raises:
            ValueError: The loop uses a GPU but the actors do not, or the cluster is too small.
            WorkerError: There is no cluster, it is busy, or an actor does not start.
        """
        strategies = import_module("ray.util.scheduling_strategies")
        device, gpus = contexts.fabric.device, self.gpus_per_worker
        if not on_host(device) and not gpus:
            raise ValueError(
                f"the loop runs on {device}, but its Ray workers have no GPU: set "
                "gpus_per_worker (for example, to 0.25), or loop.accelerator to cpu"
            )
        self._connect()
        self._place = self._reserve()
        count = self._place.bundle_count
        options = {
            "num_cpus": self.cpus_per_worker,
            "num_gpus": gpus,
            "scheduling_strategy": strategies.PlacementGroupSchedulingStrategy(self._place),
        }
        recipe = self._ray.put(Recipe.of(contexts, gpu=gpus > 0))
        # The messages of a round share few distinct common parts.
        put = lru_cache(maxsize=4)(self._ray.put)
        start = partial(Actor, self._ray, options, recipe, put)
        self.employ(contexts, start, count, self.cpus_per_worker)
        nodes = sum(node["Alive"] for node in self._ray.nodes())
        each = f"{self.cpus_per_worker} CPU" + (f", {gpus:g} GPU" if gpus else "")
        return f"ray: {count} workers of {each}, on {nodes} node" + ("s" if nodes > 1 else "")

    def close(self) -> None:
        """Stop the actors, and the cluster if this engine started it."""
        if self._ray.is_initialized():
            super().close()
            if self._place is not None:
                self._ray.util.remove_placement_group(self._place)
        if self._connected:
            self._ray.shutdown()
        self._place = None
        self._connected = False

    def _connect(self) -> None:
        if self._ray.is_initialized():
            return
        address = self.address or os.environ.get("RAY_ADDRESS", "")
        # A cluster that the user did not start must not send usage statistics.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        with _termination():
            try:
                # Without an address, Ray would join the cluster last started on this machine, and
                # wait a long time if that has died.
                self._ray.init(
                    address=address or "local", include_dashboard=False, logging_level="error"
                )
            except Exception as error:
                # If a node does not start in time, Ray raises a bare Exception.
                what = f"no Ray cluster at {address}" if address else "Ray did not start"
                raise WorkerError(f"{what}: {error}") from error
        self._connected = True

    def _reserve(self) -> Place:
        """Reserve resources for the actors and their replacements."""
        share = {"CPU": float(self.cpus_per_worker), "GPU": self.gpus_per_worker}
        share = {name: amount for name, amount in share.items() if amount}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        # The added 1e-9 keeps 1 / 0.1 = 10 actors at ten.
        room = sum(
            int(min(node.get(name, 0) / amount for name, amount in share.items()) + 1e-9)
            for node in nodes
        )
        count = room if self.workers is None else self.workers
        if not 0 < count <= room:
            raise ValueError(
                f"the Ray cluster has room for {room} workers of {share}, not for "
                f"{self.workers or 'any'}: change loop.engine's workers, cpus_per_worker or "
                "gpus_per_worker"
            )
        place = self._ray.util.placement_group([share] * count)
        if not place.wait(ROOM_SECONDS):
            self._ray.util.remove_placement_group(place)
            raise WorkerError(
                f"the Ray cluster is busy: there was no room for {count} workers of {share} within "
                f"{ROOM_SECONDS:g} seconds; ask for fewer workers"
            )
        return place


@contextmanager
def _termination() -> Iterator[None]:
    """Restore the program's SIGTERM handler, which ``ray.init`` replaces."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if callable(before) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _last_output(log: Path, error: Exception) -> str:
    """Return a worker's last output, or the reason in Ray's error without its advice.

    Args:
        log: The worker's error output, which may be on another machine.
        error: The error that reports its death.
    """
    detail = str(error).rpartition("Worker exit detail: ")[2].partition("Some common causes")[0]
    said = last_words(log) if log.is_file() else ""
    return shorten(said or detail, _SAID)
