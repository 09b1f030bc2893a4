"""Weights & Biases: metrics, tables and pictures of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from pfl.core.checks import at_least_one
from pfl.core.types import RoundResult
from pfl.federation.run import Callback, Run

# Until the service must have answered.
SECONDS = 20.0


class WandB(Callback):
    """Logs a run to Weights & Biases, in one call a round.

    ``round`` is the step of every metric. A resumed run keeps its id and its steps, so that ``wandb
    sync`` joins the parts of one that was logged offline.

    Args:
        project: Name of the project.
        name: Name of the run; ``None`` takes ``loop.name``, or the name made in its place.
        mode: ``offline`` needs no network and no account; ``None`` uses the environment's
            (``WANDB_MODE``), else ``online``.
        client_table: Log the table of clients.
        pictures: Log the pictures of ``pfl plot``, if the run has a folder.
        every: Log table and pictures after every this many rounds and after the last. ``None`` logs
            the table after each evaluated round, and the pictures after the last.
        entity: User or team; ``None`` takes the account's own.
        group: Group of runs that belong together.
        tags: Words to find the run by.
        notes: A longer description.
        job_type: Kind of the run within its group.
        id: Id of the run in the project; ``None`` makes one. A resumed run keeps its own.

    Raises:
        ValueError: ``every`` is below one.
        ConnectionError: Before training, if the service cannot be used.
    """

    def __init__(
        self,
        project: str = "pfl",
        name: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
        client_table: bool = True,
        pictures: bool = True,
        every: int | None = None,
        entity: str | None = None,
        group: str | None = None,
        tags: list[str] | None = None,
        notes: str | None = None,
        job_type: str | None = None,
        id: str | None = None,
    ) -> None:
        at_least_one(every=every)
        self.client_table = client_table
        self.pictures = pictures
        self.every = every
        options: dict[str, Any] = {
            **{"project": project, "name": name, "mode": mode, "entity": entity, "group": group},
            **{"tags": tags, "notes": notes, "job_type": job_type, "id": id},
        }
        self._options = {name: value for name, value in options.items() if value is not None}
        # Of the run that is resumed.
        self._id: str | None = None

    def on_fit_start(self, run: Run) -> None:
        """Open the run, or resume it.

        Raises:
            ConnectionError: The service cannot be reached, or there is no key for it.
        """
        import wandb

        # Offline it makes wandb sync append to the earlier part.
        earlier = {} if self._id is None else {"id": self._id, "resume": "allow"}
        try:
            self._run = wandb.init(
                dir=run.folder,
                config=run.hyperparameters,
                settings=wandb.Settings(init_timeout=SECONDS),
                **{"name": run.name, **self._options, **earlier},
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
        last = result.round == run.rounds or any(one.should_stop for one in run.callbacks)
        turn = self.every is not None and result.round % self.every == 0
        if self.client_table and result.clients and (last or turn or self.every is None):
            columns = list(dict.fromkeys(key for client in result.clients for key in client))
            cells = [[client.get(column) for column in columns] for client in result.clients]
            row["clients"] = wandb.Table(columns=[*columns], data=cells)
        if turn and not last:
            row |= self._images(run)
        # The last row waits for the pictures of the finished run.
        self._run.log(row, step=result.round, commit=not last)

    def on_fit_end(self, run: Run) -> None:
        """Log the pictures and the summary, and close the run."""
        if run.latest is not None and (images := self._images(run)):
            # A row of their own, where a callback after this one has ended the run.
            self._run.log({"round": run.round, **images})
        self._run.summary.update({**run.summary, "fingerprint": run.fingerprint})
        self._run.finish()

    def _images(self, run: Run) -> dict[str, Any]:
        """Return the pictures of the run so far."""
        if not self.pictures or run.folder is None:
            return {}
        import wandb

        from pfl.results import pictures, runs, settings
        from pfl.results.find import PLOTS

        groups, _ = settings.group([runs.RunFolder.read(run.folder)])
        files = pictures.write(pictures.draw(groups), run.folder / PLOTS)
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
