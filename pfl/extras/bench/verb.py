"""``pfl bench`` and ``pfl bench verify``; their implementation is imported after checks."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from pfl.cli.explain import UsageError, explained
from pfl.cli.reading import read
from pfl.disk.nearest import hint
from pfl.extras.bench import task
from pfl.imports import modules
from pfl.imports.trust import is_listed

if TYPE_CHECKING:
    from pfl.extras.bench.rows import Leaderboard


def bench(options: argparse.Namespace) -> None:
    """Run or resume a benchmark, and print its table.

    Raises:
        UsageError: An option is out of range, or the folder cannot be written.
    """
    for name in ("budget", "seeds", "workers"):
        if (value := getattr(options, name)) < 1:
            raise UsageError(f"--{name}: expected a whole number, at least 1, got {value}")
    from pfl.extras.bench.rows import ALWAYS

    described = task.read(task.file_of(options.task))
    for name in (*options.methods, ALWAYS[0]):
        if name != task.ALL:
            try:
                read("fit", [*described.words(name), *options.flags], usual=described.usual)
            except UsageError as error:
                raise UsageError(f"{described.path}: {name}: {error}") from error
    from pfl.extras.bench import command

    with explained((), OSError):
        command.bench(options)


def verify(options: argparse.Namespace) -> None:
    """Repeat the runs of a leaderboard, and print whether they agree.

    Raises:
        UsageError: The file is not a leaderboard, was changed, or has no such row.
        SystemExit: A run differs by more than rounding, or there is none to repeat.
    """
    from pfl.extras.bench.rows import Leaderboard

    board = Leaderboard.read(options.file)
    for name in options.row:
        if name not in board.rows:
            raise UsageError(f"--row {name}: there is no such row{hint(name, board.rows)}")
    for seed in options.seed:
        for name, row in board.rows.items():
            have = [run["seed"] for run in row["tuned"]]
            if name in (options.row or board.rows) and seed not in have:
                raise UsageError(f"--seed {seed}: the row {name} has the seeds {have}")
    options.row = _trusted_rows(board, options)
    from pfl.extras.bench import command

    if not command.verify(board, options):
        raise SystemExit(1)


def _trusted_rows(board: Leaderboard, options: argparse.Namespace) -> list[str]:
    """Return the rows to verify; of all rows, those are left out whose classes are not trusted.

    Raises:
        UsageError: A row that the user names is one of these.
    """
    from pfl.extras.bench.rows import MAJORITY

    names = options.row or [*board.rows]
    ours = {MAJORITY, *modules.named()}
    foreign = [name for name in names if name not in ours and not is_listed(name)]
    if options.trust or not foreign:
        return names
    what = "neither of this project nor of a plug-in: give --trust if the file is yours"
    if options.row:
        raise UsageError(f"the row {foreign[0]} names a class that is {what}")
    print(f"pfl: note: left out: {', '.join(foreign)}, classes {what}", file=sys.stderr)
    return [name for name in names if name not in foreign]
