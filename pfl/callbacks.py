"""What happens around a round: progress, checkpoints, loggers, early stop.

Callbacks read a RoundResult and change nothing of the run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pfl import checkpoint
from pfl.types import Result, RoundResult

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

    from pfl.run import Run


class Callback:
    """Base of all callbacks; every event does nothing.

    State that must outlive an interruption goes through ``state_dict`` as plain values.
    """

    should_stop: bool = False

    @property
    def name(self) -> str:
        """Under which the checkpoint keeps this callback's state."""
        return type(self).__name__

    def on_fit_start(self, run: Run) -> None:
        """Before the first round, or the first after a resume."""

    def on_result(self, run: Run, result: Result) -> None:
        """After each client's training."""

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """After each round."""

    def on_fit_end(self, run: Run) -> None:
        """After the last round."""

    def on_interrupt(self, run: Run) -> None:
        """When the run ends before its last round, by a signal or an error."""

    def state_dict(self) -> dict[str, Any]:
        """Plain values to go on from."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from them; called with an empty mapping if there are none."""


class Checkpoint(Callback):
    """Saves what a run is resumed from, as ``checkpoints/last.ckpt`` in the run's folder.

    Args:
        every: Save after every this many rounds; always after the last and on an interruption.
    """

    def __init__(self, every: int = 10) -> None:
        self.every = every
        self._saved = -1

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Save if it is time."""
        if result.round % self.every == 0:
            self.save(run)

    def on_fit_end(self, run: Run) -> None:
        """Save the finished run."""
        self.save(run)

    def on_interrupt(self, run: Run) -> None:
        """Save the last finished round, so that nothing whole is lost."""
        if run.round > 0:
            self.save(run)

    def save(self, run: Run) -> None:
        """Write the checkpoint, unless the one on disk is of this round already."""
        if run.folder is None or self._saved == run.round:
            return
        checkpoint.save(run.folder / "checkpoints" / "last.ckpt", self.content(run))
        self._saved = run.round

    def content(self, run: Run) -> dict[str, Any]:
        """Everything that the rounds to come depend on."""
        return {
            "round": run.round,
            "method": type(run.module).__name__,
            "server": checkpoint.pack(run.server),
            "kept": {
                client: checkpoint.move(run.kept[client], "cpu") for client in sorted(run.kept)
            },
            "template": checkpoint.move(run.template, "cpu"),
            "history": run.history,
            "partition": run.data.description().get("hash"),
            "config": run.config,
            "callbacks": {callback.name: callback.state_dict() for callback in run.callbacks},
        }


class ProgressBar(Callback):
    """The run's header, a bar of rounds and one of the round's clients, and the closing table."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress: Progress | None = None
        self._started = 0.0

    def on_fit_start(self, run: Run) -> None:
        """Show the header and open the bars."""
        self._started = time.perf_counter()
        for topic, text in run.header.items():
            self._console.print(f"[bold]{topic:>10}[/] {text}", highlight=False)
        if run.folder is not None:
            self._console.print(f"[bold]{'folder':>10}[/] {run.folder}", highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
        )
        self._rounds = self._progress.add_task(
            "round", total=run.rounds, completed=run.round, note=""
        )
        self._clients = self._progress.add_task("client", total=None, note="")
        self._progress.start()

    def on_result(self, run: Run, result: Result) -> None:
        """One client more."""
        if self._progress is not None:
            self._progress.advance(self._clients)

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """One round more."""
        if self._progress is None:
            return
        notes = [
            f"{label} {result.metrics[key]:.4f}"
            for label, key in (("personal", "test/personal/acc"), ("global", "test/global/acc"))
            if key in result.metrics
        ]
        if notes:
            self._progress.update(self._rounds, note=" ".join(notes))
        self._progress.advance(self._rounds)
        self._progress.reset(self._clients, total=len(result.cohort.trains))

    def on_fit_end(self, run: Run) -> None:
        """Close the bars and print the table."""
        self._close()
        Console().print(closing_table(run, time.perf_counter() - self._started))

    def on_interrupt(self, run: Run) -> None:
        """Close the bars."""
        self._close()

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class EarlyStopping(Callback):
    """Ends the run when a metric has not improved for some evaluated rounds.

    Args:
        monitor: Name of a metric; use one on validation data.
        patience: Evaluated rounds without improvement that are borne.
        mode: Whether larger or smaller is better.
        min_delta: Smallest change that counts as an improvement.

    Raises:
        ValueError: At the first evaluated round, if there is no such metric.
    """

    def __init__(
        self,
        monitor: str = "val/personal/acc",
        patience: int = 10,
        mode: Literal["max", "min"] = "max",
        min_delta: float = 0.0,
    ) -> None:
        self.monitor = monitor
        self.patience = patience
        self.mode = mode
        self.min_delta = min_delta
        self.best: float | None = None
        self.waited = 0

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Compare with the best so far."""
        if not result.evaluated:
            return
        if self.monitor not in result.metrics:
            known = ", ".join(sorted(k for k in result.metrics if k.startswith(("val/", "test/"))))
            raise ValueError(f"EarlyStopping monitors {self.monitor!r}; there are only {known}")
        value = result.metrics[self.monitor] * (1 if self.mode == "max" else -1)
        if self.best is None or value > self.best + self.min_delta:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        self.should_stop = self.waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """The best value and how long it has stood."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on comparing with the best of before."""
        self.best, self.waited = state.get("best"), state.get("waited", 0)


