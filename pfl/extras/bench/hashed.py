"""Files of rows with a hash each, so that edited rows are detected.

Leaderboards and the ledger are such files. Their rows describe a run by its ``seed``, the hash of
its ``partition``, its ``fingerprint``, its ``environment``, and its scores at certain rounds
(``last``, ``best_by_val``, ``best_on_test``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pfl.disk import canonical, reading
from pfl.disk.writing import write

FORMAT = "pfl-rows-1"

Row = dict[str, Any]


def hashed(row: Mapping[str, Any]) -> Row:
    """Return a row with a hash of everything else in it."""
    content = {key: value for key, value in row.items() if key != "hash"}
    return {**content, "hash": canonical.digest(content)}


def write_rows(file: Path, kind: str, about: Mapping[str, Any], rows: Iterable[Row]) -> None:
    """Write a file of rows; equal content gives equal bytes.

    Args:
        file: The file.
        kind: Kind of the file, such as ``leaderboard``.
        about: Content that all rows share.
        rows: The rows, each with its hash.

    Raises:
        OSError: The file cannot be written.
    """
    content = {"format": FORMAT, "kind": kind, "about": {**about}, "rows": [*rows]}
    write(file, canonical.text(content))


def read_rows(file: Path, kind: str, name: str) -> tuple[dict[str, Any], list[Row]]:
    """Read a file of rows, and return its common content and its rows.

    Args:
        file: The file.
        kind: Expected kind.
        name: Key of a row's name, for messages.

    Raises:
        FileError: The file is missing or of another kind, a row was changed, or the bytes are not
            those that :func:`write_rows` writes.
        OSError: The file cannot be read.
    """
    content = reading.read_json(file)
    if not content:
        raise reading.FileError(f"there is no {kind} {file}")
    kind_of_file, about, rows = (content.get(key) for key in ("kind", "about", "rows"))
    if content.get("format") != FORMAT or not isinstance(kind_of_file, str):
        raise reading.FileError(f'{file} is not a {kind} (it has no "format": "{FORMAT}")')
    if kind_of_file != kind:
        raise reading.FileError(f"{file} is a {kind_of_file[:50]}, not a {kind}")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise reading.FileError(f"{file} is not a {kind}: it has no rows")
    if not isinstance(about, dict):
        raise reading.FileError(f"{file} is not a {kind}: its common content is missing")
    _check_hashes(file, rows, name)
    # Hashes do not detect duplicate keys or other spellings of a number.
    if (lines := reading.text(file)) != (right := canonical.text(content)):
        pairs = zip_longest(str(lines).splitlines(), right.splitlines())
        number = next((n for n, (one, other) in enumerate(pairs, 1) if one != other), 1)
        raise reading.FileError(
            f"{file}:{number}: this is not how pfl writes a {kind}: a key may be given twice, or a "
            "number spelt in another way"
        )
    return about, rows


def _check_hashes(file: Path, rows: Iterable[Row], name: str) -> None:
    for number, row in enumerate(rows, 1):
        which = row.get(name, f"number {number}")
        try:
            right = hashed(row)["hash"]
        except ValueError as error:
            raise reading.FileError(
                f"{file}: the row {which} has a number that is not finite"
            ) from error
        if row.get("hash") != right:
            raise reading.FileError(
                f"{file}: the row {which} was changed after it was written: its hash is "
                f"{row.get('hash')}, and its content has {right}"
            )
