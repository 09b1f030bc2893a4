"""Outcomes of a table's cells: our numbers beside the reported ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pfl.extras.papers.agreement import Verdict, compare
from pfl.extras.papers.cells import Cell
from pfl.extras.papers.plan import TablePlan
from pfl.extras.papers.reported import printed
from pfl.results.files import Floats, RunError
from pfl.results.runs import RunFolder
from pfl.results.statistics import Estimate


@dataclass(frozen=True)
class CellOutcome:
    """The outcome of one cell.

    Attributes:
        cell: The cell.
        runs: Finished runs by seed.
        values: (seeds,) metric of each finished run.
        trouble: Distinct reasons why other runs are missing or have no number.
        scale: Share of rounds and data.
    """

    cell: Cell
    runs: Mapping[int, RunFolder]
    values: Floats
    trouble: tuple[str, ...]
    scale: float

    @property
    def ours(self) -> Estimate | None:
        """Mean over seeds and its standard error."""
        return Estimate.of(self.values) if len(self.values) else None

    @property
    def difference(self) -> float | None:
        """Our number minus the paper's."""
        if self.ours is None or self.cell.reported is None:
            return None
        return self.ours.mean - self.cell.reported.value

    @property
    def verdict(self) -> Verdict | None:
        """Whether our number equals the paper's, within two points.

        ``None`` without one of them, and if only a share of the experiment was run.
        """
        reported = self.cell.reported
        if self.ours is None or reported is None or self.scale != 1:
            return None
        return compare(self.ours, printed(reported.paper, reported.value, reported.error))


def outcome(cell: Cell, plan: TablePlan, failures: Mapping[str, str]) -> CellOutcome:
    """Read the runs of a cell; ``failures`` maps names of failed runs to reasons."""
    if cell.skip is not None:
        return CellOutcome(cell, {}, np.empty(0), (cell.skip,), plan.scale)
    runs: dict[int, RunFolder] = {}
    values: list[float] = []
    trouble: dict[str, None] = {}
    for seed, name in plan.names[cell].items():
        try:
            folder = plan.runs[name].finished
            if folder is None:
                trouble[failures.get(name, "not run yet")] = None
                continue
            finished_run = RunFolder.read(folder)
            values.append(finished_run.mean(cell.metric, finished_run.chosen(cell.at, cell.metric)))
            runs[seed] = finished_run
            if not math.isfinite(values[-1]):
                trouble[f"{cell.metric} of seed {seed} is not a number"] = None
        except RunError as error:
            trouble[str(error)] = None
    return CellOutcome(cell, runs, np.array(values), tuple(trouble), plan.scale)
