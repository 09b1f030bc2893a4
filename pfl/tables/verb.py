"""``pfl table``: from a table's file to the table."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from pfl.cli import catalogue
from pfl.cli.explain import UsageError
from pfl.results import sheets as forms
from pfl.results.pictures import NAMES
from pfl.tables import estimate, illustrate
from pfl.tables.cells import expand
from pfl.tables.outcome import Outcome, outcome
from pfl.tables.plan import ROOT, Plan, plan
from pfl.tables.reader import read, unknown
from pfl.tables.render import sheets
from pfl.tables.runner import run_all, unfinished
from pfl.tables.spec import TableFile

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
    described = read(options.table)
    _check_seeds(described, overrides)
    cells = expand(described, options.rows, options.columns)
    seeds = list(dict.fromkeys(options.seeds or described.seeds))
    planned = plan(described, cells, seeds, options.scale, overrides)
    wanted = _pictures(described, options)
    if options.dry_run:
        _print([estimate.sheet(described, planned)])
        return
    failures: dict[str, str] = {}
    try:
        if not options.read:
            failures = run_all(planned, Console(stderr=True))
    except KeyboardInterrupt:
        print(_advice(planned, argv), file=sys.stderr)
        raise
    outcomes = [outcome(cell, planned, failures) for cell in cells]
    _show(options, described, planned, outcomes, wanted)
    if failures:
        raise UsageError(f"{len(failures)} of {len(planned.runs)} runs failed; the notes tell why")


def _pictures(described: TableFile, options: argparse.Namespace) -> Sequence[str]:
    """Return the pictures to draw; all methods of the table and their reports are known by now."""
    wanted: Sequence[str] = described.pictures if options.pictures is None else options.pictures
    known = [*NAMES, *catalogue.reports()]
    for name in wanted:
        if name not in known:
            raise UsageError(f"{described.path}: pictures: {unknown(name, known)}")
    return wanted


def _show(
    options: argparse.Namespace,
    described: TableFile,
    planned: Plan,
    outcomes: Sequence[Outcome],
    wanted: Sequence[str],
) -> None:
    """Print the table, and write it and its pictures to files."""
    found = sheets(described, planned, outcomes)
    _print(found)
    try:
        for file in options.out:
            forms.write(found, file)
        folder = options.out[0].parent if options.out else Path(ROOT)
        drawn, lacking = illustrate.write(wanted, outcomes, folder / described.path.stem)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    for file in (*options.out, *drawn):
        print(f"wrote {file}")
    for what in lacking:
        print(f"no picture {what}")


def _print(found: Sequence[forms.Sheet]) -> None:
    """Titles and notes may be longer than the table is wide."""
    console = Console()
    for sheet in found:
        console.print(f"[bold]{escape(sheet.title)}[/]", highlight=False)
        console.print(replace(sheet, title="", notes=()).rich())
        for note in sheet.notes:
            console.print(escape(note), highlight=False)


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
        help=f"also write the table ({', '.join(forms.FORMATS)})",
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
        if file.suffix not in forms.FORMATS:
            raise UsageError(f"--out {file}: a table is written as {', '.join(forms.FORMATS)}")


def _check_seeds(described: TableFile, overrides: Sequence[str]) -> None:
    taken = {_plain(key) for key in described.seed_keys}
    for word in overrides:
        flag = word.partition("=")[0]
        if flag.startswith("--") and _plain(flag.removeprefix("--")) in taken:
            raise UsageError(f"{word}: in {described.path} it is a run's seed, see --seeds")


def _plain(key: str) -> str:
    return ".".join(part for part in key.split(".") if part != "init_args")


def _advice(planned: Plan, argv: Sequence[str]) -> str:
    left = len(unfinished(planned))
    return (
        f"interrupted: {len(planned.runs) - left} of {len(planned.runs)} runs are finished, and "
        f"nothing of them is computed again. To resume:\npfl table {shlex.join(argv)}"
    )
