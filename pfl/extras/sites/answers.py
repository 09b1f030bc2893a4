"""Checks of sites' answers: a site may be faulty or send what it should not.

Training on other data, or badly, cannot be detected from an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pfl.core.data import FederatedData
from pfl.core.types import Job
from pfl.engines.transport import wire
from pfl.engines.transport.engine import upload_of
from pfl.training.context import Context
from pfl.training.received import UploadError, check_upload


class AnswerError(ValueError):
    """An answer can be read but does not fit its request."""


def check_introduction(
    data: FederatedData, introduction: wire.Introduction, _: wire.Tensors
) -> None:
    """Reject numbers of samples that contradict each other or the data's classes.

    Raises:
        AnswerError: They contradict.
    """
    counts, size = introduction.label_counts, introduction.sizes.get("train", 0)
    if counts is not None and (len(counts), sum(counts)) != (data.num_classes, size):
        raise AnswerError(f"label_counts do not fit {size} samples of {data.num_classes} classes")


def check_training(context: Context, job: Job, report: wire.Report, tensors: wire.Tensors) -> None:
    """Reject an answer that cannot be the result of a job.

    Raises:
        AnswerError: It is from another client, or has undeclared uploads, unknown scores or state
            that the client keeps.
    """
    if report.client != job.info.client:
        raise AnswerError(f"it is from client {report.client}")
    if tensors.kept:
        raise AnswerError("it has state that the client keeps")
    _check_scores(context, job, report.scores)
    # Uploads that are not finite are sent unencoded, and do not count.
    if report.finite and (upload := upload_of(report, tensors)) is not None:
        try:
            check_upload(upload, job, context.module, context.template)
        except UploadError as error:
            raise AnswerError(str(error)) from error


def check_test(context: Context, job: Job, marks: wire.Marks, _: wire.Tensors) -> None:
    """Reject scores that a test does not return.

    Raises:
        AnswerError: A score has an unknown name, or the main one is missing.
    """
    _check_scores(context, job, marks.scores)


def _check_scores(
    context: Context, job: Job, scores: Mapping[wire.SplitName, wire.Numbers]
) -> None:
    known = context.scorer.better
    main = next(iter(known))
    for split in job.splits:
        if split in scores and not {main} <= {*scores[split].names} <= {*known}:
            names = ", ".join(scores[split].names)[:60] or "none"
            raise AnswerError(f"the scores of a test are {', '.join(known)}, got {names}")


CHECKS: Mapping[str, Callable[[Context, Job, Any, wire.Tensors], None]] = {
    "train": check_training,
    "test": check_test,
}
