"""Early stopping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from pfl.core.checks import at_least_one, not_negative, one_of
from pfl.core.types import RoundResult
from pfl.federation.run import Callback, Run


class EarlyStopping(Callback):
    """Ends the run when a metric has stopped improving.

    Args:
        monitor: Name of a metric; use one on validation data.
        patience: Number of evaluations without improvement before training stops.
        mode: ``max`` if larger values are better, else ``min``.
        min_delta: Smallest change that counts as an improvement.

    Raises:
        ValueError: ``patience`` is below one, ``min_delta`` is negative or ``mode`` is unknown; or,
            at the first evaluated round, the metric does not exist.
    """

    def __init__(
        self,
        monitor: str = "val/personal/acc",
        patience: int = 10,
        mode: Literal["max", "min"] = "max",
        min_delta: float = 0.0,
    ) -> None:
        at_least_one(patience=patience)
        one_of("mode", mode, ("max", "min"))
        not_negative(min_delta=min_delta)
        self.monitor = monitor
        self.patience = patience
        self.mode = mode
        self.min_delta = min_delta
        self.best: float | None = None
        self.waited = 0

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Compare the metric with its best value so far."""
        if not result.evaluated:
            return
        if self.monitor not in result.metrics:
            known = ", ".join(sorted(k for k in result.metrics if k.startswith(("val/", "test/"))))
            raise ValueError(f"EarlyStopping monitors {self.monitor!r}; known metrics: {known}")
        value = result.metrics[self.monitor] * (1 if self.mode == "max" else -1)
        best = -math.inf if self.best is None else self.best + self.min_delta
        # NaN is not an improvement, even as the first value.
        if value > best:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        self.should_stop = self.waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and the number of evaluations since then."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the best value and the evaluations since then; a stopped run stays stopped."""
        self.best, self.waited = state.get("best"), state.get("waited", 0)
        self.should_stop = self.waited >= self.patience
