"""Copy finished runs into the ledger, and write the page that compares them with the papers."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from pfl.cli.explain import UsageError
from pfl.disk.writing import written
from pfl.ledger import cells, dumbbells, gaps, judge, page, pictures, rows
from pfl.results.files import RunError
from pfl.results.style import save, styled
from pfl.tables.cells import expand
from pfl.tables.plan import plan
from pfl.tables.spec import TableFile


def ledger(options: argparse.Namespace, table: TableFile | None) -> None:
    """Copy the finished runs of a table, if one is given; write page, JSON file and pictures.

    Args:
        options: Options of the verb.
        table: The table whose runs are kept; ``None`` only writes.
    """
    try:
        if table is not None:
            _keep(options, table)
        _write(options)
    except (RunError, OSError) as error:
        raise UsageError(str(error)) from error


def _keep(options: argparse.Namespace, table: TableFile) -> None:
    commit = cells.present_commit(options.commit)
    chosen = expand(table, options.rows, options.columns)
    planned = plan(table, chosen, options.seeds or table.seeds, overrides=options.flags)
    for label, why_not in cells.keep(options.folder, table, planned, commit, options.note):
        print(f"{label}: {'kept' if why_not is None else why_not}")


def _write(options: argparse.Namespace) -> None:
    runs = cells.read(options.folder)
    if not runs:
        raise UsageError(
            f"there is no run in {options.folder}: add some with pfl ledger --keep TABLE"
        )
    scored = [judge.Scored.of(entry, run) for entry, run in runs]
    known = judge.Background.read(options.folder, scored)
    compared = judge.rows(scored, known)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    drawn = {}
    with styled():
        for place, figure in pictures.curves(runs):
            name = "ledger_" + re.sub(r"[^a-z0-9]+", "_", " ".join(place).lower()) + ".svg"
            with written(out / name) as file:
                save(figure, file, "svg")
            drawn[place] = name
        for theme, colours in dumbbells.THEMES.items():
            for ending in ("svg", "png"):
                with written(out / f"ledger_{theme}.{ending}") as file:
                    save(dumbbells.dumbbells(compared, colours), file, ending)
    rows.write(compared, out / "ledger.json")
    text = page.page(compared, gaps.draws(scored, known), gaps.groups(scored, known), drawn)
    (out / "ledger.md").write_text(text, encoding="utf-8")
    print(f"{len(compared)} cells: wrote {out / 'ledger.md'}, {out / 'ledger.json'}")