class LightningLogger(Callback):
    """Hands each round's metrics to any Lightning logger, in one call.

    Args:
        logger: The logger.
    """

    def __init__(self, logger: Logger) -> None:
        self.logger = logger

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Log the row."""
        self.logger.log_metrics(result.metrics, step=result.round)
        self.logger.save()

    def on_fit_end(self, run: Run) -> None:
        """Tell the logger that this was all."""
        self.logger.finalize("success")


class WandB(Callback):
    """Logs to Weights & Biases: one run an experiment, one call a round.

    ``round`` is the step of every metric. A resumed run goes on under the same id. In an evaluated
    round the clients' rows go along as a table.

    Args:
        project: Name of the project.
        name: Name of the run; ``None`` lets the service choose.
        mode: ``offline`` needs no network and no account; ``None`` leaves it to the environment
            (``WANDB_MODE``).
        client_table: Send the table of clients.
        pictures: Send the pictures of ``pfl plot`` at the end, if the run has a folder.
    """

    def __init__(
        self,
        project: str = "pfl",
        name: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
        client_table: bool = True,
        pictures: bool = True,
    ) -> None:
        self.project = project
        self.run_name = name
        self.mode = mode
        self.client_table = client_table
        self.pictures = pictures
        self._id: str | None = None

    def on_fit_start(self, run: Run) -> None:
        """Open the run, or the one that is gone on with."""
        import wandb

        config = yaml.safe_load(run.config) if run.config is not None else {}
        self._run = wandb.init(
            project=self.project,
            name=self.run_name,
            mode=self.mode,
            id=self._id,
            resume="allow" if self._id is not None else None,
            dir=run.folder,
            config={**config, "header": run.header},
        )
        self._id = self._run.id
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Send the round."""
        import wandb

        row: dict[str, Any] = dict(result.metrics)
        if self.client_table and result.clients:
            columns = list(dict.fromkeys(key for client in result.clients for key in client))
            cells = [[client.get(column) for column in columns] for client in result.clients]
            row["clients"] = wandb.Table(columns=[*columns], data=cells)
        self._run.log(row)

    def on_fit_end(self, run: Run) -> None:
        """Send the pictures and the summary, and close."""
        if self.pictures and run.folder is not None:
            self._run.log({"round": run.round, **self._images(run.folder)})
        self._run.summary.update({**run.summary, "fingerprint": run.fingerprint})
        self._run.finish()

    def _images(self, folder: Path) -> dict[str, Any]:
        import wandb

        from pfl.results import pictures, runs, settings

        groups, _ = settings.group([runs.RunFolder.read(folder)])
        files = pictures.write(pictures.draw(groups), folder / "plots")
        return {f"pictures/{file.stem}": wandb.Image(str(file)) for file in files}

    def on_interrupt(self, run: Run) -> None:
        """Close as unfinished."""
        self._run.finish(exit_code=1)

    def state_dict(self) -> dict[str, Any]:
        """The run's id."""
        return {"id": self._id}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on under the same id."""
        self._id = state.get("id")


def closing_table(run: Run, seconds: float) -> Table:
    """Method, accuracies, bytes moved, seconds and fingerprint of a finished run."""
    summary = run.summary
    accuracies = {
        "personal accuracy": "test/personal/acc",
        "  weighted by samples": "test/personal/acc_weighted",
        "  worst tenth of clients": "test/personal/acc_worst10",
        "global accuracy": "test/global/acc",
    }
    table = Table(title=f"after {run.round} rounds, seed {run.seed}", show_header=False)
    table.add_row("method", type(run.module).__name__)
    for label, key in accuracies.items():
        value = summary.get(f"{key}/last")
        table.add_row(label, "-" if value is None else f"{value:.4f}")
    moved = run.history[-1]["comm/bytes_total"] if run.history else 0
    table.add_row("bytes moved", readable_bytes(moved))
    table.add_row("seconds", f"{seconds:.1f}")
    table.add_row("fingerprint", run.fingerprint)
    return table


def readable_bytes(count: float) -> str:
    """Bytes with a decimal prefix."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"
