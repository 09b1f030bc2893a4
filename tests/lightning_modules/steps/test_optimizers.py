"""Learning rates of optimisers that a configuration made."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch

from lightning_modules.steps.optimizers import learning_rate, warn_of_overshoot, with_lr
from tests.helpers.messages import parts, refuses


def sgd(lr):
    return torch.optim.SGD([torch.zeros(1)], lr=lr)


def test_a_negative_rate_is_refused():
    refuses(partial(with_lr, partial(torch.optim.SGD, lr=0.1)), "negative", lr=(-1, float("nan")))


def test_several_rates_are_not_one():
    groups = [{"params": [torch.zeros(1)], "lr": lr} for lr in (0.5, 0.1)]
    with pytest.raises(ValueError, match=parts("one learning rate ~ [0.1, 0.5]")):
        learning_rate(torch.optim.SGD(groups))


def test_overshoot_begins_where_rate_times_strength_is_one():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_overshoot(sgd(0.5), 1.9, "mu")
    with pytest.warns(UserWarning, match=parts("learning rate ~ mu ~ 1:")):
        warn_of_overshoot(sgd(0.5), 2.0, "mu")
