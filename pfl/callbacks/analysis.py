"""The base class of callbacks that analyse models and write a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pfl.callbacks.row_file import NO_ROWS, RowFile
from pfl.core.types import RoundResult
from pfl.federation.run import Callback, Run


class Analysis(Callback, ABC):
    """Writes rows to a file in the run folder after each evaluated round.

    An analysis does not change the numbers of a run, but a run with it has a different identity, so
    that a table that draws its picture does not reuse a run without the file.

    Attributes:
        file: Name of the file; its columns include ``round``.
    """

    file: ClassVar[str]
    _rows: RowFile | None = None
    _wanted: Mapping[str, Any] | None = None
    _seen = 0  # The last round with rows in the file.

    @property
    def files(self) -> Sequence[str]:
        """The file."""
        return (self.file,)

    def on_fit_start(self, run: Run) -> None:
        """Drop the rows of rounds that will be run again.

        Raises:
            ValueError: The run has no folder.
            CheckpointError: The rows in the file are not those of the run.
        """
        if run.folder is None:
            raise ValueError(f"{self.name} needs a folder: give the loop a default_root_dir")
        self._rows = RowFile(run.folder / self.file)
        self._rows.cut(run.round, self._wanted if run.round > 0 else None)
        self._seen = run.round

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Append the rows of an evaluated round."""
        if self.writes(result) and self._rows is not None:
            self._rows.append(list(self.rows(run, result)))
        self._seen = result.round

    def on_interrupt(self, run: Run) -> None:
        """Write the rows of the last round, if the run was interrupted before they were written."""
        last = run.latest
        if last is not None and self.writes(last) and last.round > self._seen and self._rows:
            self._rows.replace(last.round - 1, list(self.rows(run, last)))

    def state_dict(self) -> dict[str, Any]:
        """Return number and digest of the rows."""
        return {self.file: NO_ROWS if self._rows is None else self._rows.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the number and digest that the rows must have."""
        self._wanted = state.get(self.file)

    def writes(self, result: RoundResult) -> bool:
        """Return whether a round has rows."""
        return result.evaluated

    @abstractmethod
    def rows(self, run: Run, result: RoundResult) -> Iterable[Mapping[str, float]]:
        """Return the rows of a round."""
