"""What the printer of tables writes in a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from pfl.results.sheets import show


def printed(sheets, width=80):
    """Return the text of tables in a terminal of some columns."""
    file = io.StringIO()
    show(sheets, Console(width=width, file=file))
    return file.getvalue()
