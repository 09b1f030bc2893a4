"""Layers and module wrappers that torch does not provide."""

from lightning_modules.layers.constants import Frozen as Frozen
from lightning_modules.layers.constants import as_buffer as as_buffer
from lightning_modules.layers.constants import make_constant as make_constant
from lightning_modules.layers.constants import statistics as statistics
from lightning_modules.layers.copies import copy_into as copy_into
from lightning_modules.layers.copies import frozen as frozen
from lightning_modules.layers.copies import frozen_parameters as frozen_parameters
from lightning_modules.layers.low_rank import LowRank as LowRank
from lightning_modules.layers.low_rank import LowRankConv2d as LowRankConv2d
from lightning_modules.layers.low_rank import LowRankLinear as LowRankLinear
from lightning_modules.layers.low_rank import low_rank_kind as low_rank_kind
from lightning_modules.layers.mean_field import MeanFieldNet as MeanFieldNet
from lightning_modules.layers.mean_field import constant as constant
from lightning_modules.layers.valve import ConditionalValve as ConditionalValve
from lightning_modules.layers.variational import VariationalLinear as VariationalLinear
from lightning_modules.layers.variational import draw_noise as draw_noise
from lightning_modules.layers.variational import inverse_softplus as inverse_softplus
from lightning_modules.layers.variational import softplus_std as softplus_std
from lightning_modules.layers.variational import softplus_std_slope as softplus_std_slope
