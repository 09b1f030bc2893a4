"""The implementation of ``pfl table``, from the table file to the printed table."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track

from pfl.campaign.campaign import work
from pfl.cli import catalogue
from pfl.cli.explain import UsageError, explained
from pfl.extras.papers import estimate, illustrate
from pfl.extras.papers.cells import Cell
from pfl.extras.papers.outcome import CellOutcome, outcome
from pfl.extras.papers.plan import ROOT, TablePlan, plan
from pfl.extras.papers.reader import unknown
from pfl.extras.papers.render import sheets
from pfl.extras.papers.spec import TableFile
from pfl.results import pictures
from pfl.results import sheets as forms


def table(described: TableFile, cells: Sequence[Cell], options: argparse.Namespace) -> None:
    """Run, resume or read the runs behind a table, and print the table."""
    seeds = list(dict.fromkeys(options.seeds or described.seeds))
    if min(seeds) < 0:
        raise UsageError(f"{described.path}: seeds: expected numbers from 0, got {min(seeds)}")
    console = Console(stderr=True)
    parsed = track(cells, "configurations", console=console) if options.dry_run else cells
    planned = plan(described, parsed, seeds, options.scale, options.flags)
    wanted = _pictures(described, options)
    if options.dry_run:
        costs, failed = estimate.sheet(described, planned, console)
        forms.show([costs])
        if failed:
            raise UsageError(f"no estimate of {'; '.join(failed)}: see the notes above")
        return
    failures: dict[str, str] = {}
    try:
        if not options.read:
            again = partial(plan, described, cells, seeds, options.scale, options.flags)
            failures = work(planned, console, options.workers, again)
    except KeyboardInterrupt:
        print(_advice(planned, options.argv), file=sys.stderr)
        raise
    outcomes = [outcome(cell, planned, failures) for cell in cells]
    _show(options, described, planned, outcomes, wanted)
    if failures:
        raise UsageError(f"{len(failures)} of {len(planned.runs)} runs failed; see the notes above")


def _pictures(described: TableFile, options: argparse.Namespace) -> Sequence[str]:
    """Return the names of the pictures to draw; the table's methods must be imported before."""
    wanted: Sequence[str] = described.pictures if options.pictures is None else options.pictures
    known = [*pictures.kinds(), *catalogue.reports()]
    for name in wanted:
        if name not in known:
            raise UsageError(f"{described.path}: pictures: {unknown(name, known)}")
    return wanted


def _show(
    options: argparse.Namespace,
    described: TableFile,
    planned: TablePlan,
    outcomes: Sequence[CellOutcome],
    wanted: Sequence[str],
) -> None:
    """Print the table, and write files of the table and its pictures."""
    printed = sheets(described, planned, outcomes)
    forms.show(printed)
    with explained((), ValueError, OSError):
        for file in options.out:
            forms.write(printed, file)
        folder = options.out[0].parent if options.out else Path(ROOT)
        drawn, lacking = illustrate.write(wanted, outcomes, folder / described.path.stem)
    for file in (*options.out, *drawn):
        print(f"wrote {file}")
    for what in lacking:
        print(f"no picture {what}")


def _advice(planned: TablePlan, argv: Sequence[str]) -> str:
    size = len(planned.runs)
    return (
        f"interrupted: {size - len(planned.missing())} of {size} runs are finished and "
        f"will not be run again. To resume:\npfl table {shlex.join(argv)}"
    )
