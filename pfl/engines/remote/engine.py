"""The engine whose clients are elsewhere: it sends jobs as messages, and reads the answers."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import repeat
from typing import Literal, TypeVar

import torch

from pfl.core.elsewhere import Reference, reference_of, standing_for
from pfl.core.failure import JobError
from pfl.core.state import to
from pfl.core.types import FederatedData, Job, Result, Scores, Split, State, Upload
from pfl.disk.container import BYTES, ContainerError
from pfl.engines.base import Engine
from pfl.engines.remote import wire
from pfl.engines.remote.data import Told
from pfl.engines.remote.facts import facts
from pfl.engines.remote.transport import LostStateError, SiteError, Transport, Verb
from pfl.engines.remote.wire import (
    Failure,
    Hello,
    Introduction,
    Kept,
    Marks,
    Message,
    Order,
    Report,
)
from pfl.training import client_round
from pfl.training.context import Context

FormT = TypeVar("FormT")
AnswerT = TypeVar("AnswerT", Result, Scores)


class RemoteEngine(Engine):
    """An engine that has each client's jobs run at the client's site.

    What clients keep stays there: a result has a reference instead
    (:mod:`pfl.core.elsewhere`). A job of nobody's site, such as a test on the common test set, runs
    here. A transport's engine implements :meth:`connect`.

    Attributes:
        name: What the run's header calls it.

    Args:
        on_lost: What happens if a site no longer has its client's state: ``stop`` ends the run,
            ``initial`` lets the client start again from the initial values, with a warning.
        workers: Sites that are asked at a time; ``None`` asks all sites of a round.
    """

    name: str = "remote"

    def __init__(
        self, on_lost: Literal["stop", "initial"] = "stop", workers: int | None = None
    ) -> None:
        self.on_lost, self.workers = on_lost, workers
        self._transport: Transport | None = None
        self._sites: Mapping[int, str] = {}
        self._op_threads = 1
        self._pool: ThreadPoolExecutor | None = None

    @abstractmethod
    def connect(self, context: Context) -> Transport:
        """Return the transport of a run, with all sites that it is to have."""

    def meet(self, context: Context, config: str | None) -> FederatedData:
        """Connect to the sites and greet each of them; return what they tell of their data.

        Raises:
            SiteError: A site cannot be reached, or refuses the run, or is missing.
        """
        self.close()
        self._context, self._device = context, context.fabric.device
        hello = wire.written("hello", Hello(facts(context), _counts(context), config))
        self._transport = self.connect(context)
        self._sites = dict(self._transport.sites())
        self._pool = ThreadPoolExecutor(self.workers or max(1, len(self._sites)), "pfl-site")
        told = self._pool.map(self._greet, sorted(self._sites), repeat(hello))
        return Told(context.data, dict(zip(sorted(self._sites), told, strict=True)))

    def setup(self, context: Context) -> str:
        """Take over the settings of this process, which the sites need for the same numbers."""
        if self._transport is None:
            context.data = self.meet(context, None)
        self._op_threads = torch.get_num_threads()
        return f"{self.name}: {len(self._sites)} sites"

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Run each client's round."""
        return self._run(jobs, self._train, client_round.train)

    def test(self, jobs: Sequence[Job]) -> Iterator[Scores]:
        """Test each job's model on its splits."""
        return self._run(jobs, self._test, client_round.test)

    def close(self) -> None:
        """Take leave of the sites."""
        if self._pool is not None:
            self._pool.shutdown()
        if self._transport is not None:
            self._transport.close()
        self._pool = self._transport = None

    def _run(
        self,
        jobs: Sequence[Job],
        ask: Callable[[Job], AnswerT],
        here: Callable[[Context, Job], AnswerT],
    ) -> Iterator[AnswerT]:
        """Yield answers in the order of the jobs."""
        if self._transport is None or self._pool is None:
            raise RuntimeError("setup has not been called")
        waiting: dict[int, Future[AnswerT]] = {}
        try:
            for index in sorted(range(len(jobs)), key=lambda i: -jobs[i].info.samples):
                if jobs[index].info.client in self._sites:
                    waiting[index] = self._pool.submit(ask, jobs[index])
            for index, job in enumerate(jobs):
                if index in waiting:
                    yield waiting[index].result()
                    del waiting[index]
                else:
                    yield here(self._context, job)
        finally:
            # Jobs are left only if one failed or the caller stopped early.
            for future in waiting.values():
                future.cancel()
            wait(waiting.values())

    def _greet(self, client: int, hello: bytes) -> Introduction:
        introduction, _ = self._ask(client, "hello", Introduction, hello)
        return introduction

    def _train(self, job: Job) -> Result:
        report, message = self._order("train", Report, job)
        upload = None
        if report.upload is not None:
            shared, extra = to(message.shared, self._device), to(message.extra, self._device)
            upload = Upload(report.client, report.upload, shared, extra)
        return Result(
            client=report.client,
            upload=upload,
            kept=_reference(report.kept),
            train=report.train.read(),
            steps=report.steps,
            samples=report.samples,
            scores=_scores(report.scores),
            finite=report.finite,
            logged=report.logged.read(),
        )

    def _test(self, job: Job) -> Scores:
        marks, _ = self._order("test", Marks, job)
        return _scores(marks.scores)

    def _order(self, verb: Verb, kind: type[FormT], job: Job) -> tuple[FormT, Message]:
        """Have a site run a job; return its record, and the tensors that it sent."""
        client, kept = job.info.client, reference_of(job.kept)
        if kept is None and job.kept:
            raise SiteError(
                f"client {client} keeps its state at its site: it can neither be set from here, "
                "nor come from a run whose clients were not at sites"
            )
        order = Order(
            client=client,
            round=job.info.round,
            rounds=job.info.rounds,
            seed=job.seed,
            splits=list(job.splits),
            model=job.model,
            sent=job.broadcast is not None,
            op_threads=self._op_threads,
            kept=None if kept is None else Kept(*kept),
            sending=job.sending,
        )
        try:
            return self._ask(client, verb, kind, wire.written(verb, order, job.broadcast))
        except LostStateError as error:
            if self.on_lost == "stop":
                raise
            warnings.warn(f"{error}; it starts again from the initial values", stacklevel=2)
            order = replace(order, kept=None)
            return self._ask(client, verb, kind, wire.written(verb, order, job.broadcast))

    def _ask(
        self, client: int, verb: Verb, kind: type[FormT], content: bytes
    ) -> tuple[FormT, Message]:
        """Send a message to a site and read its answer.

        Raises:
            SiteError: There is no answer, or it is a refusal or no message.
            LostStateError: The site does not have the client's state.
            JobError: The method failed at the site.
        """
        if self._transport is None:
            raise RuntimeError("setup has not been called")
        where = f"the site of client {client} ({self._sites[client]})"
        data = self._transport.call(client, verb, content)
        try:
            record, message = wire.read(verb, kind, data, BYTES)
        except ContainerError as error:
            raise SiteError(f"{where} sent no answer to {verb}: {error}") from error
        if not isinstance(record, Failure):
            return record, message
        if record.kind == "failed":
            raise JobError(f"{record.message}, at {where}")
        if record.kind == "lost":
            raise LostStateError(
                f"{where} has lost what client {client} keeps: {record.message}; put its files "
                "back, or set on_lost to initial"
            )
        raise SiteError(f"{where} refuses {verb}: {record.message}")


def _counts(context: Context) -> bool:
    """Return ``True`` if the method's server needs the samples of each class."""
    return context.module.server().needs_label_counts


def _reference(kept: Kept | None) -> State:
    return {} if kept is None else standing_for(Reference(kept.digest, kept.round))


def _scores(scores: dict[wire.SplitName, wire.Numbers]) -> Scores:
    order: tuple[Split, ...] = ("train", "val", "test", "pooled")
    return {split: scores[split].read() for split in order if split in scores}
