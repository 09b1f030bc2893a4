"""Sizes and kind of a run's data, found without reading or writing images."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jsonargparse import Namespace
from torch import Tensor

from pfl.cli import catalogue
from pfl.cli.known import KINDS
from pfl.core.state import nbytes
from pfl.core.task import Task
from pfl.core.types import Inputs
from pfl.extras.papers.plan import PlannedRun
from pfl.extras.papers.shorten import part_of


@dataclass(frozen=True)
class Sizes:
    """A federation's data in numbers.

    Attributes:
        train: (N,) numbers of training samples of each client.
        tested: Number of test samples of all clients together.
        pooled: Number of samples in the common test set.
        samples: Number of distinct samples in use; clients may share test samples.
        blank: One sample of zeros, (1, ...), in the shapes and types that are stored.
        outputs: D, the number of outputs that a network needs.
        task: What is predicted.
    """

    train: Sequence[int]
    tested: int
    pooled: int
    samples: int
    blank: Mapping[str, Tensor]
    outputs: int
    task: Task

    @property
    def bytes(self) -> int:
        """The bytes of the inputs of all samples; one for each pixel and channel of an image."""
        return self.samples * nbytes(self.blank)


class Surveyor:
    """Divides labels as runs would; opens each data set once, and divides it once per setting."""

    def __init__(self) -> None:
        self._catalogues: dict[str, Any] = {}
        self._sizes: dict[str, Sizes] = {}

    def sizes(self, run: PlannedRun) -> Sizes:
        """Return the sizes of a run's clients.

        Raises:
            ValueError: The partition does not suit the data.
            OSError: The data are missing, and their size is not known without them.
        """
        key = f"{run.experiment.values.data} {run.scale}"
        if key not in self._sizes:
            self._sizes[key] = self._divided(run)
        return self._sizes[key]

    def _divided(self, run: PlannedRun) -> Sizes:
        values, make = _untouched(run.experiment.values.data), run.experiment.make
        data = make("data", values)
        # Options that all data sets have: they divide, scale or score the samples.
        dividing = inspect.signature(catalogue.find(KINDS["data"])).parameters
        arguments = {name: v for name, v in vars(values.init_args).items() if name not in dividing}
        which = f"{values.class_path} {arguments}"
        if which not in self._catalogues:
            self._catalogues[which] = data.outline()
        contents = self._catalogues[which]
        if run.scale < 1 and values.init_args.max_samples is None:
            values.init_args.max_samples = part_of(len(contents.targets), run.scale)
            data = make("data", values)
        division, _ = data.divide(contents)
        return Sizes(
            train=division.sizes[:, 0].tolist(),
            tested=int(division.sizes[:, 2].sum()),
            pooled=0 if division.pooled_test is None else len(division.pooled_test),
            samples=len(division.samples()),
            blank=_stored(data.blank(1)),
            outputs=data.outputs,
            task=data.task,
        )


def _stored(blank: Inputs) -> dict[str, Tensor]:
    """Return inputs by their names in a file of ``TensorData``; images are stored as bytes."""
    if not isinstance(blank, Tensor):
        return {f"x.{name}": value for name, value in blank.items()}
    image = blank.is_floating_point() and blank.dim() == 4
    return {"x": blank.to(torch.uint8) if image else blank}


def _untouched(values: Namespace) -> Namespace:
    """Return a copy of the data's settings that downloads and writes nothing."""
    values = values.clone()
    for name, value in (("download", False), ("cache_dir", None)):
        if name in values.init_args:
            values.init_args[name] = value
    return values
