"""Checks of sites' answers: a site may be faulty or send what it should not.

Training on other data, or badly, cannot be detected from an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pfl.core.client import ClientModule
from pfl.core.data import FederatedData
from pfl.core.failure import error_line
from pfl.core.types import Job
from pfl.disk.reading import is_memory
from pfl.engines.transport import wire
from pfl.engines.transport.engine import upload_of
from pfl.training.contexts import Contexts
from pfl.training.received import UploadError, check_upload
from pfl.training.reported import Reported, ReportError


class AnswerError(ValueError):
    """An answer can be read but does not fit its request."""


def checked(
    check: Callable[[Any, wire.Tensors], None], record: wire.Answer, tensors: wire.Tensors
) -> None:
    """Check an answer; what a check cannot even look at does not fit either.

    Raises:
        AnswerError: It does not fit its request.
        MemoryError: This process lacks memory, which is not the site's fault; or torch's error.
    """
    try:
        check(record, tensors)
    except AnswerError:
        raise
    except Exception as error:
        if is_memory(error):
            raise
        raise AnswerError(error_line(error)) from error


def check_introduction(
    data: FederatedData, counted: bool, introduction: wire.Introduction, _: wire.Tensors
) -> None:
    """Reject numbers of samples that contradict each other, the classes or the question.

    Raises:
        AnswerError: They contradict; or there are class counts exactly if nobody asked for them.
    """
    counts, size = introduction.label_counts, introduction.sizes.train
    if (counts is not None) != (counted and data.num_classes is not None):
        raise AnswerError("label_counts are given exactly if the server asks for them")
    if counts is not None and (len(counts), sum(counts)) != (data.num_classes, size):
        raise AnswerError(f"label_counts do not fit {size} samples of {data.num_classes} classes")


def check_training(
    reported: Reported, job: Job, report: wire.Report, tensors: wire.Tensors
) -> None:
    """Reject an answer that cannot be the result of a job.

    Raises:
        AnswerError: It has undeclared uploads, unknown losses, logs or scores, more steps than the
            plan, or state that the client keeps; or it lacks an upload or such a state.
    """
    if tensors.kept:
        raise AnswerError("it has state that the client keeps")
    try:
        counts = report.steps, report.samples
        reported.check(job, *counts, report.train.read(), report.logged.read())
    except ReportError as error:
        raise AnswerError(str(error)) from error
    _check_scores(reported.contexts, job, report.scores)
    _check_kept(reported.first.module, job, report)
    _check_sent(job, report, tensors)
    # Uploads that are not finite are sent unencoded, and do not count.
    if report.finite and (upload := upload_of(report, tensors)) is not None:
        try:
            check_upload(upload, job, reported.first.module, reported.first.template)
            reported.check_beside(upload.extra)
        except (UploadError, ReportError) as error:
            raise AnswerError(str(error)) from error


def check_test(reported: Reported, job: Job, marks: wire.Marks, tensors: wire.Tensors) -> None:
    """Reject scores that a test does not return.

    Raises:
        AnswerError: A score has an unknown name or is out of its range, or one is missing.
    """
    if any(tensors):
        raise AnswerError("a test sends no tensors")
    _check_scores(reported.contexts, job, marks.scores)


def _check_kept(module: ClientModule, job: Job, report: wire.Report) -> None:
    if report.kept is None and module.kept_names(job.info):
        raise AnswerError("it names no kept state, though the method keeps one")
    if report.kept is not None and report.kept.round != job.info.round:
        raise AnswerError(f"it keeps a state of round {report.kept.round}")


def _check_sent(job: Job, report: wire.Report, tensors: wire.Tensors) -> None:
    """Reject tensors without an upload, and a missing upload that nothing explains."""
    steps = [type(step).__name__ for step in job.steps]
    if report.withheld is not None and (report.withheld not in steps or report.upload is not None):
        raise AnswerError(f"it says that {report.withheld[:60]} withheld its upload")
    if sum(one.steps for one in report.drawn) > report.steps:
        raise AnswerError(f"it has drawn noise for more than its {report.steps} steps")
    if report.upload is None and (tensors.shared or tensors.extra):
        raise AnswerError("it sends tensors without an upload")
    if report.upload is None and report.withheld is None and report.steps:
        raise AnswerError(f"it sends nothing after {report.steps} steps")


def _check_scores(
    contexts: Contexts, job: Job, scores: Mapping[wire.SplitName, wire.Numbers]
) -> None:
    try:
        for values in scores.values():
            contexts.scorer.check(values.read())
    except ValueError as error:
        raise AnswerError(str(error)) from error
    for split in scores:
        if split not in job.splits:
            raise AnswerError(f"it has scores on {split}, which was not to be tested")
    for split in job.splits if scores else ():
        size = len(contexts.data.split(job.info.client, split))
        wrong = not size if split in scores else size and contexts.scorer.scores_all
        if wrong:
            has = "scores" if split in scores else "no scores"
            raise AnswerError(f"it has {has} on {split}, of which its client has {size} samples")


CHECKS: Mapping[str, Callable[[Reported, Job, Any, wire.Tensors], None]] = {
    "train": check_training,
    "test": check_test,
}
