"""The command line of ``pfl ledger``; the code that does the work is imported after parsing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pfl.cli.explain import UsageError


def ledger(argv: Sequence[str]) -> None:
    """Copy the finished runs of a table into the ledger, and write its page."""
    options, overrides = _parser().parse_known_args(argv)
    if options.keep is None and overrides:
        raise UsageError(f"{overrides[0]}: flags of pfl fit are allowed only with --keep TABLE")
    if options.keep is None and not options.folder.is_dir():
        raise UsageError(f"there is no folder {options.folder}: pfl ledger --keep TABLE makes one")
    from pfl.tables.reader import read

    table = None if options.keep is None else read(options.keep)
    from pfl.ledger import command

    command.ledger(options, table, overrides)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pfl ledger",
        description="Compare full-length runs with the papers: write a page, a CSV file and "
        "pictures from the runs in the ledger. With --keep, first copy the finished runs of a "
        "table into the ledger.",
        epilog="With --keep, all other flags are those of pfl fit, as they were given to "
        "pfl table.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--keep", type=Path, metavar="TABLE", help="add the finished runs of this table file"
    )
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="only these rows")
    parser.add_argument("--columns", nargs="+", metavar="COLUMN", help="only these columns")
    parser.add_argument(
        "--seeds", type=int, nargs="+", metavar="N", help="these seeds instead of the table's"
    )
    parser.add_argument("--commit", help="version that ran them (default: the clone's commit)")
    parser.add_argument("--note", default="", help="differences from the paper's set-up")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("results/ledger"),
        help="folder of the ledger (default: results/ledger)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("docs"), help="folder of the page (default: docs)"
    )
    return parser
