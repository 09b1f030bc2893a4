"""What happens around a round: the base of all callbacks, checkpoints, early stop.

Callbacks read a RoundResult and change nothing of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pfl import checkpoint
from pfl.types import Result, RoundResult

if TYPE_CHECKING:
    from pfl.run import Run


class Callback:
    """Base of all callbacks; every event does nothing.

    State that must outlive an interruption goes through ``state_dict`` as plain values.
    """

    should_stop: bool = False

    @property
    def name(self) -> str:
        """Under which the checkpoint keeps this callback's state."""
        return type(self).__name__

    def on_fit_start(self, run: Run) -> None:
        """Before the first round, or the first after a resume."""

    def on_result(self, run: Run, result: Result) -> None:
        """After each client's training."""

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """After each round."""

    def on_fit_end(self, run: Run) -> None:
        """After the last round."""

    def on_interrupt(self, run: Run) -> None:
        """When the run ends before its last round, by a signal or an error."""

    def state_dict(self) -> dict[str, Any]:
        """Plain values to go on from."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from them; called with an empty mapping if there are none."""


class Checkpoint(Callback):
    """Saves what a run is resumed from, as ``checkpoints/last.ckpt`` in the run's folder.

    Args:
        every: Save after every this many rounds; always after the last and on an interruption.
    """

    def __init__(self, every: int = 10) -> None:
        self.every = every
        self._saved = -1

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Save if it is time."""
        if result.round % self.every == 0:
            self.save(run)

    def on_fit_end(self, run: Run) -> None:
        """Save the finished run."""
        self.save(run)

    def on_interrupt(self, run: Run) -> None:
        """Save the last finished round, so that nothing whole is lost."""
        if run.round > 0:
            self.save(run)

    def save(self, run: Run) -> None:
        """Write the checkpoint, unless the one on disk is of this round already."""
        if run.folder is None or self._saved == run.round:
            return
        checkpoint.save(run.folder / "checkpoints" / "last.ckpt", self.content(run))
        self._saved = run.round

    def content(self, run: Run) -> dict[str, Any]:
        """Everything that the rounds to come depend on."""
        return {
            "round": run.round,
            "method": type(run.module).__name__,
            "server": checkpoint.pack(run.server),
            "kept": {
                client: checkpoint.move(run.kept[client], "cpu") for client in sorted(run.kept)
            },
            "template": checkpoint.move(run.template, "cpu"),
            "history": run.history,
            "partition": run.data.description().get("hash"),
            "config": run.config,
            "callbacks": {callback.name: callback.state_dict() for callback in run.callbacks},
        }


class EarlyStopping(Callback):
    """Ends the run when a metric has not improved for some evaluated rounds.

    Args:
        monitor: Name of a metric; use one on validation data.
        patience: Evaluated rounds without improvement that are borne.
        mode: Whether larger or smaller is better.
        min_delta: Smallest change that counts as an improvement.

    Raises:
        ValueError: At the first evaluated round, if there is no such metric.
    """

    def __init__(
        self,
        monitor: str = "val/personal/acc",
        patience: int = 10,
        mode: Literal["max", "min"] = "max",
        min_delta: float = 0.0,
    ) -> None:
        self.monitor = monitor
        self.patience = patience
        self.mode = mode
        self.min_delta = min_delta
        self.best: float | None = None
        self.waited = 0

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Compare with the best so far."""
        if not result.evaluated:
            return
        if self.monitor not in result.metrics:
            known = ", ".join(sorted(k for k in result.metrics if k.startswith(("val/", "test/"))))
            raise ValueError(f"EarlyStopping monitors {self.monitor!r}; there are only {known}")
        value = result.metrics[self.monitor] * (1 if self.mode == "max" else -1)
        if self.best is None or value > self.best + self.min_delta:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        self.should_stop = self.waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """The best value and how long it has stood."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on comparing with the best of before."""
        self.best, self.waited = state.get("best"), state.get("waited", 0)
