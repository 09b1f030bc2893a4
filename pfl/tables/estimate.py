"""Estimates of what a table's runs will cost, from a few steps on made-up data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from jsonargparse import Namespace
from torch import Tensor

from pfl.callbacks.progress import readable_bytes
from pfl.cli.config import REFUSALS, Experiment
from pfl.cli.explain import explained
from pfl.core.seeds import generator
from pfl.core.state import nbytes
from pfl.federation import checkpoint
from pfl.federation.run import Run
from pfl.results import identity
from pfl.results.compare import NONE
from pfl.results.sheets import Sheet
from pfl.tables import kept
from pfl.tables.plan import Plan, PlannedRun
from pfl.tables.render import shortened
from pfl.tables.runner import reason
from pfl.tables.sizes import Sizes, Surveyor
from pfl.tables.spec import TableFile

# The made-up federation: its clients, and the batches that each trains on and is tested on.
_CLIENTS = 2
_BATCHES = 6
# Values, gradients, the optimiser's state, and the state that clients start from.
_COPIES = 4


@dataclass(frozen=True)
class Rates:
    """Cost of one client in one round of the made-up federation.

    Attributes:
        train: Seconds of training and aggregation, a batch of its data.
        test: Seconds of its tests, a batch of the data that they walk over.
        adapts: A test trains on a copy first, and walks over the training data.
        down: Bytes that it receives.
        up: Bytes that it sends.
        keeps: Bytes that it keeps, and that the server keeps for it.
        model: Bytes of its state.
    """

    train: float
    test: float
    adapts: bool
    down: float
    up: float
    keeps: float
    model: float


@dataclass(frozen=True)
class Cost:
    """Cost of the rest of a run.

    Attributes:
        seconds: One client after another, on this machine.
        memory: Bytes of images, models and kept states.
        moved: Bytes both ways.
    """

    seconds: float
    memory: float
    moved: float


def sheet(table: TableFile, plan: Plan) -> Sheet:
    """Make a row for each run: what is done, and what the rest costs."""
    estimator = _Estimator()
    rows: list[list[str]] = []
    footnotes: dict[str, int] = {}
    costs: list[Cost] = []
    done = 0
    for run in plan.runs.values():
        cells = [NONE] * 3
        if kept.finished(run) is not None:
            state = "done"
            done += 1
        else:
            state, before = _state(run)
            try:
                with explained(run.experiment.given, *REFUSALS):
                    costs.append(estimator.cost(run, before))
                cells = _cells(costs[-1])
            except Exception as error:  # whatever a method raises, the others are estimated
                number = footnotes.setdefault(reason(error), len(footnotes) + 1)
                state += f" [{number}]"
        rows.append([run.label, state, *cells])
    total = Cost(
        seconds=sum(cost.seconds for cost in costs),
        memory=max((cost.memory for cost in costs), default=0),
        moved=sum(cost.moved for cost in costs),
    )
    rows.append(["together", f"{done} of {len(plan.runs)} done", *_cells(total)])
    return Sheet(
        title=f"{table.caption}{shortened(plan)}: what is left to run",
        columns=["run", "state", "time", "memory", "moved"],
        rows=rows,
        notes=[
            "Estimated from a few steps on made-up data, one client after another, on this "
            "machine; without reading the data. Memory: images, models and what clients keep.",
            *(f"[{number}] {what}" for what, number in footnotes.items()),
        ],
    )


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
        self._surveyor = Surveyor()
        self._rates: dict[str, Rates] = {}

    def cost(self, run: PlannedRun, before: int) -> Cost:
        """Return the rounds after ``before``, with their cohorts.

        Raises:
            ValueError: The configuration does not fit the data.
            OSError: The data are not there, and how many there are is not known.
        """
        found = self._surveyor.sizes(run)
        rates, loop = self._measured(run.experiment, found), run.experiment.loop
        size = run.experiment.values.data.init_args.batch_size
        batches = [-(-count // size) for count in found.train]
        eligible = [client for client, count in enumerate(found.train) if count > 0]
        seconds = moved = 0.0
        walked = sum(batches) if rates.adapts else (found.tested + found.pooled) / size
        for number in range(before + 1, run.rounds + 1):
            cohort = loop.sampler(eligible, generator(loop.seed, "cohort", number), number)
            seconds += rates.train * sum(batches[client] for client in cohort.trains)
            moved += rates.down * len(cohort.trains) + rates.up * len(cohort.uploads)
            if number % loop.evaluate_every == 0 or number == run.rounds:
                seconds += rates.test * walked
        memory = found.bytes + rates.keeps * len(eligible) + _COPIES * rates.model
        return Cost(seconds, memory, moved)

    def _measured(self, experiment: Experiment, found: Sizes) -> Rates:
        content = identity.of_run(yaml.safe_load(experiment.text))
        model = {key: value for key, value in content.items() if key.startswith("model")}
        size = experiment.values.data.init_args.batch_size
        key = json.dumps([model, found.shape, found.classes, size], default=str)
        if key not in self._rates:
            self._rates[key] = _measure(experiment, found)
        return self._rates[key]


def _measure(experiment: Experiment, found: Sizes) -> Rates:
    """Two rounds of a made-up federation, of which the first warms up."""
    trial = Experiment(experiment.parser, _made_up(experiment, found), experiment.given)
    run = trial.loop.fit(trial.module, trial.data)
    row = run.history[-1]
    clients = _CLIENTS * _BATCHES
    return Rates(
        train=(row["time/train"] + row["time/aggregate"]) / clients,
        test=row["time/evaluate"] / clients,
        adapts=bool(list(trial.module.adapt())),
        down=row["comm/bytes_down"] / _CLIENTS,
        up=row["comm/bytes_up"] / _CLIENTS,
        keeps=_keeps(run),
        model=nbytes(run.template),
    )


def _keeps(run: Run) -> float:
    """Bytes that one more client costs: its own state, and the server's part for it."""
    own = sum(nbytes(run.kept[client]) for client in run.kept) / _CLIENTS
    packed = _tensors(checkpoint.pack(run.server))
    return own + max(0, packed - nbytes(run.server.shared)) / _CLIENTS


def _tensors(value: Any) -> int:  # noqa: ANN401
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(map(_tensors, value.values()))
    return sum(map(_tensors, value)) if isinstance(value, list | tuple) else 0


def _made_up(experiment: Experiment, found: Sizes) -> Namespace:
    """Return the same method on small clients with data of the same shape."""
    values = experiment.values.clone()
    size = values.data.init_args.batch_size
    values.data = Namespace(
        class_path="datamodules.Synthetic",
        init_args=Namespace(
            num_clients=_CLIENTS,
            partition=Namespace(class_path="datamodules.IID", init_args=Namespace()),
            samples=_CLIENTS * 2 * _BATCHES * size,
            classes=found.classes,
            channels=found.shape[0],
            size=round((found.shape[1] * found.shape[2]) ** 0.5),
            batch_size=size,
            test_fraction=0.5,
        ),
    )
    for key, value in {
        "rounds": 2,
        "evaluate_every": 1,
        "sampler": Namespace(
            class_path="pfl.federation.sampling.UniformSampler", init_args=Namespace()
        ),
        "engine": "sequential",
        "callbacks": None,
        "loggers": None,
        "default_root_dir": None,
        "progress": False,
        "on_nonfinite": "skip",
    }.items():
        values.loop[key] = value
    return values


def _cells(cost: Cost) -> list[str]:
    return [_duration(cost.seconds), readable_bytes(cost.memory), readable_bytes(cost.moved)]


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
