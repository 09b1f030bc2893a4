"""A run's progress bars and closing table."""

from __future__ import annotations

import time
from contextlib import ExitStack
from importlib import import_module
from io import StringIO
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from pfl.core.failure import clients_text
from pfl.core.sheet import Sheet
from pfl.core.types import Result, RoundResult
from pfl.federation.run import Callback, Run
from pfl.results import names
from pfl.results.sheets import duration, show

# Seconds from which a run's length is announced.
_LONG = 600
# Seconds after which bars in a notebook are shown anew, and their width in characters.
_REFRESHED, _WIDTH = 0.2, 88


class ProgressBar(Callback):
    """Shows the run's header, its progress, the cost of a long run, and the closing table."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._scope = ExitStack()

    def on_fit_start(self, run: Run) -> None:
        """Show the header and open the bars."""
        self._started, self._before = time.perf_counter(), run.round
        run.waits.lap("preparation")
        topics = run.header if run.folder is None else {**run.header, "folder": str(run.folder)}
        show([Sheet("", ("", ""), [*topics.items()])], self._console)
        kind = NotebookBars if self._console.is_jupyter else Progress
        bars = kind(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
        )
        self._rounds = bars.add_task("round", total=run.rounds, completed=run.round, note="")
        self._clients = bars.add_task("client", total=None, note="")
        self._progress = self._scope.enter_context(bars)
        self._announced = False

    def on_result(self, run: Run, result: Result) -> None:
        """Advance the bar of clients, reset it at the first of a round, and announce the cost."""
        if (clients := self._progress.tasks[self._clients]).finished:
            self._progress.reset(self._clients)
        self._progress.update(self._clients, advance=1, total=len(run.cohort.trains))
        # By then, engines that train several clients at a time have finished the first ones.
        if not self._announced and 5 * clients.completed >= len(run.cohort.trains):
            self._announced = True
            self._announce(run, len(run.cohort.trains) / clients.completed)

    def _announce(self, run: Run, share: float) -> None:
        """Print the remaining time of a long run, of which ``1 / share`` of a round is done."""
        left = run.rounds - run.round
        seconds = (time.perf_counter() - self._started) * share * left
        if seconds > _LONG:
            look = "; --loop.rounds=5 for a look" if left > 5 else ""
            self._progress.console.print(
                f"about {duration(seconds)} of training here{look}", highlight=False
            )

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Advance the bar of rounds and show the round's scores."""
        scores = last_scores(run).items()
        notes = [f"{name.split('/')[1]} {value:.4f}" for name, value in scores]
        if notes:
            self._progress.update(self._rounds, note=" ".join(notes))
        self._progress.advance(self._rounds)
        # Clients that failed have no result.
        trained = len(result.cohort.trains)
        self._progress.update(self._clients, total=trained, completed=trained)

    def on_fit_end(self, run: Run) -> None:
        """Close the bars and print the table."""
        self._scope.close()
        show([closing_sheet(run, waited(run, self._before))])

    def on_interrupt(self, run: Run) -> None:
        """Close the bars."""
        self._scope.close()


class NotebookBars(Progress):
    """Bars as text in a cell's output that is replaced; rich's own bars there need ipywidgets."""

    def start(self) -> None:
        """Show the bars below what the cell has shown so far."""
        self._shown = time.perf_counter()
        cells = import_module("IPython.display")
        self._output = cells.display(self._told(), raw=True, display_id=True)

    def stop(self) -> None:
        """Show how far the bars came."""
        self._output.update(self._told(), raw=True)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Change a bar, and what is shown if that is older than a fifth of a second."""
        super().update(task_id, **changes)
        self._show()

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """Advance a bar as :meth:`update` changes it."""
        super().advance(task_id, advance)
        self._show()

    def _show(self) -> None:
        if time.perf_counter() - self._shown > _REFRESHED:
            self._shown = time.perf_counter()
            self.stop()

    def _told(self) -> dict[str, str]:
        """Return the bars as the data of a cell's output."""
        file = StringIO()
        Console(file=file, width=_WIDTH, force_jupyter=False).print(self.get_renderable())
        return {"text/plain": file.getvalue().rstrip()}


def last_scores(run: Run) -> dict[str, float]:
    """Return the main score of each kind of model after the last round, by its name."""
    row, score = run.history[-1] if run.history else {}, next(iter(run.scores))
    names = (f"test/{model}/{score}" for model in ("personal", "global", "pooled"))
    return {name: row[name] for name in names if name in row}


def waited(run: Run, before: int) -> str:
    """Return the seconds that the user waited for, in all and by topic.

    Args:
        run: The run, after its last round.
        before: Number of rounds that were finished when it was started.
    """
    played = run.history[before:]
    tests = sum(row["time/evaluate"] for row in played)
    run.waits.split("files", rounds=sum(row["time/round"] for row in played) - tests, tests=tests)
    return run.waits.told()


def closing_sheet(run: Run, seconds: str) -> Sheet:
    """Return the closing table: the score, bytes moved, seconds and fingerprint."""
    summary = run.summary
    score = next((name for name in names.FIRST if name in run.scores), next(iter(run.scores)))
    word = names.WORDS["scores"].get(score, score)
    scores = {
        f"personal {word}": f"test/personal/{score}",
        "  weighted by samples": f"test/personal/{score}_weighted",
        "  worst tenth of clients": f"test/personal/{score}_worst10",
        f"global {word}": f"test/global/{score}",
        f"global {word} on the common test set": f"test/pooled/{score}",
    }
    rounds = f"{run.round} round{'s' if run.round != 1 else ''}"
    topics = ("method", "network", "data")
    rows = [(topic, run.header[topic]) for topic in topics if topic in run.header]
    for label, key in scores.items():
        if (value := summary.get(f"{key}/last")) is not None:
            rows.append((label, f"{value:.4f}"))
    rows += [(what, clients_text(sorted(failed))) for what, failed in run.failures.items()]
    moved = run.history[-1]["comm/bytes_total"] if run.history else 0
    rows.append(("bytes moved", decimal(int(moved))))
    if run.history and "comm/wire_down" in run.history[-1]:
        down, up = (
            decimal(int(sum(row.get(f"comm/wire_{way}", 0) for row in run.history) / run.round))
            for way in ("down", "up")
        )
        rows.append(("as sent, a round", f"{down} down, {up} up"))
    rows += run.guaranteed.items()
    rows += [("seconds", seconds), ("fingerprint", run.fingerprint)]
    return Sheet(f"after {rounds}, seed {run.seed}", ("", ""), rows)
