"""The implementation of ``pfl bench``: processes, files and output."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from pfl.campaign.campaign import work
from pfl.cli import shipped
from pfl.cli.explain import UsageError
from pfl.disk import canonical
from pfl.disk.writing import write
from pfl.extras.bench import rows, tables, task
from pfl.extras.bench.bench import Bench
from pfl.extras.bench.contender import contenders
from pfl.extras.bench.pieces import PieceFolder
from pfl.extras.bench.rows import Leaderboard
from pfl.extras.bench.runner import environment
from pfl.extras.bench.verify import changed, outcome, place, verified
from pfl.results.sheets import show
from pfl.results.sheets import write as write_sheets
from pfl.verification import portable
from pfl.verification.verdict import places


def bench(options: argparse.Namespace) -> None:
    """Run or resume a benchmark, print its table and write its files.

    Raises:
        UsageError: The task or a method is wrong, or all trials of a method failed.
    """
    file = task.file_of(options.task)
    out = options.out or Path("runs", "bench", file.stem)
    beside = None if options.beside is None else Leaderboard.read(options.beside)
    made = _made(file, options, out)
    if beside is not None and beside.task["hash"] != made.task_hash:
        raise UsageError(f"--beside {options.beside}: these rows belong to another task")
    if made.missing():
        # Without data, no run can start.
        made.reference.default.look()
    again = partial(_made, file, options, out)
    if failures := work(made, Console(stderr=True), options.workers, again):
        first = next(iter(failures.values()))
        raise UsageError(f"{len(failures)} runs failed, as the notes above say; the first: {first}")
    board = _joined(made, beside)
    board.write(out / "leaderboard.json")
    seconds = made.seconds()
    write(out / "seconds.json", canonical.text(seconds))
    printed = tables.sheets(board, seconds)
    show(printed)
    write_sheets(printed, out / "leaderboard.md")
    for name in ("leaderboard.json", "leaderboard.md", "seconds.json"):
        print(f"wrote {out / name}")


def verify(board: Leaderboard, options: argparse.Namespace) -> bool:
    """Verify rows of a leaderboard; return ``False`` if a run differs or there is none.

    Raises:
        UsageError: The task is not found.
        MissingError: The data are missing.
    """
    made, names = _stored(board, options), options.row
    runs = [run for name in names for run in board.rows[name]["tuned"]]
    portable.enter_like([run["environment"] for run in runs if "environment" in run])
    results = []
    for one in verified(board, made, names, options.seed, options.trust):
        print(f"{one.run}: {one.verdict}", flush=True)
        results.append(one)
    print(outcome(results))
    print(places((one.place for one in results if one.place), place(environment())))
    if sources := changed(board, made, names):
        print(f"note: the source of {', '.join(sources)} has changed since")
    return bool(results) and all(one.verdict.word != "different" for one in results)


def _stored(board: Leaderboard, options: argparse.Namespace) -> Bench:
    """Return the benchmark of the chosen rows of a leaderboard, without stored pieces."""
    name = f"bench/{board.task['name']}"
    if options.task is None and name not in shipped.names():
        raise UsageError(f"{options.file}: there is no shipped task {name}: give --task FILE")
    file = task.file_of(options.task or name)
    trained = [name for name in options.row if name != rows.MAJORITY]
    read = contenders(task.read(file), trained, options.flags)
    budget = next(iter(board.rows.values()))["budget"]
    folder = PieceFolder(Path())
    return Bench(task.read(file), read, folder, budget["trials"], budget["seeds"])


def _made(file: Path, options: argparse.Namespace, out: Path) -> Bench:
    described = task.read(file)
    methods = contenders(described, options.methods, options.flags)
    return Bench(described, methods, PieceFolder(out), options.budget, options.seeds)


def _joined(made: Bench, beside: Leaderboard | None) -> Leaderboard:
    """Return the leaderboard, with further rows of another one with the same budget."""
    board = made.leaderboard()
    if beside is None:
        return board
    other = {name: row for name, row in beside.rows.items() if row["budget"] == made.budget}
    if not other:
        raise UsageError("--beside: none of its rows has this budget and these seeds")
    return replace(board, rows={**other, **board.rows})
