"""A CSV file of a run to which each round adds rows; a checkpoint records what it must contain."""

from __future__ import annotations

import csv
import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pfl.disk import writing
from pfl.disk.reading import FileError, original, read_csv
from pfl.federation.checkpoint import CheckpointError

Cells = Mapping[str, str]

# The state of a file that does not exist.
NO_ROWS: Mapping[str, Any] = {"rows": 0, "digest": ""}


class RowFile:
    """A CSV file with a column ``round``, and the number and digest of its rows.

    A column added later is empty in earlier rows. Neither this nor the order of columns changes the
    digest.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = _Digest()

    def state(self) -> dict[str, Any]:
        """Return number and digest of the rows, once they are on the disk.

        So a checkpoint never records rows that a power cut can lose.
        """
        writing.sync(self.path)
        return self._digest.state()

    def append(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Append rows; if they have a new column, rewrite the file.

        Raises:
            OSError: The file cannot be written; it is as before.
        """
        if not rows:
            return
        cells = [_cells(row) for row in rows]
        header = _header(self.path)
        if {name for row in cells for name in row} <= {*header}:
            writing.append(self.path, writing.csv_text(cells, header, headed=False))
            self._digest.add(cells)
        else:
            self.write([*_read(self.path), *cells], header)

    def cut(self, last: int, wanted: Mapping[str, Any] | None = None) -> None:
        """Drop the rows after a round, and partial lines that a killed process left.

        ``wanted`` is the state that the rows up to this round must have, if it is known.

        Raises:
            CheckpointError: They are other rows. The file is as before.
            OSError: The file cannot be written.
        """
        if not self.path.exists():
            if wanted is not None and wanted.get("rows"):
                warnings.warn(
                    f"{self.path} is missing: the rows up to round {last} are lost", stacklevel=2
                )
            return
        kept = [row for row in _read(self.path) if _round(row, self.path) <= last]
        digest = _Digest()
        digest.add(kept)
        if wanted is not None and digest.state() != wanted:
            raise CheckpointError(
                f"the {digest.rows} rows of {self.path} up to round {last} are not the "
                f"{wanted.get('rows')} of the checkpoint: they are of another run, or were changed "
                "or lost. Restore the file, or remove it to continue without these rows"
            )
        self.write(kept, _header(self.path))

    def replace(self, last: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Replace the rows after a round by the given ones.

        Raises:
            OSError: The file cannot be written; it is as before.
        """
        kept = [row for row in _read(self.path) if _round(row, self.path) <= last]
        if rows or self.path.exists():
            self.write([*kept, *rows], _header(self.path))

    def write(self, rows: Sequence[Mapping[str, object]], header: Iterable[str] = ()) -> None:
        """Rewrite the file with these rows alone.

        The columns of ``header`` come first, whether a row has them or not.

        Raises:
            OSError: The file cannot be written; it is as before.
        """
        cells = [_cells(row) for row in rows]
        writing.write(self.path, writing.csv_text(cells, header))
        self._digest = _Digest()
        self._digest.add(cells)


class _Digest:
    """Number and digest of rows."""

    def __init__(self) -> None:
        self.rows = 0
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, rows: Iterable[Cells]) -> None:
        for row in rows:
            self.rows += 1
            cells = sorted(f"{name}={cell}" for name, cell in row.items() if cell)
            self._hash.update("\0".join([*cells, "\n"]).encode())

    def state(self) -> dict[str, Any]:
        return {"rows": self.rows, "digest": self._hash.hexdigest()}


def _cells(row: Mapping[str, object]) -> Cells:
    return {name: "" if value is None else str(value) for name, value in row.items()}


def _header(path: Path) -> list[str]:
    """Return the columns of a table that this process has written or checked."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [*map(original, next(csv.reader(file), []))]


def _read(path: Path) -> list[Cells]:
    rows: list[Any] = read_csv(path).to_dict("records")
    return rows


def _round(row: Cells, path: Path) -> int:
    number = row.get("round", "")
    if not number.isdecimal():
        raise FileError(f"{path}: round must be a whole number, got {number[:60]!r}")
    return int(number)
