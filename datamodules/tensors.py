"""Tensors of any shape and type, from memory or a file, for any task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from zipfile import is_zipfile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules import formats
from datamodules.base import FederatedDataModule
from datamodules.checks import existing, require
from datamodules.given import array_of, columns_of
from datamodules.learnt import Learnt
from datamodules.likeness import fits
from datamodules.moments import ColumnMoments, Standardise, standardised
from datamodules.named_tensors import NamedTensors
from datamodules.partition.partitioner import ByDomain, Partitioner
from datamodules.partition.splits import Division
from datamodules.record import Goal, Notes, Record, Times
from datamodules.targets import Catalogue, Ints
from datamodules.tasks.named import AnyTask
from datamodules.view import are_images
from pfl.core.state import each, tensors
from pfl.core.task import Task
from pfl.core.types import Inputs


class TensorData(FederatedDataModule):
    """A data set given as tensors: floats, integers (tokens), or images of bytes.

    The tensors or arrays are given by name; the first axis of each is the sample:

    - ``x``: inputs; or ``x.<name>`` for each of several inputs, which the network receives as a
      dictionary. Only uint8 of shape (n, C, H, W) is treated as images and scaled by ``mean`` and
      ``std``.
    - ``y``: targets. Unless ``task`` says otherwise, integers (n,) are classes, floats (n,) or (n,
      D) are numbers to predict, and integers or booleans (n, L) mark which of L labels are present.
    - ``x_test`` (or ``x_test.<name>``) and ``y_test``: official test samples, if there are any; or
      ``num_train``, the number of samples in ``x`` before the official test samples.
    - ``client``: (n,) numbers or words, the natural client of each sample, for ``ByDomain``.
    - ``column.<name>``: (n,) numbers by which samples can be ordered, for ``ByColumn``; the column
      ``time`` is used by ``test_protocol: future``.
    - ``class_names``: names of the classes; their numbers if not given.

    If there are official test samples, ``client`` and columns include them, after the others.

    Args:
        source: A ``.npz`` file with these arrays, or a mapping.
        num_clients: Number of clients, N; if not given, one for each natural client.
        partition: As in :class:`FederatedDataModule`; ``ByDomain`` if not given.
        task: What is predicted: a task, the import path of its class, or a name:
            ``classification``, ``binary`` (class 1 is the positive one), ``multilabel``,
            ``regression``, ``segmentation`` or ``survival``. Inferred from the type of ``y`` if
            not given.
        standardise: Subtract the mean from each float input, and divide by its standard deviation
            unless it is zero: for each number of a vector, or for each channel (the axis after the
            samples). With ``train`` both are computed on the training samples of all clients that
            are not held out; with ``client``, which is not possible with a common test set, each
            client's samples use its own training samples. The result is held in memory.
        options: As in :class:`FederatedDataModule`.

    Raises:
        ValueError: A tensor is missing, or the numbers of samples differ.
        OSError: The file cannot be read.
    """

    source_argument: ClassVar[str | None] = "source"
    usual_task: ClassVar[str] = ""

    def __init__(
        self,
        source: str | Mapping[str, Any],
        num_clients: int | None = None,
        partition: Partitioner | str | None = None,
        *,
        task: AnyTask | None = None,
        standardise: Standardise = "none",
        **options: Any,
    ) -> None:
        partition = ByDomain() if partition is None else partition
        super().__init__(num_clients, partition, task=task, **options)
        self.source = source
        self.standardise = standardise
        self._moments: dict[str, ColumnMoments] = {}

    @property
    def incomplete(self) -> bool:
        """``True`` if inputs may contain NaN, which ``fitted`` replaces."""
        return False

    def read(self) -> Mapping[str, Any]:
        """Read the tensors by name, as listed above."""
        if not isinstance(self.source, str | Path):
            given = type(self.source).__name__
            named = isinstance(self.source, Mapping)
            require(named, f"source must be a .npz file, or tensors by name, got a {given}")
            return self.source
        path = existing(self.source)
        with formats.reading(path, "is not an .npz file of plain arrays", OSError):
            # For any other file, numpy would suggest unpickling it.
            require(is_zipfile(path), "numpy.savez writes one")
            with np.load(path, allow_pickle=False) as file:
                of_torch = any(name.endswith("/data.pkl") for name in file.files)
                require(not of_torch, "torch.save wrote it: give its tensors to numpy.savez")
                return dict(file)

    @cached_property
    def _tensors(self) -> NamedTensors:
        tensors = NamedTensors.of(self.read(), self._task)
        tensors.check(self.incomplete)
        if self._learnt is None or not tensors.task.has_classes:
            return tensors
        known = _known_classes(tensors.class_names, self._learnt.class_names)
        return replace(tensors, class_names=known)

    def record(self) -> Record:
        """Return what the tensors are."""
        known = self._tensors
        parts = known.parts().items()
        shapes = [f"{n}: {v.dtype} {tuple(v.shape)}".replace("torch.", "") for n, v in parts]
        source = str(self.source) if isinstance(self.source, str | Path) else ""
        given = known.inputs.items()
        inputs = () if self._learnt else tuple(array_of(*one, known.num_train) for one in given)
        columns = [one for n, v in known.inputs.items() for one in columns_of(n, v)]
        if known.y.is_floating_point():
            columns += columns_of("y", known.y.view(len(known.y), -1), "target")
        time = known.columns.get("time")
        return Record(
            f"{len(known.y):,} samples",
            source,
            Notes(shapes),
            columns=() if self._learnt else tuple(columns),
            arrays=inputs,
            goal=None if self._learnt else self._goal(),
            times=None if time is None else Times("column.time", "numbers", time),
        )

    def _goal(self) -> Goal:
        known = self._tensors
        dense = known.y.dim() > 2 and not known.y.is_floating_point()
        seen = fits(known.x, known.y) if dense and isinstance(known.x, Tensor) else np.empty((0, 6))
        return Goal(known.y.numpy(), self._task is None, dense, fits=seen)

    @property
    def task(self) -> Task:
        """The task, given or inferred from the type of the targets."""
        return self.with_loss(self._tensors.task)

    @property
    def outputs(self) -> int:
        """D, the number of outputs that a network needs for the task."""
        y = self._tensors.y
        targets = y.shape[1] if y.dim() > 1 else 1
        return self.task.outputs(len(self.class_names) if self.task.has_classes else targets)

    @property
    def class_names(self) -> Sequence[str]:
        """(C,) names of the classes; a single name for all samples if there are no classes."""
        if not self._tensors.task.has_classes:
            return ("all",)
        return self._tensors.class_names

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample; that of the first tensor if there are several."""
        return tuple(tensors(self._tensors.x)[0].shape[1:])

    def blank(self, count: int) -> Inputs:
        """Return inputs of zeros, with the shapes and types of a batch."""

        def blank(value: Tensor) -> Tensor:
            dtype = value.dtype if not value.is_floating_point() else torch.get_default_dtype()
            return torch.zeros(count, *value.shape[1:], dtype=dtype)

        x = self._tensors.x
        floats = isinstance(x, Tensor) and (are_images(x) or x.is_floating_point())
        return super().blank(count) if floats else each(blank, x)

    def catalogue(self) -> Catalogue:
        """Return classes, natural clients and columns of all samples."""
        return self._tensors.catalogue(self.class_names)

    def inputs(self, ids: Ints) -> tuple[Inputs, Ints]:
        """Return the inputs of all samples; row i is sample i."""
        return self._tensors.x, ids

    def fitted(self, inputs: Inputs, rows: Ints, division: Division) -> Inputs:
        """Return the inputs standardised.

        Raises:
            ValueError: No input is a float.
        """
        if self.standardise == "none":
            return inputs
        require(
            any(value.is_floating_point() for value in tensors(inputs)),
            "standardise needs inputs of floats: images of bytes are scaled by mean and std, and "
            "tokens are not quantities",
        )

        def change(name: str, value: Tensor) -> Tensor:
            if not value.is_floating_point():
                return value
            x = value.to(torch.promote_types(value.dtype, torch.float32)).numpy()
            every = np.ones(value.shape[1:2], bool)
            everybody = self._everybody(name, x, division)
            done = standardised(x, division, self.standardise, every, everybody)
            return torch.from_numpy(done).to(value.dtype)

        if isinstance(inputs, Tensor):
            return change("x", inputs)
        return {name: change(name, value) for name, value in inputs.items()}

    def _everybody(self, name: str, x: NDArray[np.floating], division: Division) -> ColumnMoments:
        """Return and store the moments of an input over all clients that train."""
        if self._learnt is None:
            self._moments[name] = ColumnMoments.of(x[division.of_members("train")])
        else:
            self._moments[name] = self._learnt.moments_of(name, x.shape[1:2])
        return self._moments[name]

    def _learn(self) -> Learnt:
        self.setup()
        moments = {name: known.plain() for name, known in self._moments.items()}
        return replace(super()._learn(), moments=moments)

    def target_values(self, catalogue: Catalogue, ids: Ints) -> Tensor:
        """Return the targets of samples, (len(ids), ...)."""
        return self._tensors.y[torch.from_numpy(ids)]


def _known_classes(names: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    """Return the run's class names, which must include those of later clients."""
    numbered = [*names] == [str(number) for number in range(len(names))]
    require(
        len(names) <= len(known) and (numbered or [*names] == [*known[: len(names)]]),
        f"the data have the classes {', '.join(names[:20])}, but those of the run are "
        f"{', '.join(known[:20])}",
    )
    return known
