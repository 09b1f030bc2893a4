"""The options of the tasks' losses, by hand and against torch and scikit-learn."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.func import vmap

from lightning_modules import FedAvg, PFedMe
from pfl.core.seeds import generator
from pfl.core.task import Binary, Classification, MultiLabel, Regression
from pfl.testing import PROMISES, Subject
from tests.helpers.messages import parts

WEIGHTS = (1.0, 0.2, 3.0)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"class_weights": WEIGHTS},
        {"label_smoothing": 0.3},
        {"class_weights": WEIGHTS, "label_smoothing": 0.3},
    ],
    ids=lambda options: "+".join(options),
)
def test_weights_and_smoothing_are_those_of_torch(options, stacked):
    rng = generator(1)
    logits, y = torch.randn(7, 3, generator=rng), torch.randint(3, (7,), generator=rng)
    losses = Classification(**options).sample_losses
    found = vmap(losses)(logits[None], y[None])[0] if stacked else losses(logits, y)
    weight = torch.tensor(WEIGHTS) if "class_weights" in options else None
    smoothing = options.get("label_smoothing", 0.0)
    expected = F.cross_entropy(logits, y, weight, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(found, expected)


def test_the_mean_is_over_samples():
    """Of two samples at log 2, one counts three times: 2 log 2, where torch would say log 2."""
    task = Classification(class_weights=(1.0, 3.0))
    loss = task.loss(torch.zeros(2, 2), torch.tensor([0, 1]))
    assert loss.item() == pytest.approx(2 * math.log(2))


def test_the_focal_loss_by_hand():
    """At a probability of 3/4 and gamma 2: (1/4)^2 log(4/3)."""
    logits = torch.tensor([[math.log(3.0), 0.0]])
    found = Classification(focal=2.0).sample_losses(logits, torch.tensor([0]))
    assert found.item() == pytest.approx(math.log(4 / 3) / 16)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_the_focal_loss_has_a_slope_where_the_label_is_certain(gamma):
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    Classification(focal=gamma).loss(logits, torch.tensor([0])).backward()
    assert logits.grad.isfinite().all()


def test_the_score_stays_the_cross_entropy():
    logits, y = torch.randn(9, 3, generator=generator(2)), torch.arange(9) % 3
    plain = Classification().scores(logits, y)
    assert torch.equal(Classification(WEIGHTS, 0.2).scores(logits, y), plain)
    assert torch.equal(Classification(focal=1.0).scores(logits, y), plain)


def test_the_huber_loss_by_hand():
    """Errors of 1/2 and 3 at delta 1: 1/8 and 3 - 1/2."""
    found = Regression(huber=1.0).sample_losses(torch.tensor([[0.5, 3.0]]), torch.zeros(1, 2))
    assert found.item() == pytest.approx((1 / 8 + 5 / 2) / 2)


def test_quantiles_are_scored_as_scikit_learn_does():
    """Two numbers, three quantiles each; the values are those of the second one, 0.6."""
    from sklearn.metrics import mean_pinball_loss

    task = Regression(quantiles=(0.1, 0.6, 0.95))
    rng = generator(3)
    outputs, y = torch.randn(11, 6, generator=rng), torch.randn(11, 2, generator=rng)
    found = dict(zip(task.scores_better, task.scores(outputs, y).tolist(), strict=True))
    own = [
        mean_pinball_loss(y, outputs[:, [place, place + 3]], alpha=quantile)
        for place, quantile in enumerate(task.quantiles)
    ]
    assert [found[f"pinball_{q:g}"] for q in task.quantiles] == pytest.approx(own)
    assert found["loss"] == pytest.approx(sum(own) / 3)
    assert task.loss(outputs, y).item() == pytest.approx(sum(own) / 3)
    assert found["mae"] == pytest.approx((outputs[:, [1, 4]] - y).abs().mean().item())
    assert torch.equal(task.predictions(outputs), outputs[:, [1, 4]])
    assert (task.outputs(2), task.metric_arguments(6)) == (6, {"num_outputs": 2})


def test_a_quantile_that_is_not_finite_has_no_score():
    outputs = torch.tensor([[math.nan, 0.0]])
    assert Regression(quantiles=(0.1, 0.5)).scores(outputs, torch.zeros(1, 1)).isnan().all()


@pytest.mark.parametrize(
    ("task", "options", "says"),
    [
        (Classification(), {"label_smoothing": 1.0}, "label_smoothing ~ [0, 1) ~ 1.0"),
        (Classification(), {"focal": -1.0}, "focal ~ negative ~ -1.0"),
        (Classification(), {"class_weights": [1.0, -1.0]}, "class_weights ~ negative ~ -1.0"),
        (Classification(), {"class_weights": [0.0, 0.0]}, "class_weights ~ positive ~ 0.0"),
        (Classification(), {"class_weights": [1.0, math.nan]}, "class_weights ~ negative ~ nan"),
        (Classification(), {"class_weights": [1.0, math.inf]}, "class_weights ~ finite ~ inf"),
        (Binary(), {"focal": 1.0, "label_smoothing": 0.1}, "focal ~ label_smoothing"),
        (Regression(), {"huber": 0.0}, "huber ~ positive ~ 0.0"),
        (Regression(), {"quantiles": [0.5, 0.1]}, "quantiles ~ ascending ~ [0.5, 0.1]"),
        (Regression(), {"quantiles": [0.5], "huber": 1.0}, "huber and quantiles ~ one of them"),
        (Regression(), {"focal": 1.0}, "Regression ~ 'focal' ~ huber, quantiles"),
        (MultiLabel(), {"focal": 1.0}, "MultiLabel ~ 'focal'"),
    ],
)
def test_what_does_not_suit_a_task_is_refused(task, options, says):
    with pytest.raises(ValueError, match=parts(says)):
        task.with_loss(options)


TASKS = [
    Classification(WEIGHTS, 0.2),
    Classification(focal=1.5),
    Regression(huber=0.5),
    Regression(quantiles=(0.2, 0.5, 0.9)),
]


@pytest.mark.parametrize("method", [FedAvg, PFedMe], ids=lambda method: method.__name__)
@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_engines_agree_under_options(task, method):
    for promise in PROMISES:
        if promise.name in ("stacked_agrees", "padding_does_not_count", "works_on_any_device"):
            assert promise.hold(Subject(method, task=task)), promise.name
