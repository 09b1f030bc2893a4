"""Clients in parallel threads on one machine; each thread has its own copy of the module."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from typing import Generic, TypeVar

import torch

from pfl.core.checks import at_least_one
from pfl.core.data_view import an_input
from pfl.core.devices import on_host
from pfl.core.seeds import default_streams, scoped
from pfl.core.state import each, message_size, nbytes
from pfl.core.types import Job, Result, Scores
from pfl.engines import cores, memory
from pfl.engines.sequential import SequentialEngine
from pfl.training import client_round
from pfl.training.context import Context, StoppedError
from pfl.training.contexts import Contexts
from pfl.training.reach import Reach

AnswerT = TypeVar("AnswerT", Result, client_round.Answers)
WorkT = TypeVar("WorkT")

WAITING = 2**22
"""Bytes of results that may wait before the order in which they are needed comes first."""

WAITING_SHARE = 20
"""Share of a machine's memory in which results may wait at all."""


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

        turns = Turns(pool, work, dict(enumerate(jobs)), verb is client_round.train)
        try:
            for index in range(len(jobs)):
                yield turns.take(index)
        except StoppedError:
            # The first job that failed stopped this one; raise its error.
            raise failures[0] from None
        finally:
            # Jobs are left only if one failed or the caller stopped early.
            self._stop.set()
            turns.end()
            self._stop.clear()


class Turns(Generic[WorkT]):
    """Runs jobs in threads, and hands out what they return in the order of the jobs.

    The largest jobs start first, for balance, while what waits to be handed out is little: up to
    :data:`WAITING` bytes. Then the job that is handed out next starts first, and none starts before
    what can be handed out was. If one job takes far longer than all others, results of others wait
    for it: up to a share of the machine's memory, then no other job starts. When a job starts
    changes nothing in what it returns.

    Args:
        pool: The threads.
        work: Runs a job.
        jobs: The jobs, by their place in the order, which ascends.
        trains: Whether a job is a client's training, which returns what it sends and keeps.
    """

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        work: Callable[[Job], WorkT],
        jobs: Mapping[int, Job],
        trains: bool,
    ) -> None:
        self._work, self._jobs, self._trains = work, jobs, trains
        # Not yet started: from the last place to the first, and from the smallest to the largest.
        self._places = sorted(jobs, reverse=True)
        self._sizes = sorted(self._places, key=lambda place: jobs[place].info.samples)
        # Bytes of results that wait, and that jobs which started out of turn will have.
        self._waiting = self._ahead = 0
        self._most = max(WAITING, memory.total() // WAITING_SHARE)
        self._changed, self._ended = threading.Condition(), False
        self._answers: dict[int, Future[WorkT]] = {place: Future() for place in sorted(jobs)}
        self._threads = [pool.submit(self._turn) for _ in jobs]

    def __contains__(self, place: int) -> bool:
        return place in self._answers

    def take(self, place: int) -> WorkT:
        """Wait for a job, and return what it returned, or raise its error; once for each."""
        size = 0
        try:
            answer = self._answers[place].result()
            size = _bytes(answer)
        finally:
            with self._changed:
                del self._answers[place]
                self._waiting -= size
                self._changed.notify_all()
        return answer

    def end(self, wait_for_all: bool = True) -> None:
        """Cancel the jobs that have not started, and wait for the others."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.cancel()
        if wait_for_all:
            wait(self._threads)

    def _turn(self) -> None:
        """Run the next job."""
        with self._changed:
            self._changed.wait_for(self._may_start)
            if self._ended:
                return
            in_turn = self._waiting + self._ahead > WAITING
            place = (self._places if in_turn else self._sizes)[-1]
            self._places.remove(place)
            self._sizes.remove(place)
            ahead = _expected(self._jobs[place]) if self._trains and not in_turn else 0
            self._ahead += ahead
        future = self._answers[place]
        try:
            answer = self._work(self._jobs[place])
        except BaseException as error:
            with self._changed:
                self._ahead -= ahead
                future.set_exception(error)
        else:
            # At once: an answer that is counted, but cannot be taken, would let later jobs start.
            with self._changed:
                self._ahead -= ahead
                self._waiting += _bytes(answer)
                future.set_result(answer)

    def _may_start(self) -> bool:
        """Return whether the next job may start, which adds to what waits."""
        if self._ended or self._waiting <= WAITING:
            return True
        first, answer = next(iter(self._answers.items()))
        # What can be handed out is handed out first.
        return not answer.done() and (self._waiting <= self._most or first == self._places[-1])


def _expected(job: Job) -> int:
    """Return the bytes that a client should send and keep after training: as many as it gets."""
    sent = 0 if job.broadcast is None else message_size(job.broadcast)
    return sent + nbytes(job.kept)


def _bytes(answer: object) -> int:
    """Return the bytes of what a client sends and keeps, if this is the result of its training."""
    if not isinstance(answer, Result):
        return 0
    sent = 0 if answer.upload is None else message_size(answer.upload)
    return nbytes(answer.kept) + sent


def unsupported_reason(contexts: Contexts, workers: int) -> str | None:
    """Return why threads cannot train clients or are no faster; ``None`` if they are suitable."""
    if not on_host(contexts.fabric.device):
        return f"threads bring no gain on {contexts.fabric.device}"
    if workers == 1:
        return "there is only one core or one client"
    if any(one.own_nets for one in contexts.each()):
        return "a LightningModule with its own steps may draw from torch's default stream"
    outside = torch.get_default_dtype()
    with contexts.fabric.autocast():
        if torch.get_default_dtype() != outside:
            return "this precision is a global setting, which all threads share"
    if any(one.drawing and not _draws_alone(one) for one in contexts.each()):
        return "the network's random numbers cannot be drawn from a separate stream in each thread"
    if any(map(_shares, contexts.each())):
        return "copies of the network share a variable to which its code writes"
    return None


def _shares(context: Context) -> bool:
    """Return ``True`` if a step of one copy of a network changes what another copy can reach.

    Functions are not copied with a module, nor what they remember: threads would overwrite what
    another one has stored in a variable of a hook and not read yet.
    """
    one, other = context.replica(), context.replica()
    before = Reach(other.module)
    if not before.has_code:
        return False
    one.load({})
    # Some networks take no batch of two; what they have done until then counts.
    with suppress(Exception), context.fabric.autocast(), scoped(0, context.fabric.device):
        # Two samples, as batch norms need.
        inputs = each(lambda value: torch.cat([value, value]), an_input(context.data))
        outputs = one.module.train()(inputs)
        if outputs.requires_grad:
            outputs.sum().backward()
    changed = Reach(other.module).places != before.places
    before.restore()
    return changed


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
        stream = copied.draws.of(0, copied.fabric.device, own)
        copied.load({})
        copied.module.zero_grad()
        with context.fabric.autocast(), stream:
            outputs = copied.module(inputs)
            outputs.sum().backward()
        gradients = (p.grad for p in copied.module.parameters() if p.grad is not None)
        found.append([outputs.detach(), *(value.clone() for value in gradients)])
    untouched = all(map(torch.equal, before, default_streams(context.fabric.device)))
    return untouched and all(map(torch.equal, *found))
