"""The base class of callbacks that analyse models and write a table of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

from pfl.callbacks.records import append, drop_after
from pfl.core.types import RoundResult
from pfl.federation.run import Callback, Run


class Analysis(Callback, ABC):
    """Writes rows to a file in the run folder after each evaluated round.

    An analysis does not change the numbers of a run, but a run with it has another identity than
    one without. So a table that draws its picture does not reuse a run that lacks the file.

    Attributes:
        file: Name of the file; its columns include ``round``.
    """

    file: ClassVar[str]

    def on_fit_start(self, run: Run) -> None:
        """Drop the rows of rounds that will be run again.

        Raises:
            ValueError: The run has no folder.
        """
        drop_after(self._path(run), run.round)

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Append the rows of an evaluated round."""
        if result.evaluated:
            append(self._path(run), list(self.rows(run, result)))

    @abstractmethod
    def rows(self, run: Run, result: RoundResult) -> Iterable[Mapping[str, float]]:
        """Return the rows of a round."""

    def _path(self, run: Run) -> Path:
        if run.folder is None:
            name = type(self).__name__
            raise ValueError(f"{name} needs a folder: give the loop a default_root_dir")
        return run.folder / self.file
