"""The engine that chooses one of the others."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import torch

from pfl.core.checks import at_least_one
from pfl.core.data import members
from pfl.core.devices import on_host, widest
from pfl.core.types import Job, Result, Scores
from pfl.engines import cores, threads
from pfl.engines.base import Engine
from pfl.engines.op_threads import multiplications
from pfl.engines.sequential import SequentialEngine
from pfl.engines.threads import ThreadsEngine
from pfl.engines.vectorised import VectorisedEngine
from pfl.training.context import Context
from pfl.training.contexts import Contexts

OP_THREADS_GAIN = 0.6
"""Largest gain in a client's speed from doubling its op threads; measured from one to two."""

SMALL_NETWORK = 5_000_000
"""Number of parameters up to which one client leaves most of a GPU idle (estimated)."""

SHORT_STEP = 300_000
"""Multiplications per sample up to which a stack is faster on a CPU. LeNet-5 has 282,000 on
28 x 28 and 652,000 on 32 x 32."""

CACHED = 100_000
"""Number of parameters up to which a stack is faster on a CPU, as the weights of many clients must
fit into its caches."""

TINY_STEP = 100_000
"""Multiplications per sample up to which threads mostly wait for the Python interpreter."""

LONG_BATCH = 32
"""Samples in a batch above which networks beyond :data:`TINY_STEP` are faster in threads. LeNet-5
on 28 x 28 is as fast in a stack with batches of 16, and takes 1.2 times as long with 50."""

TINY_TEST = 20_000
"""Multiplications per sample up to which a test alone is worth a stack on a CPU."""

STACKED = 32
"""Number of clients in one stack on a CPU."""

TESTED = 128
"""Number of clients in one stack on a CPU if they are only tested."""

BUSY = 4
"""Smallest average number of busy clients for which a stack is worthwhile."""

# What is decided for a run.
_TOGETHER, _ALONE = "vectorised", "sequential"


class AutoEngine(Engine):
    """An engine that stacks clients, runs them in threads or runs them one after another.

    Small networks are stacked, and networks on a GPU. Whether clients are stacked depends only on
    the device, the method, the network, the batch size and the clients' sizes, never on cores or
    timing, so a run is reproducible; a resumed run keeps its choice. Whether the clients of a round
    run side by side, with one op thread each, or one after another depends on the cores of the
    machine and the sizes of the clients. If other runs take cores, fewer clients run at a time,
    with the same numbers.

    Args:
        workers: Number of cores to use; ``None`` uses all that are free.

    Raises:
        ValueError: ``workers`` is below one.
    """

    def __init__(self, workers: int | None = None) -> None:
        at_least_one(workers=workers)
        self.workers = workers
        self._sequential = SequentialEngine()
        self._parallel: ThreadsEngine | None = None
        self._stack: VectorisedEngine | None = None
        self._scope = ExitStack()

    def setup(self, contexts: Contexts) -> str:
        """Choose the engine for a run; return the choice and the reason."""
        self._contexts, on_cpu = contexts, on_host(contexts.fabric.device)
        size = multiplications(contexts.first).total if on_cpu else 0
        self._tiny = on_cpu and size <= TINY_TEST
        alone = self._sequential.setup(contexts)
        why = None if self.decided == _TOGETHER else _unsuitable_reason(contexts.first, size)
        if self.decided == _ALONE:
            why = why or "so the run began"
        if why is None:
            stack = VectorisedEngine(STACKED, tested=TESTED) if on_cpu else VectorisedEngine()
            line, why = stack.setup(contexts), stack.unsupported
            if why is None:
                self._stack, self.decided = stack, _TOGETHER
                return f"auto: {line}"
        self.decided = _ALONE
        if not on_cpu:
            return f"auto: {alone}; {why}"
        self._cores = min(self.workers or cores.usable(), contexts.data.num_clients)
        reason = threads.unsupported_reason(contexts, self._cores)
        if reason is None and size <= TINY_STEP:
            reason = "steps are too short for threads"
        if reason is not None:
            self.share = cores.Share(self.workers)
            self._scope.enter_context(self.share)
            return f"auto: {alone}; {reason}"
        self._parallel = ThreadsEngine(self.workers)
        self._scope.callback(self._parallel.close)
        line, self.share = self._parallel.setup(contexts), self._parallel.share
        return f"auto: {line}"

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Run each client's round."""
        stacks = self._stack is not None and all(job.work is None for job in jobs)
        if self._stack is not None and stacks and _busy(jobs, len(jobs)) >= BUSY:
            return self._stack.train(jobs)
        return self._choose(jobs).train(jobs)

    def test(self, jobs: Sequence[Job]) -> Iterator[Scores]:
        """Test each job's model on its splits."""
        # On a CPU, stacking a forward pass alone pays only if call overhead dominates.
        apart = not on_host(self._contexts.fabric.device)
        fits = bool(self._contexts.first.adapt) or apart or self._tiny
        if self._stack is not None and fits and _busy(jobs, len(jobs)) >= BUSY:
            return self._stack.test(jobs)
        return self._choose(jobs).test(jobs)

    def close(self) -> None:
        """Release the chosen engine."""
        self._scope.close()
        self._parallel = self._stack = self.share = None

    def _choose(self, jobs: Sequence[Job]) -> Engine:
        """Return threads, or the sequential engine if most workers would be idle."""
        if self._parallel is None or len(jobs) < 2:
            return self._sequential
        # By the machine's cores, not the free ones, as the two engines round differently.
        if _busy(jobs, self._cores) < 1 + OP_THREADS_GAIN * math.log2(self._cores):
            return self._sequential
        return self._parallel


def parallelism(samples: Sequence[int], workers: int) -> float:
    """Return the average number of busy workers, if each takes the largest remaining client.

    Args:
        samples: Number of samples of each client.
        workers: Number of workers, at least one.

    Example:
        >>> parallelism([10, 10, 10], 2), parallelism([90, 5, 5], 2)
        (1.5, 1.1111111111111112)
    """
    ends = [0] * workers
    for size in sorted(samples, reverse=True):
        heapq.heapreplace(ends, ends[0] + max(1, size))
    return sum(ends) / max(ends)


def _busy(jobs: Sequence[Job], workers: int) -> float:
    return parallelism([job.info.samples for job in jobs], workers) if jobs else 0


def _unsuitable_reason(context: Context, size: int) -> str | None:
    """Return why clients should not be stacked, given multiplications per sample, or ``None``."""
    parameters = sum(p.numel() for p in context.module.parameters() if p.requires_grad)
    device = context.fabric.device
    if not on_host(device):
        if widest(device) is not torch.float64:
            return f"{device.type} has no float64, in which stacks are checked"
        fills = parameters > SMALL_NETWORK
        return f"a network of {parameters:,} parameters fills the device" if fills else None
    if parameters > CACHED or size > SHORT_STEP:
        return "the network is too large for a stack"
    if size > TINY_STEP and context.data.batch_size > LONG_BATCH:
        return f"batches of {context.data.batch_size} are too large for a stack of this network"
    sizes = [len(context.data.split(client, "train")) for client in members(context.data)]
    if parallelism(sizes, len(sizes)) < BUSY:
        return "there are too few clients for a stack"
    return None
