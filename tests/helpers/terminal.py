"""The output of the table printer in a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from pfl.results.sheets import show


def printed(sheets, width=80):
    """Return the text of tables in a terminal of ``width`` columns."""
    file = io.StringIO()
    show(sheets, Console(width=width, file=file))
    return file.getvalue()
