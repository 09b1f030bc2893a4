"""GPFL's conditional valve: a layer that scales and shifts features."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class ConditionalValve(nn.Module):
    """GPFL's conditional valve (CoV), which scales and shifts features depending on a condition.

    ``ReLU(z * (gamma + 1) + beta)``, where gamma and beta are each
    ``LayerNorm(ReLU(Linear(condition)))`` (Zhang et al., ICCV 2023, arXiv 2308.10279). It has ``2
    (D^2 + D) + 4 D`` parameters.

    Args:
        features: D.

    Example:
        >>> import torch
        >>> ConditionalValve(8)(torch.rand(5, 8), torch.rand(8)).shape
        torch.Size([5, 8])
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale = self._branch(features)
        self.shift = self._branch(features)

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        """Return (B, D) features under a condition.

        Args:
            z: (B, D).
            condition: (D,) for the whole batch, or (B, D).
        """
        return F.relu(z * (self.scale(condition) + 1) + self.shift(condition))

    @staticmethod
    def _branch(features: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.LayerNorm(features))
