"""``pfl bench`` and ``pfl bench verify``; the code that does the work is imported after checks."""

from __future__ import annotations

import argparse

from pfl.cli.explain import UsageError, explained


def bench(options: argparse.Namespace) -> None:
    """Run a benchmark, or the rest of it, and print its table.

    Raises:
        UsageError: A number is wrong, or the folder cannot be written.
    """
    for name in ("budget", "seeds", "workers"):
        if (value := getattr(options, name)) < 1:
            raise UsageError(f"--{name}: expected a whole number, at least 1, got {value}")
    from pfl.extras.bench import command

    with explained((), OSError):
        command.bench(options)


def verify(options: argparse.Namespace) -> None:
    """Make the runs of a leaderboard again, and say whether they are the same.

    Raises:
        SystemExit: A run differs by more than rounding, or there is none to make again.
    """
    from pfl.extras.bench import command

    if not command.verify(options):
        raise SystemExit(1)
