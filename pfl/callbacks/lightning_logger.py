"""Lightning loggers: each gets a round's metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfl.core.types import RoundResult
from pfl.federation.run import Callback, Run

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


class LightningLogger(Callback):
    """Logs each round's metrics to a Lightning logger, in one call.

    Args:
        logger: The logger.
    """

    def __init__(self, logger: Logger) -> None:
        self.logger = logger

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Log the round's metrics."""
        self.logger.log_metrics(result.metrics, step=result.round)
        self.logger.save()

    def on_fit_end(self, run: Run) -> None:
        """Close the logger."""
        self.logger.finalize("success")
