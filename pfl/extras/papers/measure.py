"""Measuring what a client of a method costs, with a few steps on synthetic data."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any, NamedTuple

import torch
from jsonargparse import Namespace
from torch import Tensor

from pfl.cli.config import Experiment
from pfl.core.state import named, nbytes
from pfl.core.task import Classification, MultiLabel, Regression
from pfl.engines import op_threads
from pfl.extras.papers.sizes import Sizes
from pfl.federation.run import Run

# The made-up federations: their clients, and the batches that each trains on and is tested on.
# Two sizes separate the fixed cost of a client from the cost of each batch.
_CLIENTS = 2
_SMALL, _LARGE = 1, 3
# How many times as long as it worked a measurement may take.
BUSY = 1.2


class CostLine(NamedTuple):
    """The seconds of a client as a function of its number of batches, on one core.

    Attributes:
        start: Fixed seconds of a client.
        batch: Additional seconds for each batch.
    """

    start: float
    batch: float

    @classmethod
    def through(cls, small: float, large: float) -> CostLine:
        """Return the line through the costs of a small and a large client."""
        batch = max(0.0, large - small) / (_LARGE - _SMALL)
        return cls(max(0.0, small - _SMALL * batch), batch)

    def times(self, share: float) -> CostLine:
        """Return the line of a machine that gave ``share`` of a core to it."""
        return CostLine(share * self.start, share * self.batch)

    def seconds(self, clients: int, batches: float) -> float:
        """Return the seconds of some clients, which have ``batches`` batches in total."""
        return self.start * clients + self.batch * batches


@dataclass(frozen=True)
class Rates:
    """The cost of one client in one round.

    Attributes:
        train: Seconds of training and aggregation, by the batches that it trains on.
        test: Seconds of its tests, by the batches that they walk over.
        adapts: Whether a test first trains on a copy, and so walks over the training data.
        down: Bytes that it receives.
        up: Bytes that it sends.
        keeps: Bytes that it keeps, and that the server keeps for it.
        model: Bytes of its state.
    """

    train: CostLine
    test: CostLine
    adapts: bool
    down: float
    up: float
    keeps: float
    model: float


class Stopwatch:
    """Records whether the machine was idle otherwise during a measurement.

    Attributes:
        share: The share of a core that the last measurement had, at most 1.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self._passed = self._worked = self._load = 0.0

    @contextmanager
    def on_one_core(self) -> Iterator[None]:
        """Measure with one op thread, since several would wait for each other on a busy machine."""
        start = time.perf_counter(), time.process_time()
        try:
            with op_threads.using(1):
                yield
        finally:
            passed, worked = time.perf_counter() - start[0], time.process_time() - start[1]
            self.share = min(1.0, worked / passed)
            self._passed += passed
            self._worked += worked
            self._load = max(self._load, os.getloadavg()[0] if hasattr(os, "getloadavg") else 0)

    def complaints(self) -> list[str]:
        """Return a warning if the machine was too busy; otherwise an empty list."""
        cores = os.cpu_count() or 1
        if self._passed <= BUSY * self._worked and self._load <= cores:
            return []
        return [
            f"THE MACHINE WAS BUSY: the measurement had {self._worked / self._passed:.0%} of a "
            f"core, and {self._load:.1f} programs wanted {cores} cores. The times are multiplied "
            "by this share, and may be off by a factor of two; repeat the estimate when the "
            "machine is idle."
        ]


def measure(experiment: Experiment, sizes: Sizes) -> Rates:
    """Measure what a client costs, on a federation of small clients and one of large clients."""
    _, *small = _trial(experiment, sizes, _SMALL, 3)
    run, *large = _trial(experiment, sizes, _LARGE, 2)
    train, test = (CostLine.through(*seconds) for seconds in zip(small, large, strict=True))
    row = run.history[-1]
    return Rates(
        train=train,
        test=test,
        adapts=bool(list(run.module.adapt())),
        down=row["comm/bytes_down"] / _CLIENTS,
        up=row["comm/bytes_up"] / _CLIENTS,
        keeps=bytes_kept(run),
        model=nbytes(run.template),
    )


def _trial(
    experiment: Experiment, sizes: Sizes, batches: int, rounds: int
) -> tuple[Run, float, float]:
    """Run some rounds on made-up data; return the run, and a client's seconds of each kind.

    The first round warms up. The others count in the mean: the share of a core, by which their
    time is multiplied, is a mean too.
    """
    values = _made_up(experiment, sizes, batches)
    values.loop.rounds = rounds
    trial = Experiment(experiment.parser, values, experiment.settings)
    run = trial.loop.fit(trial.module, trial.data)
    warm = run.history[1:]
    train = fmean(row["time/train"] + row["time/aggregate"] for row in warm) / _CLIENTS
    return run, train, fmean(row["time/evaluate"] for row in warm) / _CLIENTS


def bytes_kept(run: Run) -> float:
    """Return the bytes of one more client: its own state, and what the server keeps for it."""
    of_client = sum(nbytes(run.kept[client]) for client in run.kept) / _CLIENTS
    common = 0 if run.module.server().per_client else nbytes(run.server.shared)
    return of_client + (nbytes(named(run.server, numbers=False)) - common) / _CLIENTS


def _made_up(experiment: Experiment, sizes: Sizes, batches: int) -> Namespace:
    """Return settings of the same method for clients with ``batches`` batches of such data."""
    values = experiment.values.clone()
    size = values.data.init_args.batch_size
    # A forecast is a regression of several numbers, with the options of its loss.
    task_class = Regression if isinstance(sizes.task, Regression) else type(sizes.task)
    names = {field.name for field in fields(task_class)}
    values.data = Namespace(
        class_path="datamodules.TensorData",
        init_args=Namespace(
            source=_samples(sizes, _CLIENTS * 2 * batches * size),
            num_clients=_CLIENTS,
            partition=Namespace(class_path="datamodules.IID", init_args=Namespace()),
            task=task_class.__name__.lower(),
            loss={name: v for name, v in sizes.task.options().items() if name in names},
            batch_size=size,
            test_fraction=0.5,
        ),
    )
    loop, sampler = values.loop, "pfl.federation.sampling.UniformSampler"
    loop.sampler = Namespace(class_path=sampler, init_args=Namespace())
    loop.callbacks = loop.loggers = loop.default_root_dir = None
    loop.engine = "sequential"
    loop.evaluate_every = 1
    loop.on_nonfinite = "skip"
    loop.progress = False
    return values


def _samples(sizes: Sizes, count: int) -> dict[str, Any]:
    """Return made-up samples of this kind, as ``TensorData`` takes them.

    Numbers and pixels are random. Tokens are ones, as zero often stands for none.
    """
    rng = torch.Generator().manual_seed(0)

    def drawn(blank: Tensor) -> Tensor:
        shape = (count, *blank.shape[1:])
        if blank.is_floating_point():
            return torch.randn(shape, generator=rng)
        if blank.dtype == torch.uint8:
            return torch.randint(256, shape, generator=rng, dtype=torch.uint8)
        return torch.ones(shape, dtype=blank.dtype)

    inputs = {name: drawn(blank) for name, blank in sizes.blank.items()}
    if isinstance(sizes.task, Classification):
        return {
            **inputs,
            "y": torch.arange(count) % sizes.outputs,
            "class_names": range(sizes.outputs),
        }
    numbers = torch.randn(count, sizes.outputs // sizes.task.outputs(1), generator=rng)
    return {**inputs, "y": (numbers > 0).long() if isinstance(sizes.task, MultiLabel) else numbers}
