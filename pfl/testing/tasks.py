"""The promises of a task, held on samples that it makes up or that its loss accepts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import torch
from torch import Tensor

from pfl.core.judging import TaskError, accepted, check_task, usual_targets
from pfl.core.task import Task

_SAMPLES, _SIDE = 6, 4


def check_alone(task: Task) -> str:
    """Check a task on its example, or on targets of a form that it accepts; return the form.

    Raises:
        TaskError: It breaks a promise, or no samples are known that it accepts.
    """
    outputs, y = _samples(task)
    check_task(task, outputs, y)
    return f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(y.shape)}"


def _samples(task: Task) -> tuple[Tensor, Tensor]:
    count = task.outputs(2)
    if (example := task.example(count)) is not None:
        return example
    rng, errors = torch.Generator().manual_seed(0), list[TaskError]()
    for place in ((), (_SIDE, _SIDE), (_SIDE, _SIDE, _SIDE)):
        outputs = torch.randn(_SAMPLES, count, *place, generator=rng)
        try:
            return outputs, accepted(task, outputs, _read(task, usual_targets(outputs, rng)))
        except TaskError as error:
            errors.append(error)
    raise errors[0]


def _read(task: Task, found: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield targets as a task reads them from data, if it does."""
    for y in found:
        with suppress(Exception):
            yield task.of_targets(y)[1]
