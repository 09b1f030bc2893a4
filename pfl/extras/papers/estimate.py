"""Estimates of the cost of a table's runs, from one real round of each setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import track

from pfl.campaign.campaign import reason
from pfl.cli.config import REFUSALS
from pfl.cli.explain import UsageError, explained
from pfl.core.sheet import Sheet
from pfl.extras.papers.cells import Cell
from pfl.extras.papers.plan import TablePlan
from pfl.extras.papers.planned import PlannedRun
from pfl.extras.papers.render import shortened
from pfl.extras.papers.shorten import limit_samples
from pfl.extras.papers.spec import TableFile
from pfl.results.sheets import duration
from pfl.results.statistics import NONE

# Options of loop and data that write files.
_SILENT = {"callbacks": None, "loggers": None, "default_root_dir": None, "rounds": 1}
_WRITING = {"download": False, "cache_dir": None}


def sheet(table: TableFile, plan: TablePlan, console: Console) -> tuple[Sheet, Sequence[str]]:
    """Return a sheet with the state of each run and the cost of its remaining rounds.

    Each run's row is also printed as soon as it is known.

    Returns:
        The sheet, and the labels of runs whose estimates failed for other reasons than wrong
        settings or missing data.
    """
    rows: list[list[str]] = []
    footnotes: dict[str, int] = {}
    failed: list[str] = []
    # All seeds of a cell cost the same.
    cells_of = {name: cell for cell, seeds in plan.names.items() for name in seeds.values()}
    measured: dict[Cell, Mapping[str, float]] = {}
    done, together = 0, [0.0, 0.0]
    for run in track(plan.runs.values(), "runs", console=console):
        cells = [NONE] * 2
        if run.is_finished:
            state = "done"
            done += 1
        else:
            state = f"round {run.done} of {run.rounds}" if run.resumable else "missing"
            try:
                if (cell := cells_of[run.name]) not in measured:
                    measured[cell] = _round(run)
                cost = _left(run, measured[cell])
                together = [sum(both) for both in zip(together, cost, strict=True)]
                cells = _costs(*cost)
            except Exception as error:  # a faulty method must not prevent other estimates
                number = footnotes.setdefault(reason(error), len(footnotes) + 1)
                state += f" [{number}]"
                failed += [] if isinstance(error, UsageError) else [run.label]
        rows.append([run.label, state, *cells])
        console.print(escape(f"{run.label}: {', '.join([state, *cells])}"), highlight=False)
    rows.append(["together", f"{done} of {len(plan.runs)} done", *_costs(*together)])
    estimates = Sheet(
        title=f"{table.caption}{shortened(plan)}: what is left to run",
        columns=["run", "state", "time", "moved"],
        rows=rows,
        notes=[
            "Estimated from the first round of one seed of each setting, under this machine's "
            "current load, with the run's own engine.",
            *(f"[{number}] {what}" for what, number in footnotes.items()),
        ],
    )
    return estimates, failed


def _round(run: PlannedRun) -> Mapping[str, float]:
    """Run the first round of a run without writing files, and return its metrics.

    Raises:
        UsageError: The configuration is wrong, or the data are missing.
    """
    experiment = run.fresh()
    for name, value in _SILENT.items():
        experiment.values.loop[name] = value
    data = experiment.values.data.init_args
    for name, value in _WRITING.items():
        if name in data:
            data[name] = value
    with explained(experiment.settings, *REFUSALS):
        limit_samples(experiment, run.scale)
        return experiment.loop.fit(experiment.module, experiment.data).history[-1]


def _left(run: PlannedRun, row: Mapping[str, float]) -> tuple[float, float]:
    """Return the seconds and the bytes (both ways) of the remaining rounds."""
    loop, left = run.experiment.loop, range(run.done + 1, run.rounds + 1)
    tests = sum(loop.is_tested(number, run.rounds) for number in left)
    seconds = len(left) * (row["time/round"] - row["time/evaluate"]) + tests * row["time/evaluate"]
    return seconds, len(left) * (row["comm/bytes_down"] + row["comm/bytes_up"])


def _costs(seconds: float, moved: float) -> list[str]:
    return [duration(seconds), decimal(int(moved))]
