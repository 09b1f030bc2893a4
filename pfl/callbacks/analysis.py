"""The base of callbacks that look into models and write a table of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

from pfl.callbacks.records import append, drop_after
from pfl.core.types import RoundResult
from pfl.federation.run import Callback, Run


class Analysis(Callback, ABC):
    """Writes rows after each evaluated round into a file of the run's folder.

    A run with an analysis is another than one without, so that a table that asks for its picture
    finds the file. The run's numbers are the same.

    Attributes:
        file: Name of the table; its columns include ``round``.
    """

    file: ClassVar[str]

    def on_fit_start(self, run: Run) -> None:
        """Drop rows of rounds that are done again.

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
