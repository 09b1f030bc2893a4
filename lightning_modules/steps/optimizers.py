"""Learning rates: optimiser factories at another rate, and checks of a rate."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from torch import Tensor
from torch.optim import Optimizer

from pfl.core.types import OptimizerFactory


def with_lr(optimizer: OptimizerFactory, lr: float) -> OptimizerFactory:
    """Return a factory of the same optimiser at another learning rate.

    Args:
        optimizer: Makes an optimiser from parameters; all its settings but the rate are kept.
        lr: The rate of all parameter groups.

    Raises:
        ValueError: ``lr`` is negative.

    Example:
        >>> import torch
        >>> make = with_lr(lambda params: torch.optim.SGD(params, lr=1.0, momentum=0.9), 0.1)
        >>> group, = make([torch.zeros(2)]).param_groups
        >>> group["lr"], group["momentum"]
        (0.1, 0.9)
    """
    if lr < 0:
        raise ValueError(f"a learning rate must not be negative, got {lr}")

    def make(parameters: Iterable[Tensor]) -> Optimizer:
        made = optimizer(parameters)
        for group in made.param_groups:
            group["lr"] = lr
        return made

    return make


def learning_rate(optimizer: Optimizer) -> float:
    """Return the learning rate that all parameter groups of an optimiser share.

    Raises:
        ValueError: The groups have several rates.

    Example:
        >>> import torch
        >>> learning_rate(torch.optim.SGD([torch.zeros(2)], lr=0.1))
        0.1
    """
    rates = sorted({float(group["lr"]) for group in optimizer.param_groups})
    if len(rates) > 1:
        raise ValueError(f"one learning rate for all parameters is needed, got {rates}")
    return rates[0]


def warn_of_overshoot(optimizer: Optimizer, strength: float, name: str) -> None:
    """Warn if a pull of this strength towards an anchor goes beyond the anchor in one step.

    A step of rate eta on ``strength / 2 ||w - anchor||^2`` multiplies the distance by
    ``1 - eta strength``: from 1 on it overshoots, from 2 on it diverges.

    Args:
        optimizer: Gives eta.
        strength: Strength of the pull.
        name: Name of the argument that sets the strength.
    """
    product = learning_rate(optimizer) * strength
    if product >= 1:
        warnings.warn(
            f"the learning rate times {name} is {product:g}: at 1 and above a step overshoots the "
            "anchor, at 2 and above training diverges",
            stacklevel=3,
        )
