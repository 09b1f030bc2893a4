"""Layers and module wrappers that torch does not provide."""

from lightning_modules.layers.constants import Frozen, make_constant, statistics
from lightning_modules.layers.copies import copy_into, frozen, frozen_parameters
from lightning_modules.layers.low_rank import LowRankLinear
from lightning_modules.layers.mean_field import MeanFieldNet, constant
from lightning_modules.layers.valve import ConditionalValve
from lightning_modules.layers.variational import (
    VariationalLinear,
    draw_noise,
    inverse_softplus,
    softplus_std,
    softplus_std_slope,
)

__all__ = [
    "ConditionalValve",
    "Frozen",
    "LowRankLinear",
    "MeanFieldNet",
    "VariationalLinear",
    "constant",
    "copy_into",
    "draw_noise",
    "frozen",
    "frozen_parameters",
    "inverse_softplus",
    "make_constant",
    "softplus_std",
    "softplus_std_slope",
    "statistics",
]
