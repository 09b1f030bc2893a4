"""A stranger's task is judged by what it does, in one line."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from datamodules import Segmentation, Survival
from pfl.core.judging import TaskError, check_task
from pfl.core.task import Binary, Classification, MultiLabel, Regression, Task
from pfl.testing.tasks import check_alone


@dataclass(frozen=True, repr=False)
class Depth(Task):
    """Metres at each pixel, as the page "Your task" has it."""

    scale: float = 1.0

    scores_better = {"mae": False, "rmse": False}  # noqa: RUF012
    scores_within = {"mae": "[0, inf)", "rmse": "[0, inf)"}  # noqa: RUF012
    loss_name = "l1"

    def sample_losses(self, outputs, y):
        return self.scale * (outputs - y).abs().flatten(1).mean(1)

    def rows(self, outputs, y):
        error = (outputs - y).flatten(1)
        return torch.stack([error.abs().mean(1), error.square().mean(1)], 1)

    def scores_of_rows(self, rows):
        mae, mse = rows.mean(0)
        return torch.stack([mae, mse.sqrt()])


OUTPUTS, Y = torch.randn(6, 1, 4, 4), torch.randn(6, 1, 4, 4)


def test_a_sound_task_passes():
    check_task(Depth(), OUTPUTS, Y)
    check_task(Depth(scale=2.0), OUTPUTS, Y)


@pytest.mark.parametrize(
    "task",
    [
        *(Classification(), Binary(), MultiLabel(), Regression(), Regression(quantiles=(0.1, 0.5))),
        *(Segmentation(), Segmentation(3, "dice"), Segmentation(3, "batch_dice", ignore=1)),
        *(Survival(), Survival("efron"), Depth()),
    ],
)
def test_the_projects_own_tasks_keep_their_promises(task):
    check_alone(task)


def test_shapes_that_a_loss_would_broadcast_are_refused():
    def sample_losses(self, outputs, y):
        return torch.nn.functional.mse_loss(outputs, y, reduction="none").flatten(1).mean(1)

    task = like(sample_losses=sample_losses)
    check_task(task, OUTPUTS, Y)
    with pytest.raises(TaskError, match=r"loss fails on outputs of shape \(6, 1, 4, 4\) .* size"):
        check_task(task, OUTPUTS, Y.expand(6, 3, 4, 4))


def like(**members):
    members = {"scores_within": Depth.scores_within, **members}
    return dataclass(frozen=True, repr=False)(type("Own", (Depth,), members))()


class Stateful(Depth):
    def __init__(self):
        object.__setattr__(self, "mean", 3.0)


@dataclass(frozen=True, repr=False)
class Nothing(Task):
    scores_better = {"mae": False}  # noqa: RUF012
    loss_name = "l1"


@dataclass(frozen=True, repr=False)
class Hidden(Depth):
    made: float = field(default=1.0, init=False)

    def __post_init__(self):
        object.__setattr__(self, "made", 2.0)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (Stateful(), "make Stateful a frozen dataclass"),
        (Nothing(), "neither sample_losses nor a loss"),
        (
            like(sample_losses=lambda s, o, y: (o - o.mean() - y).abs().flatten(1).mean(1)),
            "depend on the others in its batch; .* separable = False",
        ),
        (like(sample_losses=lambda s, o, y: (o - y).abs()), r"must be \(6,\) for 6 samples"),
        (like(sample_losses=lambda s, o, y: o @ y[:, 0, 0, 0]), "loss fails on outputs of shape"),
        (like(loss=lambda s, o, y, w=None: (o - y).abs().sum()), "the mean of sample_losses"),
        (
            like(loss=lambda s, o, y, w=None: (o - y).abs().flatten(1).mean(1).mean()),
            "counts a sample of weight zero",
        ),
        (like(loss=lambda s, o, y, w=None: (o - y).abs()), "must be a single number"),
        (like(sample_losses=lambda s, o, y: (o - y).flatten(1).mean(1) / 0), "for finite outputs"),
        (like(loss=lambda s, o, y: (o - y).abs().mean()), "loss fails on outputs of shape"),
        (
            like(scores_of_rows=lambda s, r: r.mean(0)[:1]),
            r"scores must be \(2,\), one for each of",
        ),
        (like(scores_of_rows=lambda s, r: -r.mean(0)), r"mae lies in \[0, inf\), got -"),
        (like(scores_of_rows=lambda s, r: r.mean(0) / 0), "mae lies in|is NaN"),
        (like(scores_of_rows=lambda s, r: r.mean(0) * torch.nan), "may_lack names"),
        (like(rows=lambda s, o, y: o - y), "scores|rows"),
        (like(rows=lambda s, o, y: (o - y).abs().amax().expand(len(o), 2)), "scores are others"),
        (like(scores_better={"the mae": False, "rmse": False}), "scores_better must name"),
        (like(may_lack=("r2",)), "names 'r2', which is no score"),
        (
            like(sample_losses=lambda s, o, y: o.clamp_(0, 1).flatten(1).mean(1)),
            "changes the outputs",
        ),
    ],
)
def test_a_broken_promise_is_said_in_a_line(task, words):
    with pytest.raises(TaskError, match=words) as error:
        check_task(task, OUTPUTS.clone(), Y.clone())
    assert "\n" not in str(error.value)
