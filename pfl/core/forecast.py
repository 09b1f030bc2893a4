"""The task of predicting the next values of a time series."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pfl.core.criteria import exact, wide
from pfl.core.task import Regression


@dataclass(frozen=True, repr=False)
class Forecast(Regression):
    """D numbers at each of the next H times: (n, H D) targets; the D of one time are adjacent.

    The network's outputs, and so the loss, are of standardised targets. Scores and predictions are
    in the targets' units. The scores of :class:`Regression` are over all times; ``mae_1`` to
    ``mae_H`` follow, the mean absolute error at each time, where there are several.

    Args:
        horizon: H.
        means: (D,) means that standardise the targets; none if they are left as they are.
        deviations: (D,) standard deviations, likewise.
    """

    horizon: int = 1
    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()

    @property
    def scores_better(self) -> Mapping[str, bool]:  # type: ignore[override]
        """The names of the scores; ``True`` if more is better."""
        times = range(1, self.horizon + 1) if self.horizon > 1 else ()
        return {**super().scores_better, **{f"mae_{time}": False for time in times}}

    @property
    def scores_within(self) -> Mapping[str, str]:  # type: ignore[override]
        """The interval of each score, as of :class:`Regression`."""
        return super().scores_within

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B,) losses, of standardised targets."""
        if self.means:
            means, deviations = self._scale(outputs)
            y = (y.to(outputs.dtype) - means) / deviations
        return super().sample_losses(outputs, y)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return (n, H D) values in the targets' units, or (n,) where there is one."""
        return super().predictions(self._in_units(outputs))

    def scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the scores of the values in their units, and the errors of each time."""
        outputs, y = self._in_units(exact(outputs)), exact(y)
        scores = super().scores(outputs, y)
        if self.horizon == 1:
            return scores
        apart = F.l1_loss(self._point(outputs), y, reduction="none")
        # Zero times infinity is NaN: then no score is defined.
        return torch.cat([scores, apart.mean(0).view(self.horizon, -1).mean(1) + 0 * scores[0]])

    def _in_units(self, outputs: Tensor) -> Tensor:
        outputs = wide(outputs)
        if not self.means:
            return outputs
        scale = self._scale(outputs).repeat_interleave(self.outputs(1), dim=1)
        return outputs * scale[1] + scale[0]

    def _scale(self, like: Tensor) -> Tensor:
        """Return (2, H D) means and deviations."""
        values = [self.means, self.deviations]
        scale = torch.tensor(values, dtype=like.dtype, device=like.device)
        return scale.repeat(1, self.horizon)
