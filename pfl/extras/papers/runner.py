"""Execution of a plan: missing runs are started, interrupted ones resumed."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID

from pfl.campaign.progress import progress_bars
from pfl.cli.config import REFUSALS, Experiment
from pfl.cli.explain import UsageError, explained
from pfl.core.failure import error_line
from pfl.core.types import RoundResult
from pfl.disk.lock import BusyError
from pfl.disk.reading import first_line
from pfl.extras.papers import kept
from pfl.extras.papers.plan import PlannedRun, TablePlan
from pfl.extras.papers.shorten import limit_samples
from pfl.federation.checkpoint import CheckpointError
from pfl.federation.run import Callback, Run


class _Rounds(Callback):
    """Advances the progress bar of the current run."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def on_fit_start(self, run: Run) -> None:
        """Set the bar to the run's first round."""
        self._progress.update(self._task, total=run.rounds, completed=run.round)

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Advance the bar."""
        self._progress.update(self._task, completed=result.round)


def run_all(plan: TablePlan, console: Console) -> dict[str, str]:
    """Execute every run of a plan that is not finished.

    A run that fails is reported and skipped.

    Returns:
        The reasons of failed runs, by name.

    Raises:
        KeyboardInterrupt: The current run was saved.
    """
    missing = unfinished(plan)
    failures: dict[str, str] = {}
    if not missing:
        return failures
    with progress_bars(console) as progress:
        done = len(plan.runs) - len(missing)
        total = progress.add_task("runs", total=len(plan.runs), completed=done)
        for run in missing:
            task = progress.add_task(escape(run.label), total=None)
            start = time.perf_counter()
            try:
                _run(run, _Rounds(progress, task))
                outcome = f"done in {time.perf_counter() - start:.0f} s"
            except Exception as error:
                if not isinstance(error, UsageError | BusyError):
                    # Not a user error, so show the traceback.
                    progress.console.print(escape(traceback.format_exc()), highlight=False)
                failures[run.name] = reason(error)
                outcome = f"failed: {failures[run.name]}"
            progress.console.print(escape(f"{run.label}: {outcome}"), highlight=False)
            progress.remove_task(task)
            progress.advance(total)
    return failures


def _run(run: PlannedRun, watch: Callback) -> None:
    """Start or resume a run, unless another process has just finished it."""
    planned = run.experiment
    # A copy, because objects of the plan would stay in memory, including the images.
    experiment = Experiment(planned.parser, planned.values.clone(), planned.settings)
    with kept.locked(run.root, run.name), explained(experiment.settings, *REFUSALS):
        if kept.finished(run) is not None:
            return
        limit_samples(experiment, run.scale)
        loop, data, module = experiment.loop, experiment.data, experiment.module
        loop = replace(loop, callbacks=[*(loop.callbacks or ()), watch])
        kept.clear(run)
        folder = kept.resumable(run)
        try:
            loop.fit(module, data, None if folder is None else str(folder), experiment.text)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; remove {folder} to start this run again") from error


def reason(error: Exception) -> str:
    """Return an error as one line; errors other than the user's are preceded by their type."""
    return first_line(error) if isinstance(error, UsageError | BusyError) else error_line(error)


def unfinished(plan: TablePlan) -> Sequence[PlannedRun]:
    """Return the runs that are not finished."""
    return [run for run in plan.runs.values() if kept.finished(run) is None]
