"""Lists of classes and files that come with images, as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from datamodules.checks import require
from datamodules.delimited import Text
from datamodules.encoding import decode
from datamodules.targets import plain_name


def read_list(
    file: Path, needed: Sequence[str], separator: str = ","
) -> list[tuple[int, dict[str, str]]]:
    """Read the rows of a CSV file in UTF-8 with a header.

    Args:
        file: The file.
        needed: Columns that it must have.
        separator: Separator of columns.

    Returns:
        The line of each row in the file, and its cells by column, stripped.

    Raises:
        ValueError: The file is not such a file, or has no row; the message names a bad line.
    """
    text = Text(file, decode(file), separator)
    rows = [(line, [*map(plain_name, cells)]) for line, cells in text.rows()]
    rows = [(line, cells) for line, cells in rows if any(cells)]
    require(len(rows) > 1, f"{file} has no rows")
    (_, header), *rest = rows
    text.check_header(header)
    for name in needed:
        require(name in header, f"{file} has no column {name!r}, only {', '.join(header)}")
    for line, cells in rest:
        right = len(cells) == len(header)
        require(right, f"{file}, line {line}: {len(cells)} values for {len(header)} columns")
    return [(line, dict(zip(header, cells, strict=True))) for line, cells in rest]
