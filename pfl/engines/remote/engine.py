"""The engine whose clients are at sites: it sends jobs as messages, and reads the answers."""

from __future__ import annotations

import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal, TypeVar

import torch

from pfl.core.checks import at_least_one, one_of
from pfl.core.data import FederatedData
from pfl.core.elsewhere import reference_of, standing_for
from pfl.core.failure import JobError
from pfl.core.state import to
from pfl.core.types import Job, Result, Scores
from pfl.engines.absences import Absences, OnError, tolerated
from pfl.engines.base import Engine
from pfl.engines.remote import answers, wire
from pfl.engines.remote.correspondence import Check, Correspondence
from pfl.engines.remote.data import Told
from pfl.engines.remote.facts import facts
from pfl.engines.remote.transport import GoneError, LostStateError, SiteError, Transport, Verb
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
        min_sites: Sites of a round that have to answer; without enough of them the run ends. A
            round goes on without sites that are silent. ``None`` needs all, or none if ``on_error``
            is ``absent``.
        on_error: ``stop`` ends the run if a client's job fails at its site; with ``absent`` the
            round goes on without that client, whatever the reason: an error, a refusal, silence or
            a damaged answer. Who is absent uploads nothing, has no scores, and is asked again in
            the next round.

    Raises:
        ValueError: ``workers`` or ``min_sites`` is below one, or ``on_lost`` or ``on_error`` is
            another word.
    """

    name: str = "remote"
    simulates: bool = False

    def __init__(
        self,
        on_lost: Literal["stop", "initial"] = "stop",
        workers: int | None = None,
        min_sites: int | None = None,
        on_error: OnError = "stop",
    ) -> None:
        one_of("on_lost", on_lost, ("stop", "initial"))
        at_least_one(workers=workers, min_sites=min_sites)
        self.on_lost, self.workers, self.min_sites = on_lost, workers, min_sites
        self._post: Correspondence | None = None
        silent = () if min_sites is None else (GoneError,)
        self._absences = Absences(*silent, *tolerated(on_error, SiteError, JobError))
        self._op_threads = 1

    @abstractmethod
    def connect(self, context: Context) -> Transport:
        """Return the transport of a run, connected to all of its sites."""

    def meet(self, context: Context, config: str | None) -> FederatedData:
        """Connect to the sites and greet each of them; return the data as they describe them.

        Raises:
            SiteError: A site cannot be reached, or refuses the run, or is missing.
        """
        self._absences.clear()
        self._context, self._device = context, context.fabric.device
        counts = context.module.server().needs_label_counts
        hello = wire.written("hello", wire.Hello(facts(context), counts, config))
        post = self._post = Correspondence(self.connect(context), self.workers)

        check = partial(answers.check_introduction, context.data)

        def greet(client: int) -> wire.Introduction:
            return post.ask(client, "hello", wire.Introduction, hello, check)[0]

        clients = sorted(post.sites)
        return Told(context.data, dict(zip(clients, post.pool.map(greet, clients), strict=True)))

    def setup(self, context: Context) -> str:
        """Note the settings of this process that the sites need for the same numbers."""
        if self._post is None:
            context.data = self.meet(context, None)
        post = self._connected()
        # Greetings are no round's.
        post.counted()
        self._op_threads = torch.get_num_threads()
        least = f", of which {self.min_sites} must answer" if self.min_sites else ""
        return f"{self.name}: {len(post.sites)} sites{least}; what clients keep stays there"

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Run each client's round; leave out those that fail, if the run goes on then.

        Raises:
            SiteError: Too few sites answer, or one refuses or has lost its client's state.
            JobError: The method failed at a site.
        """
        for result in self._run(jobs, self._train, client_round.train):
            if result is not None:
                yield result
        least = min(self.min_sites or 0, len(jobs))
        if (left := sum(job.info.client not in self._absences for job in jobs)) < least:
            raise SiteError(f"{left} of {len(jobs)} sites answered, but min_sites is {least}")

    def test(self, jobs: Sequence[Job]) -> Iterator[Scores]:
        """Test each job's model on its splits; a site that does not answer has no scores.

        Raises:
            SiteError: Likewise.
            JobError: Likewise.
        """
        for scores in self._run(jobs, self._test, client_round.test):
            yield scores or {}

    def failed(self) -> Mapping[int, str]:
        """Return why each client failed without which the run went on since the last call."""
        return self._absences.taken()

    def measured(self) -> Mapping[str, float]:
        """Return the bytes of all messages since the last call."""
        return {} if self._post is None else self._post.counted()

    def close(self) -> None:
        """Say goodbye to the sites that can be reached."""
        post, self._post = self._post, None
        if post is None:
            return

        def leave(client: int) -> None:
            with suppress(SiteError):
                post.ask(client, "bye", wire.Empty, wire.written("bye", wire.Empty()))

        # An iterator that is left to the end of the program is closed when no thread can start.
        if threading.main_thread().is_alive():
            present = [client for client in sorted(post.sites) if client not in self._absences]
            list(post.pool.map(leave, present))
        post.close()

    def _connected(self) -> Correspondence:
        if self._post is None:
            raise RuntimeError("setup has not been called")
        return self._post

    def _run(
        self,
        jobs: Sequence[Job],
        ask: Callable[[Job], AnswerT],
        here: Callable[[Context, Job], AnswerT],
    ) -> Iterator[AnswerT | None]:
        """Yield answers in the order of the jobs; ``None`` of a client that is absent."""
        post, absences = self._connected(), self._absences
        absences.begin(jobs)
        waiting: dict[int, Future[AnswerT]] = {}
        try:
            for index in sorted(range(len(jobs)), key=lambda i: -jobs[i].info.samples):
                client = jobs[index].info.client
                if client in post.sites and client not in absences:
                    _check_kept(jobs[index])
                    waiting[index] = post.pool.submit(ask, jobs[index])
            for index, job in enumerate(jobs):
                if index in waiting:
                    yield self._answer(waiting[index], job)
                    del waiting[index]
                else:
                    yield None if job.info.client in absences else here(self._context, job)
        finally:
            # Jobs are left only if one failed or the caller stopped early.
            for future in waiting.values():
                future.cancel()
            wait(waiting.values())

    def _answer(self, future: Future[AnswerT], job: Job) -> AnswerT | None:
        try:
            answer = future.result()
        except Exception as error:
            self._absences.note(job, error)
            return None
        self._absences.answered(job.info.client)
        return answer

    def _train(self, job: Job) -> Result:
        check = partial(answers.check_training, self._context, job)
        report, tensors = self._order("train", wire.Report, job, check)
        upload = answers.upload_of(report, tensors)
        sound = report.finite and answers.is_finite(job, upload)
        if upload is not None:
            shared, extra = to(upload.shared, self._device), to(upload.extra, self._device)
            upload = replace(upload, shared=shared, extra=extra)
        return Result(
            client=report.client,
            upload=upload,
            kept={} if report.kept is None else standing_for(report.kept),
            train=report.train.read(),
            steps=report.steps,
            samples=report.samples,
            scores=_scores(report.scores, job),
            finite=sound,
            logged=report.logged.read(),
        )

    def _test(self, job: Job) -> Scores:
        check = partial(answers.check_test, self._context, job)
        marks, _ = self._order("test", wire.Marks, job, check)
        return _scores(marks.scores, job)

    def _order(
        self, verb: Verb, form: type[FormT], job: Job, check: Check[FormT]
    ) -> tuple[FormT, wire.Tensors]:
        """Have a site run a job; return its record, and the tensors that it sent."""
        post, client = self._connected(), job.info.client
        order = wire.Order(
            client=client,
            round=job.info.round,
            rounds=job.info.rounds,
            seed=job.seed,
            splits=list(job.splits),
            model=job.model,
            sent=job.broadcast is not None,
            codec=None if job.broadcast is None else job.broadcast.codec,
            op_threads=self._op_threads,
            kept=reference_of(job.kept),
            sending=job.sending,
            sample_level=job.sample_level,
        )
        try:
            return post.ask(client, verb, form, wire.written(verb, order, job.broadcast), check)
        except LostStateError as error:
            if self.on_lost == "stop":
                raise
            warnings.warn(f"{error}; it starts again from the initial values", stacklevel=2)
            order = replace(order, kept=None)
            return post.ask(client, verb, form, wire.written(verb, order, job.broadcast), check)


def _check_kept(job: Job) -> None:
    """Refuse a state that is here; the fault is the caller's, and no site's."""
    if job.kept and reference_of(job.kept) is None:
        raise SiteError(
            f"client {job.info.client} keeps its state at its site: it can neither be set from "
            "here, nor come from a run whose clients were not at sites"
        )


def _scores(scores: dict[wire.SplitName, wire.Numbers], job: Job) -> Scores:
    return {split: scores[split].read() for split in job.splits if split in scores}
