"""The base class of engines with clients elsewhere: jobs and results travel as messages."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, TypeAlias, TypeVar

from pfl.core.state import to
from pfl.core.types import Job, Result, Scores, Upload
from pfl.engines.absences import Absences
from pfl.engines.base import Engine
from pfl.engines.threads import Turns
from pfl.engines.transport import wire
from pfl.training import client_round
from pfl.training.context import Context
from pfl.training.contexts import Contexts
from pfl.training.phases import rule_of
from pfl.training.received import sendable

FormT = TypeVar("FormT", wire.Report, wire.Marks)
AnswerT = TypeVar("AnswerT", Result, Scores)
# What a client computes.
Task: TypeAlias = Literal["train", "test", "work"]


class CarriedEngine(Engine):
    """An engine that sends jobs to clients in other places, and reads their answers.

    An engine of such places implements :meth:`ask`, and sets ``_threads`` in its ``setup``.

    Attributes:
        waits: Whether a place must answer before it gets another message.

    Args:
        errors: Errors of a client's job after which a round continues without it.
    """

    waits: ClassVar[bool] = False

    def __init__(self, *errors: type[Exception]) -> None:
        self._absences, self.tolerates = Absences(*errors), bool(errors)
        self._threads: ThreadPoolExecutor | None = None
        self._op_threads, self._key = 1, secrets.token_hex(16)

    @abstractmethod
    def ask(
        self, job: Job, task: Task, form: type[FormT], common: wire.Common
    ) -> tuple[FormT, wire.Tensors]:
        """Make a client run a job; return its record and the tensors that it sent.

        Args:
            job: The job.
            task: The request to the client.
            form: Form of the record.
            common: What the jobs of this call have in common.

        Raises:
            OSError: There is no answer.
            JobError: The method failed.
        """

    def reaches(self, job: Job) -> bool:
        """Return whether a job runs elsewhere; others run here."""
        return True

    def begin(self, contexts: Contexts) -> None:
        """Store the contexts of a new run."""
        self._absences.clear()
        self._contexts, self._device = contexts, contexts.fabric.device
        # What travels is the same in all networks.
        self._first = contexts.first
        self._key = secrets.token_hex(16)

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Run each client's round; leave out those that fail, if the run continues then.

        Raises:
            OSError: A client does not answer, or its place fails.
            JobError: The method failed.
        """
        # No name holds a result while the next one is computed.
        yield from filter(None, self._run(jobs, self._train, client_round.train))

    def test(self, jobs: Sequence[Job]) -> Iterator[Scores]:
        """Test each job's model on its splits; a client that fails has no scores.

        Raises:
            OSError: Likewise.
            JobError: Likewise.
        """
        for scores in self._run(jobs, self._test, client_round.test):
            yield scores or {}

    def failed(self) -> Mapping[int, str]:
        """Return why clients failed since the last call, if the run continued without them."""
        return self._absences.taken()

    def order(self, job: Job) -> wire.Order:
        """Return a job without its tensors."""
        codec = None if job.broadcast is None else job.broadcast.codec
        order = wire.Order(
            run=self._key,
            # A test on the common test set has no client.
            client=max(job.info.client, 0),
            round=job.info.round,
            rounds=job.info.rounds,
            seed=job.seed,
            splits=list(job.splits),
            model=job.model,
            sent=job.broadcast is not None,
            codec=None if codec is None else wire.StepRecord.of(codec),
            op_threads=self._op_threads,
            kept=job.ticket,
            steps=[*map(wire.StepRecord.of, job.steps)],
        )
        if job.work is None:
            return order
        return wire.WorkOrder(**vars(order), work=wire.StepRecord.of(job.work))

    def _run(
        self,
        jobs: Sequence[Job],
        work: Callable[[Job, wire.Common], AnswerT],
        here: Callable[[Context, Job], AnswerT],
    ) -> Iterator[AnswerT | None]:
        """Yield answers in the order of the jobs; ``None`` for a client that is absent."""
        if self._threads is None:
            raise RuntimeError("setup has not been called")
        absences, common = self._absences, wire.Common(jobs)
        absences.begin(jobs)
        away = {
            index: job
            for index, job in enumerate(jobs)
            if job.info.client not in absences and self.reaches(job)
        }
        trains = here is client_round.train
        turns = Turns(self._threads, lambda job: work(job, common), away, trains)
        try:
            for index, job in enumerate(jobs):
                if index in turns:
                    yield self._answer(partial(turns.take, index), job)
                else:
                    own = self._contexts.of(job.info.client)
                    yield None if job.info.client in absences else here(own, job)
        finally:
            # Jobs are left only if one failed or the caller stopped early.
            turns.end(self.waits)

    def _answer(self, take: Callable[[], AnswerT], job: Job) -> AnswerT | None:
        try:
            answer = take()
        except Exception as error:
            self._absences.note(job, error)
            return None
        self._absences.answered(job.info.client)
        return answer

    def _train(self, job: Job, common: wire.Common) -> Result:
        if job.work is None:
            report, tensors = self.ask(job, "train", wire.Report, common)
        else:
            report, tensors = self.ask(job, "work", wire.WorkReport, common)
        course = report.course if isinstance(report, wire.WorkReport) else []
        upload = upload_of(report, tensors)
        losses = report.train.read()
        sound = report.finite and rule_of(self._first, job).sound(losses)
        sound = sound and (upload is None or sendable(upload, self._first.module))
        if upload is not None:
            shared, extra = to(upload.shared, self._device), to(upload.extra, self._device)
            upload = replace(upload, shared=shared, extra=extra)
        return Result(
            client=report.client,
            upload=upload,
            kept=to(tensors.kept, self._device),
            train=losses,
            steps=report.steps,
            samples=report.samples,
            scores=_scores(report.scores, job),
            finite=sound,
            logged=report.logged.read(),
            withheld=report.withheld,
            ticket=report.kept,
            drawn=report.drawn,
            course=[_scores(one, job) for one in course],
        )

    def _test(self, job: Job, common: wire.Common) -> Scores:
        marks, _ = self.ask(job, "test", wire.Marks, common)
        return _scores(marks.scores, job)


def upload_of(report: wire.Report, tensors: wire.Tensors) -> Upload | None:
    """Return the upload of a report; ``None`` if it has none."""
    if report.upload is None:
        return None
    return Upload(report.client, report.upload, tensors.shared, tensors.extra)


def _scores(scores: Mapping[wire.SplitName, wire.Numbers], job: Job) -> Scores:
    return {split: scores[split].read() for split in job.splits if split in scores}
