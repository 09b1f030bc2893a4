"""Whether an answer fits its question: a site may be faulty, or say what it should not.

What cannot be seen in an answer is not checked: a site that trains on other data, or badly.
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
    """An answer can be read, but does not fit its question."""


def check_introduction(
    data: FederatedData, introduction: wire.Introduction, _: wire.Tensors
) -> None:
    """Refuse numbers of samples that contradict each other, or the classes of the data.

    Raises:
        AnswerError: They do.
    """
    counts, size = introduction.label_counts, introduction.sizes.get("train", 0)
    if counts is not None and (len(counts), sum(counts)) != (data.num_classes, size):
        raise AnswerError(f"label_counts do not fit {size} samples of {data.num_classes} classes")


def check_training(context: Context, job: Job, report: wire.Report, tensors: wire.Tensors) -> None:
    """Refuse what is not the outcome of a job.

    Raises:
        AnswerError: It is of another client, or has an upload that the method does not declare, or
            other scores, or what the client keeps.
    """
    if report.client != job.info.client:
        raise AnswerError(f"it is of client {report.client}")
    if tensors.kept:
        raise AnswerError("it has what the client keeps")
    _check_scores(context, job, report.scores)
    # What is not finite is not changed before it is sent, and does not count.
    if report.finite and (upload := upload_of(report, tensors)) is not None:
        try:
            check_upload(upload, job, context.module, context.template)
        except UploadError as error:
            raise AnswerError(str(error)) from error


def check_test(context: Context, job: Job, marks: wire.Marks, _: wire.Tensors) -> None:
    """Refuse scores that a test does not give.

    Raises:
        AnswerError: A score has another name, or the main one is missing.
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
