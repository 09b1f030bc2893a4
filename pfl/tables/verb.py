"""``pfl table``: its command line. Its work is imported once that is known to be right."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pfl.cli.explain import UsageError
from pfl.results.sheets import FORMATS

# Flags of pfl fit that a table has no use for.
_REFUSED = {
    "--seed": "a table takes several, as --seeds 1 2 3",
    "--loop.name": "a table names its runs by what they are",
    "--ckpt_path": "a table finds the checkpoints of its runs itself",
}


def table(argv: Sequence[str]) -> None:
    """Run, resume or read the runs behind a table, and print it."""
    options, overrides = _parser().parse_known_args(argv)
    _check(options, overrides)
    from pfl.tables import command

    command.table(options, overrides, argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pfl table",
        description="Run the grid behind a table of a paper, and print it beside the paper's "
        "numbers. Every run is kept: finished runs are read, interrupted ones are resumed.",
        epilog="All other flags, such as --config FILE or --data.init_args.root=DIR, are those of "
        "pfl fit; they go to all cells and win over the table.",
        allow_abbrev=False,
    )
    parser.add_argument("table", metavar="TABLE", type=Path, help="a file of configs/tables")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", help="in place of the table's")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="only these rows")
    parser.add_argument(
        "--columns", nargs="+", metavar="COLUMN", help="only these: labels, or AXIS=LABEL"
    )
    parser.add_argument(
        "--scale", type=float, default=1, help="share of rounds and data, above 0, at most 1"
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--dry-run",
        action="store_true",
        help="show what is done, and estimate time, memory and bytes of the rest",
    )
    instead.add_argument("--read", action="store_true", help="run nothing, print finished runs")
    parser.add_argument(
        "--out",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help=f"also write the table ({', '.join(FORMATS)})",
    )
    parser.add_argument(
        "--pictures",
        nargs="*",
        metavar="PICTURE",
        help="those of pfl plot, one for each column (default: the table's own)",
    )
    return parser


def _check(options: argparse.Namespace, overrides: Sequence[str]) -> None:
    if not 0 < options.scale <= 1:
        raise UsageError(f"--scale must lie in (0, 1], got {options.scale:g}")
    for word in overrides:
        if (refusal := _REFUSED.get(word.partition("=")[0])) is not None:
            raise UsageError(f"{word}: {refusal}")
    if options.dry_run and (options.out or options.pictures):
        raise UsageError("--dry-run writes nothing: leave --out and --pictures out")
    for file in options.out:
        if file.suffix not in FORMATS:
            raise UsageError(f"--out {file}: a table is written as {', '.join(FORMATS)}")
