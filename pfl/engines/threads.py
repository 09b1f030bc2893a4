"""Clients in parallel threads on one machine; each thread has its own copy of the module."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import TypeVar

import torch

from pfl.core.checks import at_least_one
from pfl.core.devices import on_host
from pfl.core.layer_draws import layer_draws
from pfl.core.seeds import default_streams
from pfl.core.state import each
from pfl.core.types import Job, Result, Scores
from pfl.engines import cores
from pfl.engines.op_threads import an_input
from pfl.engines.sequential import SequentialEngine
from pfl.training import client_round
from pfl.training.context import Context, StoppedError
from pfl.training.contexts import Contexts

AnswerT = TypeVar("AnswerT", Result, client_round.Answers)
WorkT = TypeVar("WorkT")


class ThreadsEngine(SequentialEngine):
    """Runs jobs in parallel threads with one op thread each.

    Its numbers equal bit for bit those of the sequential engine with one op thread; several op
    threads would round sums differently. Only a test of a single model, such as the one on the
    common test set, uses all op threads. A run that does not suit threads is run sequentially, with
    the reason in the header.

    Args:
        workers: Number of threads; ``None`` uses as many as there are free cores.

    Raises:
        ValueError: ``workers`` is below one.
    """

    def __init__(self, workers: int | None = None) -> None:
        at_least_one(workers=workers)
        self.workers = workers
        self._scope = ExitStack()
        self._pool: ThreadPoolExecutor | None = None
        self._worker = threading.local()

    def setup(self, contexts: Contexts) -> str:
        """Copy the module for each worker and start the threads."""
        super().setup(contexts)
        self.share = cores.Share(self.workers)
        share = self._scope.enter_context(self.share)
        clients = contexts.data.num_clients
        if reason := unsupported_reason(contexts, min(self.workers or cores.usable(), clients)):
            return f"sequential, not threads: {reason}"
        # One thread if other runs use the other cores, with the same numbers.
        count = min(share, clients)
        self._stop, self._scorer = threading.Event(), contexts.scorer
        self._pool = self._start(
            [contexts.replica(stop=self._stop, beside_others=True) for _ in range(count)]
        )
        self._scope.callback(self._pool.shutdown)
        if count == 1:
            return "threads: one client at a time, as other runs take the cores, one op thread"
        return f"threads: {count} clients side by side, one op thread each"

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Run each client's round."""
        if self._pool is None:
            return super().train(jobs)
        return self._run(self._pool, client_round.train, jobs)

    def test(self, jobs: Sequence[Job]) -> Iterator[Scores]:
        """Test each job's model on its splits; a single one with all op threads."""
        if self._pool is None or len(jobs) == 1:
            return super().test(jobs)
        return client_round.scored(self._scorer, self._run(self._pool, client_round.answers, jobs))

    def close(self) -> None:
        """End the threads."""
        self._scope.close()
        self._pool = self.share = None

    def _start(self, contexts: list[Contexts]) -> ThreadPoolExecutor:
        """Return a pool whose threads each have contexts and one op thread."""
        op_threads = torch.get_num_threads()
        everyone = threading.Barrier(len(contexts) + 1)
        remaining = list(contexts)

        def start() -> None:
            self._worker.contexts = remaining.pop()
            # A thread's first call copies the global number, which would undo set_num_threads.
            torch.get_num_threads()
            torch.set_num_threads(1)
            everyone.wait()

        pool = ThreadPoolExecutor(len(contexts), "pfl-client", initializer=start)
        for _ in contexts:
            pool.submit(int)
        everyone.wait()
        # These threads keep one op thread; threads started later get the former number.
        torch.set_num_threads(op_threads)
        return pool

    def _run(
        self, pool: ThreadPoolExecutor, verb: Callable[[Context, Job], AnswerT], jobs: Sequence[Job]
    ) -> Iterator[AnswerT]:
        """Yield answers in the order of the jobs."""
        failures: list[BaseException] = []

        def work(job: Job) -> AnswerT:
            try:
                return verb(self._worker.contexts.of(job.info.client), job)
            except BaseException as error:
                failures.append(error)
                self._stop.set()
                raise

        waiting = submitted(pool, work, dict(enumerate(jobs)))
        try:
            for index in range(len(jobs)):
                yield waiting[index].result()
                del waiting[index]
        except StoppedError:
            # The first job that failed stopped this one; raise its error.
            raise failures[0] from None
        finally:
            # Jobs are left only if one failed or the caller stopped early.
            self._stop.set()
            for future in waiting.values():
                future.cancel()
            wait(waiting.values())
            self._stop.clear()


def submitted(
    pool: ThreadPoolExecutor, work: Callable[[Job], WorkT], jobs: Mapping[int, Job]
) -> dict[int, Future[WorkT]]:
    """Submit jobs to threads, each under its index; the largest start first, for balance."""
    order = sorted(jobs, key=lambda number: -jobs[number].info.samples)
    return {number: pool.submit(work, jobs[number]) for number in order}


def unsupported_reason(contexts: Contexts, workers: int) -> str | None:
    """Return why threads cannot train clients or are no faster; ``None`` if they are suitable."""
    if not on_host(contexts.fabric.device):
        return f"threads bring no gain on {contexts.fabric.device}"
    if workers == 1:
        return "there is only one core or one client"
    outside = torch.get_default_dtype()
    with contexts.fabric.autocast():
        if torch.get_default_dtype() != outside:
            return "this precision is a global setting, which all threads share"
    if any(one.drawing and not _draws_alone(one) for one in contexts.each()):
        return "the network's random numbers cannot be drawn from a separate stream in each thread"
    return None


def _draws_alone(context: Context) -> bool:
    """Return ``True`` if a network draws the same numbers from a thread's separate stream.

    Its outputs and gradients are computed both ways. They differ if a forward pass is repeated
    within the backward pass, which reseeds torch's default stream, or if a layer draws in some
    other way.
    """
    copied = context.replica()
    inputs = each(lambda value: torch.cat([value, value]), an_input(context.data))
    before, found = default_streams(context.fabric.device), []
    for own in (False, True):
        stream = layer_draws(copied.drawing, 0, copied.fabric.device, own)
        copied.load({})
        copied.module.zero_grad()
        with context.fabric.autocast(), stream:
            outputs = copied.module(inputs)
            outputs.sum().backward()
        gradients = (p.grad for p in copied.module.parameters() if p.grad is not None)
        found.append([outputs.detach(), *(value.clone() for value in gradients)])
    untouched = all(map(torch.equal, before, default_streams(context.fabric.device)))
    return untouched and all(map(torch.equal, *found))
