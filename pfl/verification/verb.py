"""``pfl reproduce``; its implementation is imported once the run is read."""

from __future__ import annotations

import argparse

from pfl.cli.explain import UsageError, explained
from pfl.federation.identity import STARTED
from pfl.results.files import RunError
from pfl.results.runs import RunFolder


def reproduce(options: argparse.Namespace) -> None:
    """Repeat a finished run and print whether its numbers agree.

    Raises:
        UsageError: The run cannot be repeated.
        MissingError: Its data are missing.
        SystemExit: The numbers differ.
    """
    first = _finished(options.run)
    from pfl.verification.reproduce import repeat

    repeat(first, options)


def _finished(path: str) -> RunFolder:
    """Return a run that can be repeated.

    Raises:
        UsageError: It is not a run, is not finished, or has no configuration.
    """
    with explained((), RunError):
        run = RunFolder.read(path)
    if not run.config or STARTED in run.config:
        raise UsageError(f"{path} was started from Python: repeat it from Python")
    if "fingerprint" not in run.summary or not run.finished:
        raise UsageError(f"{path} is not finished: there is nothing to compare with")
    return run
