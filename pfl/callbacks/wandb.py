"""Metrics, tables and pictures for Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from pfl.core.types import RoundResult
from pfl.federation.run import Callback, Run


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
        from pfl.results.find import PLOTS

        groups, _ = settings.group([runs.RunFolder.read(folder)])
        files = pictures.write(pictures.draw(groups), folder / PLOTS)
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
