"""The callback that logs a run to a Lightning logger, as a Trainer would."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfl.core.types import RoundResult
from pfl.federation.run import Callback, Run

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


class LightningLogger(Callback):
    """Logs a run to a Lightning logger: one call per round, with the round's number as the step.

    Hyperparameters are logged before the first round. At the end, the summary is logged as metrics
    and the fingerprint as a hyperparameter.

    Args:
        logger: The logger.
    """

    def __init__(self, logger: Logger) -> None:
        self.logger = logger

    def on_fit_start(self, run: Run) -> None:
        """Log configuration and header."""
        self.logger.log_hyperparams(run.hyperparameters)

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Log the round's metrics."""
        self.logger.log_metrics(result.metrics, step=result.round)
        self.logger.save()

    def on_fit_end(self, run: Run) -> None:
        """Log summary and fingerprint, and close the logger."""
        self.logger.log_metrics(run.summary, step=run.round)
        self.logger.log_hyperparams({"fingerprint": run.fingerprint})
        self.logger.save()
        self.logger.finalize("success")

    def on_interrupt(self, run: Run) -> None:
        """Close the logger of an unfinished run."""
        self.logger.finalize("aborted")
