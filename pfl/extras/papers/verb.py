"""``pfl table``; its implementation is imported only once the file is read."""

from __future__ import annotations

import argparse

from pfl.cli.explain import UsageError, refuse
from pfl.cli.reading import read as read_words
from pfl.results.sheets import FORMATS

# Keys that flags of a table may not set, and why.
_REFUSED = {
    "seed": "a table has several seeds, such as --seeds 1 2 3",
    "loop.name": "pfl table names its runs itself",
    "ckpt_path": "pfl table finds its runs' checkpoints itself",
}


def table(options: argparse.Namespace) -> None:
    """Run, resume or read the runs behind a table, and print the table."""
    _check(options)
    from pfl.extras.papers.cells import expand
    from pfl.extras.papers.reader import read

    described = read(options.table)
    its_own = f"{options.table} sets this seed itself, see --seeds"
    refuse(options.flags, {**dict.fromkeys(described.seed_keys, its_own), **_REFUSED})
    cells = expand(described, options.rows, options.columns)
    for cell in [cell for cell in cells if cell.skip is None][:1]:
        try:
            read_words("fit", [*cell.words, *options.flags])
        except UsageError as error:
            raise UsageError(f"{options.table}: {cell.label}: {error}") from error
    from pfl.extras.papers import command

    command.table(described, cells, options)


def _check(options: argparse.Namespace) -> None:
    if not 0 < options.scale <= 1:
        raise UsageError(f"--scale: expected a number in (0, 1], got {options.scale:g}")
    if options.workers < 1:
        raise UsageError(f"--workers: expected a whole number, at least 1, got {options.workers}")
    if options.dry_run and options.read:
        raise UsageError("--read: not allowed with --dry-run")
    if options.dry_run and (options.out or options.pictures):
        raise UsageError("--dry-run writes no files: remove --out and --pictures")
    for file in options.out:
        if file.suffix not in FORMATS:
            raise UsageError(f"--out {file}: use one of {', '.join(FORMATS)} for a table")
