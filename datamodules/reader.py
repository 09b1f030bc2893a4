"""A data set before its division: samples, task and fitted transforms."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import lightning as L
import numpy as np
import torch
from torch import Tensor

from datamodules.checks import require
from datamodules.learnt import Learnt
from datamodules.partition.splits import Division
from datamodules.record import Record
from datamodules.report import Report
from datamodules.targets import Catalogue, Ints
from datamodules.tasks.named import LossOptions
from pfl.core.task import Classification, Task
from pfl.core.types import Inputs


class ClientData(L.LightningDataModule, ABC):
    """Base of all data modules whose samples belong to clients: federated data."""

    @property
    @abstractmethod
    def reading(self) -> Report:
        """A report of the data as read, with doubts."""

    def tell(self) -> None:
        """Warn of doubts about the data, once."""
        if "reading" not in vars(self):
            for doubt in self.reading.doubts:
                # Where ``setup`` is called.
                warnings.warn(doubt, stacklevel=3)


class DataReader(ClientData):
    """The part of :class:`FederatedDataModule` that a data set implements.

    Attributes:
        default_mean: Mean of inputs scaled to [0, 1], used if ``mean`` is not given.
        default_std: Standard deviation of these inputs, used if ``std`` is not given.
        learns: What is learnt from the data for those of clients that join later.
        published: Number of samples of the data set, if it is always the same.
        usual_task: Name of the task if none is given; empty if the data tell it.
        source_argument: Argument with the file or folder of the data, if data of other clients may
            replace it (:meth:`FederatedDataModule.adopt`).
    """

    default_mean: ClassVar[Sequence[float]] = (0.5,)
    default_std: ClassVar[Sequence[float]] = (0.5,)
    learns: ClassVar[type[Learnt]] = Learnt
    published: ClassVar[int | None] = None
    usual_task: ClassVar[str] = "classification"
    source_argument: ClassVar[str | None] = None
    loss: LossOptions | None
    _task: Task | None
    _learnt: Learnt | None

    @property
    @abstractmethod
    def class_names(self) -> Sequence[str]:
        """(C,) names of the classes; available before samples are read."""

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, ...]:
        """Channels, height and width of an input; reads at most one sample."""

    @abstractmethod
    def catalogue(self) -> Catalogue:
        """Return labels, subclasses and domains of all samples."""

    @abstractmethod
    def inputs(self, ids: Ints) -> tuple[Inputs, Ints]:
        """Return the inputs of at least the samples ``ids``, which are in ascending order.

        Returns:
            The inputs, (m, ...), as one tensor or several by name (images are (m, C, H, W) uint8);
            and the row of each of ``ids`` among them, (len(ids),).
        """

    def fitted(self, inputs: Inputs, rows: Ints, division: Division) -> Inputs:
        """Return the inputs after transforms that are fitted to training samples; here unchanged.

        Args:
            inputs: Inputs as returned by :meth:`inputs`; they must not be changed.
            rows: (samples,) the row of each sample in use.
            division: The samples of each client.
        """
        return inputs

    def target_values(self, catalogue: Catalogue, ids: Ints) -> Tensor:
        """Return the targets of samples, (len(ids), ...): here their labels."""
        return torch.from_numpy(catalogue.targets.labels[ids])

    def blank(self, count: int) -> Inputs:
        """Return inputs of zeros, with the shapes and types of a batch."""
        return torch.zeros(count, *self.input_shape)

    def record(self) -> Record:
        """Return what was read; a subclass adds what it alone sees of its source."""
        return Record(f"{len(self.contents.targets):,} samples")

    @property
    @abstractmethod
    def contents(self) -> Catalogue:
        """Labels, subclasses and domains of all samples, used or not."""

    @property
    @abstractmethod
    def division(self) -> Division:
        """The samples of each client, by their numbers in :attr:`contents`."""

    # Derived from the above.

    @property
    def task(self) -> Task:
        """The task, with its loss's options; classification unless a data set overrides it.

        A data set that overrides it returns ``self.with_loss(...)``.
        """
        task = Classification() if self._task is None else self._task
        require(
            task.has_classes, f"{type(self).__name__} has classes, which {task} does not predict"
        )
        return self.with_loss(task)

    def with_loss(self, task: Task) -> Task:
        """Return a task with the options of ``loss``.

        Raises:
            ValueError: The task has no such option, or a value does not suit it.
        """
        options: dict[str, Any] = {**(self.loss or {})}
        weights = options.get("class_weights")
        if weights == "balanced" and task.has_classes:
            options["class_weights"] = self._balanced
        elif weights is not None and task.has_classes:
            require(
                not isinstance(weights, str) and len(weights) == len(self.class_names),
                f"loss: class_weights must be balanced or {len(self.class_names)} numbers, one for "
                f"each class, got {weights}",
            )
        return task.with_loss(options)

    @cached_property
    def _balanced(self) -> tuple[float, ...]:
        """(C,) class weights n / (C n_c), counted in the samples of the clients that train."""
        if self._learnt is not None:
            return tuple(self._learnt.class_weights)
        labels = self.contents.targets.classes[self.division.of_members("train")]
        counts = np.bincount(labels, minlength=len(self.class_names))
        present = counts > 0
        weights = len(labels) / (present.sum() * np.maximum(counts, 1))
        return tuple(np.where(present, weights, 0.0).tolist())

    @property
    def outputs(self) -> int:
        """D, the number of outputs that a network needs for the task."""
        return len(self.class_names)

    @property
    def num_classes(self) -> int | None:
        """Number of classes, C; ``None`` if there are no classes."""
        return self.outputs if self.task.has_classes else None

    def transforms(self) -> dict[str, Any]:
        """Return the values learnt from the data, in plain form, for :meth:`adopt`."""
        return self._learn().content()

    def adopt(self, transforms: Mapping[str, Any]) -> None:
        """Use the transforms of a run for the data of clients that join it later.

        Nothing is learnt from the new data. Each natural client is a client; without any, there is
        one. Call it before ``setup``.

        Args:
            transforms: Result of :meth:`transforms` for the run's data.

        Raises:
            ValueError: A value is missing or has the wrong type.
        """
        self._learnt = self.learns.of(transforms)

    def _learn(self) -> Learnt:
        weighs = self.task.has_classes and (self.loss or {}).get("class_weights") == "balanced"
        weights = [*self._balanced] if weighs else []
        return Learnt(type(self.task).__name__, [*map(str, self.class_names)], weights, {})

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the data, which other processes read themselves."""
        items = (item for base in type(self).__mro__ for item in vars(base).items())
        read = {name for name, value in items if isinstance(value, cached_property)}
        return {name: value for name, value in self.__dict__.items() if name not in read}
