"""``pfl ledger``: its command line. Its work is imported once that is known to be right."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def ledger(argv: Sequence[str]) -> None:
    """Keep the finished runs of a table, or write page, CSV file and pictures."""
    options, overrides = _parser().parse_known_args(argv)
    from pfl.ledger import command

    command.ledger(options, overrides)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pfl ledger",
        description="Compare runs at a paper's own length with the paper. Without --keep: write "
        "page, CSV file and pictures from the folders of the ledger alone.",
        epilog="With --keep, all other flags are those of pfl fit, as given to pfl table.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--keep", type=Path, metavar="TABLE", help="take in the finished runs of a table's file"
    )
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="only these rows")
    parser.add_argument("--columns", nargs="+", metavar="COLUMN", help="only these columns")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", help="in place of the table's")
    parser.add_argument("--commit", help="version that ran them (default: the clone's)")
    parser.add_argument("--note", default="", help="what differs from the paper's own set-up")
    parser.add_argument("--folder", type=Path, default=Path("results/ledger"), help="of the ledger")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="where the page goes")
    return parser
