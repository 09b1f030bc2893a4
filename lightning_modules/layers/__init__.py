"""Layers and wrappers that networks do not have by themselves: Gaussian weights, frozen copies."""

from lightning_modules.layers.mean_field import (
    MeanFieldNet,
    Moments,
    constant,
    mean_field_kl,
    mean_field_kl_slopes,
)
from lightning_modules.layers.variational import (
    ConditionalValve,
    Frozen,
    VariationalLinear,
    check_noise,
    copy_into,
    draw_noise,
    frozen,
    frozen_parameters,
    inverse_softplus,
    softplus_std,
)

__all__ = [
    "ConditionalValve",
    "Frozen",
    "MeanFieldNet",
    "Moments",
    "VariationalLinear",
    "check_noise",
    "constant",
    "copy_into",
    "draw_noise",
    "frozen",
    "frozen_parameters",
    "inverse_softplus",
    "mean_field_kl",
    "mean_field_kl_slopes",
    "softplus_std",
]
