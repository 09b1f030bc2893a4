"""An HTML report of runs: of one, or of several beside each other."""

from __future__ import annotations

from collections.abc import Sequence

from pfl.results import report_one, report_settings
from pfl.results.page import page
from pfl.results.settings import Setting


def report(settings: Sequence[Setting]) -> str:
    """Return the HTML report of some settings.

    Raises:
        RunError: A run was never tested, several have no score in common or one of them is not
            finished, or files are damaged.
    """
    if len(settings) == len(settings[0].runs) == 1:
        return page(*report_one.content(settings[0].runs[0]))
    return page(*report_settings.content(settings))
