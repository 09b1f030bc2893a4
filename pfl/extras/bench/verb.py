"""``pfl bench`` and ``pfl bench verify``; their implementation is imported after checks."""

from __future__ import annotations

import argparse

from pfl.cli.explain import UsageError, explained


def bench(options: argparse.Namespace) -> None:
    """Run or resume a benchmark, and print its table.

    Raises:
        UsageError: An option is out of range, or the folder cannot be written.
    """
    for name in ("budget", "seeds", "workers"):
        if (value := getattr(options, name)) < 1:
            raise UsageError(f"--{name}: expected a whole number, at least 1, got {value}")
    from pfl.extras.bench import command

    with explained((), OSError):
        command.bench(options)


def verify(options: argparse.Namespace) -> None:
    """Repeat the runs of a leaderboard, and print whether they agree.

    Raises:
        SystemExit: A run differs by more than rounding, or there is none to repeat.
    """
    from pfl.extras.bench import command

    if not command.verify(options):
        raise SystemExit(1)
