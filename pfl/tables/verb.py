"""The command line of ``pfl table``; the code that does the work is imported after parsing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pfl.cli import slips
from pfl.cli.explain import UsageError
from pfl.results.sheets import FORMATS

# Flags of pfl fit that a table refuses, with the reason.
_REFUSED = {
    "--seed": "a table has several seeds, such as --seeds 1 2 3",
    "--loop.name": "a table names its runs itself",
    "--ckpt_path": "a table finds the checkpoints of its runs itself",
}


def table(argv: Sequence[str]) -> None:
    """Run, resume or read the runs behind a table, and print it."""
    options, overrides = _parser().parse_known_args(argv)
    _check(options, overrides)
    from pfl.tables.cells import expand
    from pfl.tables.reader import read

    described = read(options.table)
    cells = expand(described, options.rows, options.columns)
    for cell in [cell for cell in cells if cell.skip is None][:1]:
        try:
            slips.check("fit", [*cell.words, *overrides])
        except UsageError as error:
            raise UsageError(f"{options.table}: {cell.label}: {error}") from error
    from pfl.tables import command

    command.table(described, cells, options, overrides, argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pfl table",
        description="Run the experiments behind a paper's table, and print our numbers beside the "
        "paper's. All runs are stored: finished ones are not run again, and interrupted ones are "
        "resumed.",
        epilog="All other flags, such as --config FILE or --data.init_args.root=DIR, are those of "
        "pfl fit; they apply to all cells and override the table.",
        allow_abbrev=False,
    )
    parser.add_argument("table", metavar="TABLE", type=Path, help="a file of configs/tables")
    parser.add_argument(
        "--seeds", type=int, nargs="+", metavar="N", help="these seeds instead of the table's"
    )
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="only these rows")
    parser.add_argument(
        "--columns", nargs="+", metavar="COLUMN", help="only these columns: LABEL or AXIS=LABEL"
    )
    parser.add_argument(
        "--scale", type=float, default=1, help="share of rounds and data, in (0, 1] (default: 1)"
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--dry-run",
        action="store_true",
        help="only show which runs are finished, and estimate time, memory and bytes of the rest",
    )
    instead.add_argument("--read", action="store_true", help="only print the finished runs")
    parser.add_argument(
        "--out",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help=f"also write the table to files ({', '.join(FORMATS)})",
    )
    parser.add_argument(
        "--pictures",
        nargs="*",
        metavar="PICTURE",
        help="draw these pictures of pfl plot for each column (default: those in the table file)",
    )
    return parser


def _check(options: argparse.Namespace, overrides: Sequence[str]) -> None:
    if not 0 < options.scale <= 1:
        raise UsageError(f"--scale must lie in (0, 1], got {options.scale:g}")
    for word in overrides:
        if (refusal := _REFUSED.get(word.partition("=")[0])) is not None:
            raise UsageError(f"{word}: {refusal}")
    if options.dry_run and (options.out or options.pictures):
        raise UsageError("--dry-run writes no files: remove --out and --pictures")
    for file in options.out:
        if file.suffix not in FORMATS:
            raise UsageError(f"--out {file}: use one of {', '.join(FORMATS)} for a table")
