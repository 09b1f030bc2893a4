"""The callback that logs metrics, tables and pictures of a run to Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pfl.core.checks import at_least_one
from pfl.core.types import RoundResult
from pfl.federation.run import Callback, Run

# Time limit for an answer from the service.
SECONDS = 20.0


class WandB(Callback):
    """Logs a run to Weights & Biases, in one call per round.

    ``round`` is the step of every metric. A resumed run keeps its id and continues its steps, so
    that ``wandb sync`` joins the parts of a run that was logged offline.

    Args:
        project: Name of the project.
        name: Name of the run; ``None`` uses the run's own (see ``loop.name``).
        mode: ``offline`` needs no network and no account; ``None`` uses the environment variable
            ``WANDB_MODE``, or else ``online``.
        pictures: Log the pictures of ``pfl plot``, if the run has a folder.
        every: Number of rounds between two logs of the clients' table and the pictures, which are
            also logged after the last round. ``None`` logs the table after each evaluated round,
            and the pictures after the last round.
        entity: User or team; ``None`` uses the account's default.
        group: Name of a group of runs.
        tags: Tags of the run.
        notes: A longer description.
        job_type: Kind of the run within its group.
        id: Id of the run in the project; ``None`` generates one. A resumed run keeps its own.

    Raises:
        ValueError: ``every`` is below one.
        ConnectionError: Before training, if the service cannot be used.
    """

    def __init__(
        self,
        project: str = "pfl",
        name: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
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
        self.pictures = pictures
        self.every = every
        options: dict[str, Any] = {
            **{"project": project, "name": name, "mode": mode, "entity": entity, "group": group},
            **{"tags": tags, "notes": notes, "job_type": job_type, "id": id},
        }
        self._options = {name: value for name, value in options.items() if value is not None}
        # The id of the run that is resumed.
        self._id: str | None = None

    def on_fit_start(self, run: Run) -> None:
        """Open the run, or resume it.

        Raises:
            ConnectionError: The service cannot be reached, or no key for it is set.
        """
        import wandb

        # Offline, this makes wandb sync append to the earlier part.
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
                "Weights & Biases cannot be used online: set WandB's mode to offline "
                "(or WANDB_MODE=offline) and upload the run later with wandb sync. Its message: "
                f"{str(error).partition(os.linesep)[0]}"
            ) from error
        self._id = self._run.id
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Log the round."""
        import wandb

        row: dict[str, Any] = dict(result.metrics)
        turn = self.every is not None and result.round % self.every == 0
        if result.clients and (run.ends or turn or self.every is None):
            columns = list(dict.fromkeys(key for client in result.clients for key in client))
            cells: list[Iterable[Any]] = [
                [client.get(column) for column in columns] for client in result.clients
            ]
            row["clients"] = wandb.Table(columns=[*columns], data=cells)
        if turn and not run.ends:
            row |= self._images(run)
        # The last row is logged together with the pictures of the finished run.
        self._run.log(row, step=result.round, commit=not run.ends)

    def on_fit_end(self, run: Run) -> None:
        """Log the pictures and the summary, and close the run."""
        if run.latest is not None and (images := self._images(run)):
            # The pictures get a separate row if a later callback has ended the run.
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
