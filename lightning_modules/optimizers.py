"""Optimiser factories for methods whose phases learn at rates of their own."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.optim import Optimizer

from pfl.types import OptimizerFactory


def with_lr(optimizer: OptimizerFactory, lr: float) -> OptimizerFactory:
    """The same optimiser at another learning rate.

    Args:
        optimizer: Makes an optimiser from parameters; everything but its rate is kept.
        lr: The rate of all of its parameter groups.

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
