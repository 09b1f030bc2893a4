"""Copy finished runs into the ledger, and write the page that compares them with the papers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from pfl.cli.explain import UsageError
from pfl.ledger import cells, page, rows
from pfl.results.files import RunError
from pfl.results.style import save, styled
from pfl.tables.cells import expand
from pfl.tables.plan import plan
from pfl.tables.reader import read


def ledger(options: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Copy the finished runs of a table, if one is given; write page, CSV file and pictures.

    Args:
        options: Options of the verb.
        overrides: Flags that the table was run with.
    """
    try:
        if options.keep is not None:
            _keep(options, overrides)
        elif overrides:
            raise UsageError(f"{overrides[0]}: flags of pfl fit are allowed only with --keep TABLE")
        _write(options)
    except (RunError, OSError) as error:
        raise UsageError(str(error)) from error


def _keep(options: argparse.Namespace, overrides: Sequence[str]) -> None:
    table = read(options.keep)
    commit = cells.present_commit(options.commit)
    chosen = expand(table, options.rows, options.columns)
    planned = plan(table, chosen, options.seeds or table.seeds, overrides=overrides)
    for label, why_not in cells.keep(options.folder, table, planned, commit, options.note):
        print(f"{label}: {'kept' if why_not is None else why_not}")


def _write(options: argparse.Namespace) -> None:
    found = cells.read(options.folder)
    if not found:
        raise UsageError(
            f"there is no run in {options.folder}: add some with pfl ledger --keep TABLE"
        )
    compared = page.rows(found, page.reasons(options.folder / "reasons.csv"))
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    pictures = {}
    with styled():
        for place, figure in page.curves(found):
            name = "ledger_" + re.sub(r"[^a-z0-9]+", "_", " ".join(place).lower()) + ".svg"
            save(figure, out / name, "svg")
            pictures[place] = name
    (out / "ledger.csv").write_text(rows.write(compared), encoding="utf-8")
    (out / "ledger.md").write_text(page.page(compared, pictures), encoding="utf-8")
    print(f"{len(compared)} cells: wrote {out / 'ledger.md'}, {out / 'ledger.csv'}")
