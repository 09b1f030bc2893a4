"""The engine for those who do not want to choose one."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence

from pfl.core.types import Job, Result, Scores
from pfl.engines import threads, vectorised
from pfl.engines.base import Engine
from pfl.engines.sequential import SequentialEngine
from pfl.engines.threads import ThreadsEngine
from pfl.engines.vectorised import VectorisedEngine
from pfl.training.context import Context

OP_THREADS_GAIN = 0.6
"""Gain in speed of one client from twice the op threads, at best; measured from one to two."""

SMALL_NETWORK = 5_000_000
"""Parameters up to which one client leaves most of a GPU idle (reasoned, not measured)."""


class AutoEngine(Engine):
    """Threads on the CPU, a stacked model on a GPU, one client after another where neither pays.

    What it chooses depends on the device, the method, the network and the sizes of the clients
    alone, never on the clock, so a run repeats.
    """

    def __init__(self) -> None:
        self._sequential = SequentialEngine()
        self._parallel: ThreadsEngine | VectorisedEngine | None = None

    def setup(self, context: Context) -> str:
        """Choose for a run; returns what was chosen and why."""
        self.close()
        line = self._sequential.setup(context)
        self._workers = 1
        kind = context.fabric.device.type
        if kind == "cpu":
            self._workers = threads.worker_count(context, None)
            reason = threads.obstacle(context, self._workers)
            self._parallel = None if reason else ThreadsEngine(self._workers)
        elif kind == "cuda":
            reason = _too_large(context) or vectorised.obstacle(context)
            self._parallel = None if reason else VectorisedEngine()
        else:
            reason = f"{kind} has no engine for several clients"
        if self._parallel is None:
            return f"auto: {line}; {reason}"
        return f"auto: {self._parallel.setup(context)}"

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Run each client's round."""
        return self._choose(jobs).train(jobs)

    def test(self, jobs: Sequence[Job]) -> Iterator[Scores]:
        """Test each job's model on its splits."""
        return self._choose(jobs).test(jobs)

    def close(self) -> None:
        """Release the engine that was chosen."""
        if self._parallel is not None:
            self._parallel.close()
            self._parallel = None

    def _choose(self, jobs: Sequence[Job]) -> Engine:
        """One after another where few or unequal clients would leave most workers idle."""
        if self._parallel is None or len(jobs) < 2:
            return self._sequential
        busy = parallelism([job.info.samples for job in jobs], self._workers)
        if busy < 1 + OP_THREADS_GAIN * math.log2(self._workers):
            return self._sequential
        return self._parallel


def parallelism(samples: Sequence[int], workers: int) -> float:
    """Return how many workers are busy on average, when each takes the largest client left.

    Args:
        samples: Of each client.
        workers: At least one.

    Example:
        >>> parallelism([10, 10, 10], 2), parallelism([90, 5, 5], 2)
        (1.5, 1.1111111111111112)
    """
    ends = [0] * workers
    for size in sorted(samples, reverse=True):
        heapq.heapreplace(ends, ends[0] + max(1, size))
    return sum(ends) / max(ends)


def _too_large(context: Context) -> str | None:
    count = sum(p.numel() for p in context.module.parameters() if p.requires_grad)
    if count > SMALL_NETWORK:
        return f"a network of {count:,} parameters fills the device"
    return None
