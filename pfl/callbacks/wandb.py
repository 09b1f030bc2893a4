"""Weights & Biases: metrics, tables and pictures of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from pfl.core.types import RoundResult
from pfl.federation.run import Callback, Run

# Until the service must have answered.
SECONDS = 20.0


class WandB(Callback):
    """Logs a run to Weights & Biases, in one call a round.

    ``round`` is the step of every metric. A resumed run keeps its id, so that ``wandb sync`` joins
    the parts of one that was logged offline. Evaluated rounds include a table of the clients.

    Args:
        project: Name of the project.
        name: Name of the run; ``None`` lets the service choose.
        mode: ``offline`` needs no network and no account; ``None`` uses the environment's
            (``WANDB_MODE``), else ``online``.
        client_table: Log the table of clients.
        pictures: Log the pictures of ``pfl plot`` at the end, if the run has a folder.

    Raises:
        ConnectionError: Before training, if the service cannot be used.
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
        """Open the run, or resume it.

        Raises:
            ConnectionError: The service cannot be reached, or there is no key for it.
        """
        import wandb

        config = yaml.safe_load(run.config) if run.config is not None else {}
        try:
            self._run = wandb.init(
                project=self.project,
                name=self.run_name,
                mode=self.mode,
                id=self._id,
                # Offline it makes wandb sync append to the earlier part.
                resume="allow" if self._id is not None else None,
                dir=run.folder,
                config={**config, "header": run.header},
                settings=wandb.Settings(init_timeout=SECONDS),
            )
        except wandb.errors.Error as error:
            raise ConnectionError(
                "Weights & Biases cannot be used online; give WandB the mode offline "
                "(or set WANDB_MODE=offline) and send the run later with wandb sync. It says: "
                f"{str(error).partition(os.linesep)[0]}"
            ) from error
        self._id = self._run.id
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Log the round."""
        import wandb

        row: dict[str, Any] = dict(result.metrics)
        if self.client_table and result.clients:
            columns = list(dict.fromkeys(key for client in result.clients for key in client))
            cells = [[client.get(column) for column in columns] for client in result.clients]
            row["clients"] = wandb.Table(columns=[*columns], data=cells)
        self._run.log(row)

    def on_fit_end(self, run: Run) -> None:
        """Log the pictures and the summary, and close the run."""
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
        """Close the run as unfinished."""
        self._run.finish(exit_code=1)

    def state_dict(self) -> dict[str, Any]:
        """Return the run's id."""
        return {"id": self._id}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the run's id."""
        self._id = state.get("id")
