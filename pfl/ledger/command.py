"""Copy finished runs into the ledger, and write the page that compares them with the papers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfl.cli.explain import UsageError
from pfl.disk.writing import write, written
from pfl.ledger import cells, dumbbells, gaps, judge, page, pictures, rows
from pfl.results.files import RunError
from pfl.results.style import save, styled
from pfl.tables.cells import expand
from pfl.tables.plan import TablePlan, plan
from pfl.tables.spec import TableFile

# Settings of where images are, in the form of an identity; and what reads a data set's own images.
_IMAGES = {"data.root", "data.mean", "data.std", "data.grayscale"}
_FOLDERS = {"ImageFolder", "CIFAR100Folder"}


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
    told = cells.Told(cells.present_commit(options.commit), options.note, options.departure)
    chosen = expand(table, options.rows, options.columns)
    seeds = options.seeds or table.seeds
    planned = plan(table, chosen, seeds, overrides=options.flags)
    if options.flags:
        dealt = cells.released_settings((table.common.reported or {}).get("paper", ""))
        _check_departure(plan(table, chosen, seeds), planned, dealt, options.departure)
    for label, why_not in cells.keep(options.folder, table, planned, told):
        print(f"{label}: {'kept' if why_not is None else why_not}")


def _check_departure(
    table: TablePlan, planned: TablePlan, dealt: Mapping[str, Any], departure: str
) -> None:
    """Check that runs with other settings than the table's are told as such.

    Where the images are may differ, also that they are a folder instead of torchvision's files, and
    what the paper's released code sets of clients, cohorts and tests.

    Args:
        table: Runs as the table has them.
        planned: The runs to keep.
        dealt: The settings of the released code, in the form of an identity.
        departure: What the user says of other settings.

    Raises:
        UsageError: They are not.
    """
    for cell, names in planned.names.items():
        for seed, name in names.items():
            ours = planned.runs[name].identity
            theirs = table.runs[table.names[cell][seed]].identity
            changed = sorted(
                key
                for key in ours.keys() | theirs.keys()
                if ours.get(key) != theirs.get(key)
                and key not in _IMAGES
                and not (key == "data" and ours[key] in _FOLDERS)
                and (key not in dealt or ours.get(key) != dealt[key])
            )
            if changed and not departure:
                verb = "is" if len(changed) == 1 else "are"
                raise UsageError(
                    f"--keep: {cell.label}: {', '.join(changed)} {verb} not as in the table: say"
                    " what differs as --departure, so that it is not judged as the paper's cell"
                )


def _write(options: argparse.Namespace) -> None:
    runs = cells.read(options.folder)
    if not runs:
        raise UsageError(
            f"there is no run in {options.folder}: add some with pfl ledger --keep TABLE"
        )
    # Runs with other settings than their table's are shown, and count in nothing.
    of_tables = [(entry, run) for entry, run in runs if not entry.departure]
    scored = [judge.Scored.of(entry, run) for entry, run in of_tables]
    departed = [judge.Scored.of(entry, run) for entry, run in runs if entry.departure]
    known = judge.Background.read(options.folder, scored)
    compared, others = page.Compared.of(scored, known), page.Compared.of(departed, known)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    drawn = {}
    with styled():
        for place, figure in pictures.curves(of_tables):
            name = "ledger_" + re.sub(r"[^a-z0-9]+", "_", " ".join(place).lower()) + ".svg"
            with written(out / name) as file:
                save(figure, file, "svg")
            drawn[place] = name
        for theme, colours in dumbbells.THEMES.items():
            for ending in ("svg", "png"):
                with written(out / f"ledger_{theme}.{ending}") as file:
                    save(dumbbells.dumbbells(compared.rows, colours), file, ending)
    rows.write([*compared.rows, *others.rows], out / "ledger.json")
    text = page.page(compared, others, gaps.draws(scored, known), drawn)
    write(out / "ledger.md", text)
    print(f"{len(compared.rows)} cells: wrote {out / 'ledger.md'}, {out / 'ledger.json'}")
