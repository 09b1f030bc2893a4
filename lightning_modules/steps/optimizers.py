"""Optimiser factories with another learning rate, and checks of optimisers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from torch import Tensor
from torch.optim import SGD, Optimizer

from pfl import method as fl


def with_lr(optimizer: fl.OptimizerFactory, lr: float) -> fl.OptimizerFactory:
    """Return a factory of the same optimiser with another learning rate.

    Args:
        optimizer: Factory that builds an optimiser from parameters; all its other settings are
            kept.
        lr: The learning rate of all parameter groups.

    Raises:
        ValueError: ``lr`` is negative or NaN.

    Example:
        >>> import torch
        >>> make = with_lr(lambda params: torch.optim.SGD(params, lr=1.0, momentum=0.9), 0.1)
        >>> group, = make([torch.zeros(2)]).param_groups
        >>> group["lr"], group["momentum"]
        (0.1, 0.9)
    """
    fl.not_negative(lr=lr)

    def make(parameters: Iterable[Tensor]) -> Optimizer:
        made = optimizer(parameters)
        for group in made.param_groups:
            group["lr"] = lr
        return made

    return make


def learning_rate(optimizer: Optimizer) -> float:
    """Return the learning rate that all parameter groups of an optimiser share.

    Raises:
        ValueError: The groups have different learning rates.

    Example:
        >>> import torch
        >>> learning_rate(torch.optim.SGD([torch.zeros(2)], lr=0.1))
        0.1
    """
    rates = sorted({float(group["lr"]) for group in optimizer.param_groups})
    if len(rates) > 1:
        raise ValueError(f"one learning rate for all parameters is needed, got {rates}")
    return rates[0]


def beyond_plain_sgd(optimizer: Optimizer) -> str | None:
    """Describe an optimiser in words; return ``None`` for SGD without momentum.

    Example:
        >>> import torch
        >>> beyond_plain_sgd(torch.optim.SGD([torch.zeros(2)], lr=0.1, momentum=0.9))
        'SGD with momentum'
    """
    momentum = any(group.get("momentum") for group in optimizer.param_groups)
    if isinstance(optimizer, SGD) and not momentum:
        return None
    return type(optimizer).__name__ + (" with momentum" if momentum else "")


def warn_of_overshoot(optimizer: Optimizer, strength: float, name: str) -> None:
    """Warn if a proximal term of this strength overshoots its anchor in one step.

    A step with learning rate eta on ``strength / 2 ||w - anchor||^2`` multiplies the distance by
    ``1 - eta strength``: it overshoots if ``eta strength`` is 1 or more, and diverges if it is 2 or
    more.

    Args:
        optimizer: Optimiser whose learning rate is eta.
        strength: Strength of the term.
        name: Name of the argument that sets the strength.
    """
    product = learning_rate(optimizer) * strength
    if product >= 1:
        warnings.warn(
            f"the learning rate times {name} is {product:g}: at 1 and above a step overshoots the "
            "anchor, at 2 and above training diverges",
            stacklevel=3,
        )
