"""``pfl ledger``; the code that does the work is imported once the folder is found."""

from __future__ import annotations

import argparse

from pfl.cli.explain import UsageError

# Options that say which runs are kept, and what is told of them; so do flags of pfl fit.
_OF_KEEP = ("rows", "columns", "seeds", "commit", "note", "departure")


def ledger(options: argparse.Namespace) -> None:
    """Copy the finished runs of a table into the ledger, and write its page.

    Raises:
        UsageError: An option needs ``--keep``, or there is no such folder or table.
    """
    of_keep = [*(f"--{name}" for name in _OF_KEEP if getattr(options, name)), *options.flags]
    if options.keep is None and of_keep:
        raise UsageError(f"{of_keep[0]} is allowed only with --keep TABLE")
    if options.keep is None and not options.folder.is_dir():
        raise UsageError(f"there is no folder {options.folder}: pfl ledger --keep TABLE makes one")
    from pfl.tables.reader import read

    table = None if options.keep is None else read(options.keep)
    from pfl.ledger import command

    command.ledger(options, table)
