"""A run of a table: found among stored ones, resumed or started."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pfl.campaign.campaign import Planned
from pfl.cli.config import REFUSALS, Experiment
from pfl.cli.explain import explained
from pfl.extras.papers.shorten import limit_samples
from pfl.federation.checkpoint import CheckpointError
from pfl.federation.folders import FILE
from pfl.federation.identity import Identity
from pfl.federation.run import Callback
from pfl.results.files import RunError
from pfl.results.runs import RunFolder

# Names of run folders: their starting times.
_STARTED = re.compile(r"\d{8}-\d{6}(-\d+)?")


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """A run that one or more cells need.

    Attributes:
        name: Name of its folder; equal runs have the same name.
        label: First cell that needs it, and the seed.
        experiment: Its configuration.
        identity: Settings that its numbers depend on.
        scale: Share of rounds (already applied) and of data.
    """

    name: str
    label: str
    experiment: Experiment
    identity: Identity
    scale: float

    @property
    def home(self) -> Path:
        """The parent of its run folders."""
        return Path(self.experiment.values.loop.default_root_dir, self.name)

    @property
    def planned(self) -> Planned:
        """Its entry in the campaign."""
        return Planned(self.name, self.label, self.home, self.make)

    @property
    def rounds(self) -> int:
        """The number of planned rounds."""
        return int(self.experiment.values.loop.rounds)

    @property
    def is_finished(self) -> bool:
        """Whether one of its folders has a finished run."""
        return self.finished is not None

    @property
    def finished(self) -> Path | None:
        """The folder of the finished run, or ``None``."""
        return next((f for f in self._folders() if (f / "summary.json").is_file()), None)

    @property
    def resumable(self) -> Path | None:
        """The newest resumable folder, or ``None``."""
        return next((f for f in self._folders() if (f / FILE).is_file()), None)

    @property
    def done(self) -> int:
        """The number of finished rounds."""
        folder = self.resumable
        try:
            return 0 if folder is None else RunFolder.read(folder).round
        except RunError:
            return 0

    def fresh(self) -> Experiment:
        """Return a new experiment; a plan's own objects would stay in memory with their images."""
        planned = self.experiment
        return Experiment(planned.parser, planned.values.clone(), planned.settings)

    def make(self, callbacks: Sequence[Callback] = ()) -> None:
        """Start or resume the run.

        Raises:
            UsageError: It cannot be run as configured.
            CheckpointError: Its checkpoint no longer fits.
        """
        experiment = self.fresh()
        with explained(experiment.settings, *REFUSALS):
            limit_samples(experiment, self.scale)
            loop, data, module = experiment.loop, experiment.data, experiment.module
            loop = replace(loop, callbacks=[*(loop.callbacks or ()), *callbacks])
            self._clear()
            folder = self.resumable
            try:
                loop.fit(module, data, None if folder is None else str(folder), experiment.text)
            except CheckpointError as error:
                raise CheckpointError(f"{error}; remove {folder} to restart this run") from error

    def _clear(self) -> None:
        """Remove folders of processes that ended before their first checkpoint."""
        for folder in self._folders():
            kept = any((folder / file).is_file() for file in ("summary.json", FILE))
            if not kept and not folder.is_symlink() and _STARTED.fullmatch(folder.name):
                shutil.rmtree(folder)

    def _folders(self) -> list[Path]:
        """Return its folders, newest first, by their names."""
        return sorted((path for path in self.home.glob("*") if path.is_dir()), reverse=True)
