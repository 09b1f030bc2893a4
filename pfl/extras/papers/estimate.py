"""Estimates of what a table's runs will cost, from a few steps on made-up data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import track

from pfl.cli.config import REFUSALS
from pfl.cli.explain import UsageError, explained
from pfl.core.seeds import generator
from pfl.core.sheet import Sheet
from pfl.extras.papers import kept
from pfl.extras.papers.measure import Rates, Stopwatch, measure
from pfl.extras.papers.plan import PlannedRun, TablePlan
from pfl.extras.papers.render import shortened
from pfl.extras.papers.runner import reason
from pfl.extras.papers.sizes import Sizes, Surveyor
from pfl.extras.papers.spec import TableFile
from pfl.results.statistics import NONE

# Values, gradients, the optimiser's state, and the state that clients start from.
_COPIES = 4


@dataclass(frozen=True)
class RemainingCost:
    """The cost of the rest of a run.

    Attributes:
        seconds: One client after another, on one core of this machine.
        memory: Bytes of inputs, models and kept states.
        moved: Bytes both ways.
    """

    seconds: float
    memory: float
    moved: float


def sheet(table: TableFile, plan: TablePlan, console: Console) -> tuple[Sheet, Sequence[str]]:
    """Make a row for each run: what is done, and what the rest costs.

    The console shows each run's row as soon as it is known.

    Returns:
        The rows, and the labels of runs whose estimate failed for another reason than their
        settings or missing data.
    """
    estimator = _Estimator()
    rows: list[list[str]] = []
    footnotes: dict[str, int] = {}
    costs: list[RemainingCost] = []
    failed: list[str] = []
    done = 0
    for run in track(plan.runs.values(), "runs", console=console):
        cells = [NONE] * 3
        if kept.finished(run) is not None:
            state = "done"
            done += 1
        else:
            state, before = _state(run)
            try:
                with explained(run.experiment.settings, *REFUSALS):
                    costs.append(estimator.cost(run, before))
                cells = _cells(costs[-1])
            except Exception as error:  # whatever a method raises, the others are estimated
                number = footnotes.setdefault(reason(error), len(footnotes) + 1)
                state += f" [{number}]"
                failed += [] if isinstance(error, UsageError) else [run.label]
        rows.append([run.label, state, *cells])
        console.print(escape(f"{run.label}: {', '.join([state, *cells])}"), highlight=False)
    total = RemainingCost(
        seconds=sum(cost.seconds for cost in costs),
        memory=max((cost.memory for cost in costs), default=0),
        moved=sum(cost.moved for cost in costs),
    )
    rows.append(["together", f"{done} of {len(plan.runs)} done", *_cells(total)])
    estimates = Sheet(
        title=f"{table.caption}{shortened(plan)}: what is left to run",
        columns=["run", "state", "time", "memory", "moved"],
        rows=rows,
        notes=[
            "Estimated from a few steps on made-up data, one client after another, on one core of "
            "this machine; without reading the data. Engines that use several cores divide the "
            "time by almost as many. Memory: inputs, models and what clients keep.",
            *estimator.watch.complaints(),
            *(f"[{number}] {what}" for what, number in footnotes.items()),
        ],
    )
    return estimates, failed


def _state(run: PlannedRun) -> tuple[str, int]:
    """Describe an unfinished run, and return the rounds that are done."""
    folder = kept.resumable(run)
    if folder is None:
        return "missing", 0
    done = kept.rounds_done(folder)
    return f"round {done} of {run.rounds}", done


class _Estimator:
    """Measures each method on each kind of data once."""

    def __init__(self) -> None:
        self.watch = Stopwatch()
        self._surveyor = Surveyor()
        self._rates: dict[str, Rates] = {}

    def cost(self, run: PlannedRun, before: int) -> RemainingCost:
        """Return the rounds after ``before``, with their cohorts.

        Raises:
            ValueError: The configuration does not fit the data.
            OSError: The data are not there, and how many there are is not known.
        """
        sizes = self._surveyor.sizes(run)
        rates, loop = self._measured(run, sizes), run.experiment.loop
        size = run.experiment.values.data.init_args.batch_size
        batches = [-(-count // size) for count in sizes.train]
        eligible = [client for client, count in enumerate(sizes.train) if count > 0]
        seconds = moved = 0.0
        walked = sum(batches) if rates.adapts else (sizes.tested + sizes.pooled) / size
        for number in range(before + 1, run.rounds + 1):
            cohort = loop.sampler(eligible, generator(loop.seed, "cohort", number), number)
            trained = sum(batches[client] for client in cohort.trains)
            seconds += rates.train.seconds(len(cohort.trains), trained)
            moved += rates.down * len(cohort.trains) + rates.up * len(cohort.uploads)
            if loop.is_tested(number, run.rounds):
                seconds += rates.test.seconds(len(batches), walked)
        memory = sizes.bytes + rates.keeps * len(eligible) + _COPIES * rates.model
        return RemainingCost(seconds, memory, moved)

    def _measured(self, run: PlannedRun, sizes: Sizes) -> Rates:
        model = {key: value for key, value in run.identity.items() if key.startswith("model")}
        size = run.experiment.values.data.init_args.batch_size
        inputs = [[name, value.shape, value.dtype] for name, value in sizes.blank.items()]
        task = [type(sizes.task).__name__, sizes.outputs]
        key = json.dumps([model, inputs, task, size], default=str)
        if key not in self._rates:
            with self.watch.on_one_core():
                rates = measure(run.experiment, sizes)
            # Waiting for the core is no cost of the method.
            train, test = (line.times(self.watch.share) for line in (rates.train, rates.test))
            self._rates[key] = replace(rates, train=train, test=test)
        return self._rates[key]


def _cells(cost: RemainingCost) -> list[str]:
    return [_duration(cost.seconds), decimal(int(cost.memory)), decimal(int(cost.moved))]


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
