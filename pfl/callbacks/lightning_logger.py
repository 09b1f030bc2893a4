"""Metrics for any logger of Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfl.core.types import RoundResult
from pfl.federation.run import Callback, Run

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


class LightningLogger(Callback):
    """Hands each round's metrics to any Lightning logger, in one call.

    Args:
        logger: The logger.
    """

    def __init__(self, logger: Logger) -> None:
        self.logger = logger

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Log the row."""
        self.logger.log_metrics(result.metrics, step=result.round)
        self.logger.save()

    def on_fit_end(self, run: Run) -> None:
        """Tell the logger that this was all."""
        self.logger.finalize("success")
