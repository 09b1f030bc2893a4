"""Judges a task by what it does with outputs and targets, before a run relies on it."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields

import torch
from torch import Tensor

from pfl.core.failure import ExplainedError, error_line
from pfl.core.ranges import Range
from pfl.core.task import Task

# Losses of a sample alone and in a batch, in single precision.
_ROUNDING = 1e-4


class TaskError(ExplainedError, ValueError):
    """A task does not do what methods and engines rely on."""


def usual_targets(outputs: Tensor, rng: torch.Generator) -> Iterator[Tensor]:
    """Yield made-up targets of outputs: classes, or numbers for each output, also zeros and ones.

    Args:
        outputs: (n, D, ...) outputs of a network.
        rng: A generator on the CPU.
    """
    classes = max(2, outputs.shape[1])
    for y in (
        torch.randint(classes, (len(outputs), *outputs.shape[2:]), generator=rng),
        torch.rand(outputs.shape, generator=rng),
        torch.randint(2, outputs.shape, generator=rng).float(),
    ):
        yield y.to(outputs.device)


def accepted(task: Task, outputs: Tensor, found: Iterable[Tensor]) -> Tensor:
    """Return the first targets that a task accepts with outputs.

    Raises:
        TaskError: There are none.
    """
    for y in found:
        with suppress(Exception), torch.no_grad():
            if task.loss(outputs, y).isfinite().all() and len(task.scores(outputs, y)):
                return y
    raise TaskError(
        f"the task {task} accepts none of the usual targets with outputs of shape "
        f"{tuple(outputs.shape)}: give it example(outputs), which returns outputs and targets of a "
        "few samples"
    )


def check_task(task: Task, outputs: Tensor, y: Tensor) -> None:
    """Refuse a task that breaks a promise of :class:`Task` on these samples.

    Args:
        task: The task.
        outputs: (n, D, ...) finite outputs of a network, n at least 2.
        y: (n, ...) targets.

    Raises:
        TaskError: It does; the message says which.
    """
    with torch.inference_mode():
        problem = next(_problems(task, outputs, y), None)
    if problem is not None:
        raise TaskError(f"the task {task}: {problem}")


def _problems(task: Task, outputs: Tensor, y: Tensor) -> Iterator[str]:
    name, kind = type(task).__name__, type(task)
    if not {*vars(task)} <= {field.name for field in fields(task)}:
        yield f"make {name} a frozen dataclass, whose fields are its options"
    elif kind(**task.options()) != task:
        yield "it cannot be built again from its options"
    better: Mapping[str, bool] = getattr(task, "scores_better", {})
    if not better or not all(re.fullmatch(r"[\w.-]+", str(one)) for one in better):
        yield f"scores_better must name its scores by words, the main one first, got {better}"
    if unknown := [*({*task.may_lack} | {*task.scores_within}) - {*better}]:
        yield f"may_lack or scores_within names {unknown[0]!r}, which is no score"
    if not isinstance(getattr(task, "loss_name", None), str):
        yield "loss_name must be a word, the name of the loss"
    if kind.loss is Task.loss and kind.sample_losses is Task.sample_losses:
        yield "it has neither sample_losses nor a loss of a batch"
    if kind.scores is Task.scores and kind.rows is Task.rows:
        yield "it has neither scores nor rows"
    before = outputs.clone(), y.clone()
    yield from _of_loss(task, outputs, y)
    yield from _of_scores(task, better, outputs, y)
    predictions, targets = task.predictions(outputs), task.targets(y)
    if len(predictions) != len(targets):
        yield f"there are {len(predictions)} predictions for {len(targets)} targets"
    if not all(map(torch.equal, before, (outputs, y))):
        yield "it changes the outputs or the targets that it is given"


def _of_loss(task: Task, outputs: Tensor, y: Tensor) -> Iterator[str]:
    shapes = f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(y.shape)}"

    def called(what: str, function: Callable[..., Tensor], *arguments: Tensor | None) -> Tensor:
        try:
            with warnings.catch_warnings():
                # Shapes that differ and are broadcast.
                warnings.filterwarnings("error", "Using a target size")
                return function(*arguments)
        except Exception as error:
            failed = f"the task {task}: {what} fails on {shapes}: {error_line(error)}"
            raise TaskError(failed) from error

    loss = called("loss", task.loss, outputs, y, None)
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        yield f"loss must be a single number for a batch, got {shape}"
        return
    if not loss.isfinite().all():
        yield f"loss is {float(loss)} for finite {shapes}"
    if not task.separable:
        return
    size = len(outputs)
    together = "if samples cannot be told apart, give loss instead and separable = False"
    losses = called("sample_losses", task.sample_losses, outputs, y)
    if losses.shape != (size,):
        yield (
            f"sample_losses must be ({size},) for {size} samples, got {tuple(losses.shape)}: "
            f"average over what belongs to a sample; {together}"
        )
        return
    alone = [
        called("sample_losses", task.sample_losses, outputs[i : i + 1], y[i : i + 1])
        for i in range(size)
    ]
    if not _same(losses, torch.cat(alone)):
        yield f"sample_losses of a sample depend on the others in its batch; {together}"
    if not _same(loss, losses.mean()):
        yield (
            f"loss is {float(loss):g} for a batch, and the mean of sample_losses "
            f"{float(losses.mean()):g}; {together}"
        )
    weight = losses.new_ones(size)
    weight[-1] = 0
    if not _same(called("loss", task.loss, outputs, y, weight), losses[:-1].mean()):
        yield "loss counts a sample of weight zero; Task.loss does not"


def _of_scores(task: Task, better: Mapping[str, bool], outputs: Tensor, y: Tensor) -> Iterator[str]:
    try:
        scores = task.scores(outputs, y)
    except Exception as error:
        yield f"scores fail: {error_line(error)}"
        return
    if tuple(getattr(scores, "shape", ())) != (len(better),):
        shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        names = ", ".join(better)
        yield f"scores must be ({len(better)},), one for each of {names}, got {shape}"
        return
    for name, value in zip(better, scores.tolist(), strict=True):
        within = Range(task.scores_within.get(name, "(-inf, inf)"))
        if math.isnan(value) and name not in task.may_lack:
            yield f"the score {name} is NaN; may_lack names the scores that may be undefined"
        if not math.isnan(value) and not within.holds(value, _ROUNDING):
            yield f"the score {name} lies in {within.interval}, got {value:g}"
    yield from _of_batches(task, scores, outputs, y)


def _of_batches(task: Task, scores: Tensor, outputs: Tensor, y: Tensor) -> Iterator[str]:
    """Yield how scores differ if what is held of batches is put together."""
    if type(task).rows is not Task.rows:
        rows = [task.rows(outputs[part], y[part]) for part in (slice(1), slice(1, None))]
        if any(one.dim() != 2 for one in rows) or sum(map(len, rows)) != len(outputs):
            yield f"rows must be (B, K), got {tuple(rows[1].shape)} for {len(outputs) - 1} samples"
        elif not _same(task.scores_of_rows(torch.cat(rows)), scores):
            yield "scores are others if rows of its batches are put together"
    if type(task).sums is not Task.sums:
        one, other = (task.sums(outputs[part], y[part]) for part in (slice(1), slice(1, None)))
        if not _same(task.scores_of_sums(task.joined(one, other)), scores):
            yield "scores are others if sums of its batches are joined"


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one.double(), other.double(), _ROUNDING, _ROUNDING, equal_nan=True)
