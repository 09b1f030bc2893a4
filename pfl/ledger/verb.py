"""``pfl ledger``; the code that does the work is imported once the folder is found."""

from __future__ import annotations

import argparse

from pfl.cli.explain import UsageError


def ledger(options: argparse.Namespace) -> None:
    """Copy the finished runs of a table into the ledger, and write its page."""
    if options.keep is None and options.flags:
        raise UsageError(f"{options.flags[0]}: flags of pfl fit are allowed only with --keep TABLE")
    if options.keep is None and not options.folder.is_dir():
        raise UsageError(f"there is no folder {options.folder}: pfl ledger --keep TABLE makes one")
    from pfl.tables.reader import read

    table = None if options.keep is None else read(options.keep)
    from pfl.ledger import command

    command.ledger(options, table)
