"""The callback that saves checkpoints, from which a run can be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pfl.core.types import RoundResult
from pfl.federation import checkpoint
from pfl.federation.folders import FILE
from pfl.federation.run import Callback, Run
from pfl.federation.schema import Content


class Checkpoint(Callback):
    """Saves a run's checkpoint as ``checkpoints/last.ckpt`` in the run folder.

    Args:
        every: Number of rounds between two checkpoints. One is always saved after the last round
            and on an interruption.
    """

    files = (FILE.as_posix(),)

    def __init__(self, every: int = 10) -> None:
        self.every = every
        self._saved = -1

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Save after every ``every`` rounds; after each round if clients store their own states.

        They store those of two rounds, and a run resumes from one of them. The checkpoint is small,
        as it does not include them. The last round is saved before any callback closes.
        """
        if result.round % self.every == 0 or run.ends or run.keeper.tickets:
            self.save(run)

    def on_fit_end(self, run: Run) -> None:
        """Save the finished run, if a later callback has ended it."""
        self.save(run)

    def on_interrupt(self, run: Run) -> None:
        """Save the last finished round, so that no finished round is lost."""
        if run.round > 0:
            self.save(run)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Reset the record of which round was saved."""
        self._saved = -1

    def save(self, run: Run) -> None:
        """Write the checkpoint, unless this round has already been saved."""
        if run.folder is None or self._saved == run.round:
            return
        checkpoint.save(run.folder / FILE, dict(Content.of(run)))
        self._saved = run.round
