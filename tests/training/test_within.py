"""Ranges of scores: what a model scores lies within, and what lies outside is no score."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torchmetrics import Metric, classification, regression

from pfl.core.seeds import generator
from pfl.core.task import Binary, Classification, MultiLabel, Regression
from pfl.training.metrics import Scorer
from tests.helpers.messages import parts

TASKS = [
    (Classification(), 4, classification),
    (Binary(), 2, classification),
    (MultiLabel(), 3, classification),
    (Regression(), 1, regression),
    (Regression(), 2, regression),
    (Regression(quantiles=(0.1, 0.5)), 2, regression),
]


def scorers(task, outputs, module):
    """Yield a scorer for each metric of torchmetrics that fits the task."""
    yield Scorer(task, outputs)
    for name, kind in inspect.getmembers(module, inspect.isclass):
        if issubclass(kind, Metric):
            try:
                yield Scorer(task, outputs, [f"{module.__name__}.{name}"])
            except ValueError:
                continue


def models(task, outputs, rng):
    """Yield outputs and targets: right and wrong, of all sizes, with few and many samples."""
    for turn in range(20):
        count = 1 + turn
        if isinstance(task, Regression):
            numbers = task.outputs(1)
            y = torch.randn(count, outputs // numbers, generator=rng).double() * 10.0 ** (turn % 5)
            made = torch.randn(count, outputs, generator=rng).double() * 10.0 ** (turn % 7 - 2)
            yield (made.abs(), y.abs()) if turn % 3 else (made, y)
        elif isinstance(task, MultiLabel):
            y = (torch.rand(count, outputs, generator=rng) > 0.5).double()
            yield torch.randn(count, outputs, generator=rng) * 9, y
        else:
            y = torch.randint(0, outputs, (count,), generator=rng)
            yield torch.randn(count, outputs, generator=rng) * 9, y


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("task", "outputs", "module"), TASKS)
def test_what_models_score_lies_within(task, outputs, module):
    for scorer in scorers(task, outputs, module):
        for scores in scorer.scores([*models(task, outputs, generator(3))]):
            scorer.check(scores)


GOOD = {"acc": 0.5, "loss": 1.0, "f1": 0.5, "ece": 0.1}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"acc": 2.0}, "acc lies in [0, 1], got 2"),
        ({"acc": -0.1}, "acc lies in [0, 1], got -0.1"),
        ({"loss": -1.0}, "loss lies in [0, inf), got -1"),
        ({"loss": math.inf}, "loss lies in [0, inf), got inf"),
        ({"loss": math.nan}, "loss lies in [0, inf), got nan"),
        ({"invented": 1.0}, "acc, loss, f1, ece, got acc, loss, f1, ece, invented"),
    ],
)
def test_what_lies_outside_is_no_score(change, what):
    with pytest.raises(ValueError, match=parts(what)):
        Scorer(Classification(), 3).check({**GOOD, **change})


def test_a_score_that_is_always_defined_is_always_given():
    scorer = Scorer(MultiLabel(), 3)
    scorer.check({"acc": 0.5, "loss": 1.0, "exact": 0.0})
    with pytest.raises(ValueError, match="got acc, f1, exact"):
        scorer.check({"acc": 0.5, "f1": 1.0, "exact": 0.0})


def test_a_model_without_scores_has_none_at_all():
    Scorer(Classification(), 3).check(dict.fromkeys(GOOD, math.nan))


def test_scores_of_ones_own_do_not_inherit_ranges():
    class LogLikelihood(Classification):
        def scores(self, outputs, y):
            return super().scores(outputs, y) * -1

    assert LogLikelihood.scores_within == {}
    Scorer(LogLikelihood(), 3).check({name: -value for name, value in GOOD.items()})
