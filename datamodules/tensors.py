"""Tensors of any shape and type, from memory or a file, for any task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.base import FederatedDataModule
from datamodules.checks import require
from datamodules.learnt import Learnt
from datamodules.moments import Moments, Standardise, standardised
from datamodules.partition.partitioner import ByDomain, Partitioner
from datamodules.partition.splits import Division
from datamodules.targets import Catalogue, Ints, Targets, array_digest
from datamodules.view import are_images, count
from pfl.core.state import each, joined, tensors
from pfl.core.task import Binary, Classification, MultiLabel, Regression, Task
from pfl.core.types import Inputs

TaskName: TypeAlias = Literal["classification", "binary", "multilabel", "regression"]
_TASKS: Mapping[str, type[Task]] = {
    "classification": Classification,
    "binary": Binary,
    "multilabel": MultiLabel,
    "regression": Regression,
}
# The largest number of classes that is inferred from labels: more are a mistake.
_CLASSES = 1_000_000
# Number of samples checked at a time.
_PART = 4096


class TensorData(FederatedDataModule):
    """A data set given as tensors: floats, integers (tokens), or images of bytes.

    The tensors or arrays are given by name; the first axis of each is the sample:

    - ``x``: inputs; or ``x.<name>`` for each of several inputs, which the network gets as a
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
        task: What is predicted; inferred from the type of ``y`` if not given. In a ``binary`` task
            class 1 is the positive one.
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

    source_argument = "source"

    def __init__(
        self,
        source: str | Mapping[str, Any],
        num_clients: int | None = None,
        partition: Partitioner | str | None = None,
        *,
        task: TaskName | None = None,
        standardise: Standardise = "none",
        **options: Any,
    ) -> None:
        super().__init__(num_clients, ByDomain() if partition is None else partition, **options)
        self.source = source
        self.standardise = standardise
        self._task = task
        self._moments: dict[str, Moments] = {}

    @property
    def incomplete(self) -> bool:
        """``True`` if inputs may contain NaN, which ``fitted`` replaces."""
        return False

    def read(self) -> Mapping[str, Any]:
        """Read the tensors by name, as listed above."""
        if not isinstance(self.source, str | Path):
            return self.source
        try:
            with np.load(self.source, allow_pickle=False) as file:
                return dict(file)
        # A damaged header may ask for more memory than there is.
        except (ValueError, OSError, EOFError, MemoryError, BadZipFile) as error:
            raise OSError(f"{self.source} is not an .npz file of plain arrays: {error}") from error

    @cached_property
    def _tensors(self) -> _Tensors:
        tensors = _Tensors.of(self.read(), self._task)
        tensors.check(self.incomplete)
        if self._learnt is not None and tensors.task.has_classes:
            tensors.class_names = _known_classes(tensors.class_names, self._learnt.class_names)
        return tensors

    @property
    def task(self) -> Task:
        """The task, given or inferred from the type of the targets."""
        return self.with_loss(self._tensors.task)

    @property
    def outputs(self) -> int:
        """D, the number of outputs that a network needs for the task."""
        targets = len(self.class_names) if self.task.has_classes else self._tensors.y.shape[1]
        return self.task.outputs(targets)

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
            "standardise is for inputs of floats: images of bytes are scaled by mean and std, and "
            "tokens are no quantities",
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

    def _everybody(self, name: str, x: NDArray[np.floating], division: Division) -> Moments:
        """Return the moments of an input over all clients that train, and remember them."""
        if self._learnt is None:
            self._moments[name] = Moments.of(x[division.of_members("train")])
        else:
            self._moments[name] = self._learnt.moments_of(name, x.shape[1:2])
        return self._moments[name]

    def _learn(self) -> Learnt:
        self.setup()
        moments = {
            name: [np.atleast_1d(values).tolist() for values in (known.means, known.deviations)]
            for name, known in self._moments.items()
        }
        return replace(super()._learn(), moments=moments)

    def target_values(self, catalogue: Catalogue, ids: Ints) -> Tensor:
        """Return the targets of some samples, (len(ids), ...)."""
        return self._tensors.y[torch.from_numpy(ids)]


class _Tensors:
    """A whole data set, official training samples first."""

    def __init__(self, x: Inputs, y: Tensor, task: Task, num_train: int) -> None:
        self.x, self.y, self.task, self.num_train = x, y, task, num_train
        self.class_names: Sequence[str] = ()
        self.client: NDArray[Any] | None = None
        self.columns: dict[str, NDArray[np.float64]] = {}

    @classmethod
    def of(cls, given: Mapping[str, Any], task: TaskName | None) -> _Tensors:
        """Assemble the tensors that are given by name."""
        rest = dict(given)
        train, test = _named(rest, "x"), _named(rest, "x_test")
        require(train is not None and "y" in rest, "the data need x (or x.<name>) and y")
        x, y = train, _tensor(rest.pop("y"), "y")
        num_train = int(rest.pop("num_train", count(x)))
        require(
            0 < num_train <= count(x), f"num_train is {num_train}, but there are {count(x)} samples"
        )
        if test is not None:
            require("y_test" in rest, "x_test needs y_test")
            x = joined(torch.cat, [x, test])
            y = torch.cat([y, _tensor(rest.pop("y_test"), "y_test")])
        predicted, y = _targets(y, task)
        made = cls(x, y, predicted, num_train)
        names = rest.pop("class_names", None)
        if predicted.has_classes:
            made.class_names = _class_names(y, predicted) if names is None else [*map(str, names)]
        client = rest.pop("client", None)
        made.client = None if client is None else np.asarray(client)
        for name in [name for name in rest if name.startswith("column.")]:
            made.columns[name.partition(".")[2]] = np.asarray(rest.pop(name), np.float64)
        require(not rest, f"unknown names in the data: {', '.join(rest)}")
        return made

    def parts(self) -> dict[str, Any]:
        """Return everything by name."""
        x = {"": self.x} if isinstance(self.x, Tensor) else self.x
        inputs = {f"x.{name}".rstrip("."): value for name, value in x.items()}
        more = {} if self.client is None else {"client": self.client}
        columns = {f"column.{name}": values for name, values in self.columns.items()}
        return {**inputs, "y": self.y, **more, **columns}

    def check(self, incomplete: bool) -> None:
        """Refuse tensors of different length, and numbers that are not finite.

        Args:
            incomplete: Inputs may contain NaN.

        Raises:
            ValueError: A tensor is refused; the message names it.
        """
        size = len(self.y)
        for name, value in self.parts().items():
            require(
                len(value) == size, f"{name} has {len(value)} samples, but there are {size} targets"
            )
            if name == "x" and incomplete:
                continue
            bad = _first_not_finite(torch.as_tensor(value)) if name != "client" else None
            require(bad is None, f"{name} has values that are not finite, first in sample {bad}")

    def catalogue(self, class_names: Sequence[str]) -> Catalogue:
        """Return everything but the inputs."""
        labels = np.zeros(len(self.y), np.int64)
        names: tuple[str, ...] = ()
        if self.task.has_classes:
            labels = self.y.numpy()
        domains = None
        if self.client is not None:
            clients, domains = np.unique(self.client, return_inverse=True)
            domains, names = domains.astype(np.int64), tuple(map(str, clients))
        targets = Targets(labels, None, domains, self.columns, has_classes=self.task.has_classes)
        arrays = [np.asarray(value) for name, value in self.parts().items() if name != "client"]
        digest = array_digest(*arrays)
        return Catalogue(targets, self.num_train, class_names, (), names, digest)


def _class_names(y: Tensor, task: Task) -> Sequence[str]:
    """Return the numbers of classes as their names."""
    largest = 1 if isinstance(task, Binary) else int(y.max())
    require(
        largest < _CLASSES,
        f"classes must be numbered from 0 to at most {_CLASSES - 1:,}, since a network gets an "
        f"output for each; got {largest:,}",
    )
    return [str(number) for number in range(largest + 1)]


def _known_classes(names: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    """Return the run's names of classes, among which those of later clients must be."""
    numbered = [*names] == [str(number) for number in range(len(names))]
    require(
        len(names) <= len(known) and (numbered or [*names] == [*known[: len(names)]]),
        f"the data have the classes {', '.join(names[:20])}, but those of the run are "
        f"{', '.join(known[:20])}",
    )
    return known


def _named(given: dict[str, Any], name: str) -> Any:  # noqa: ANN401
    """Pop the inputs of a name: one tensor, or several, by what follows the dot."""
    stem = f"{name}."
    several = {key: given.pop(key) for key in list(given) if key.startswith(stem)}
    if name in given:
        require(not several, f"give {name} or {stem}<name>, not both")
        return _tensor(given.pop(name), name)
    if not several:
        return None
    return {key.removeprefix(stem): _tensor(value, key) for key, value in several.items()}


def as_tensor(value: Any, name: str) -> Tensor:  # noqa: ANN401
    """Return a tensor or an array as a tensor.

    Raises:
        ValueError: It is neither; the message names it.
    """
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} is not a tensor of numbers: {error}") from error


def _tensor(value: Any, name: str) -> Tensor:  # noqa: ANN401
    tensor = as_tensor(value, name)
    require(tensor.dim() > 0, f"{name} must have one sample per row, got a single number")
    return tensor


def _first_not_finite(value: Tensor) -> int | None:
    if value.is_floating_point():
        # In parts: a memory-mapped tensor may be larger than the memory.
        for start in range(0, len(value), _PART):
            part = value[start : start + _PART]
            bad = ~part.reshape(len(part), -1).isfinite().all(1)
            if bad.any():
                return start + int(bad.nonzero()[0])
    return None


def _targets(y: Tensor, name: TaskName | None) -> tuple[Task, Tensor]:
    """Return the task, and the targets in the form that it needs."""
    if name is None:
        whole: TaskName = "multilabel" if y.dim() > 1 else "classification"
        name = "regression" if y.is_floating_point() else whole
    task = _TASKS[name]()
    shape = tuple(y.shape)
    if name in ("classification", "binary"):
        numbered = not y.is_floating_point() and y.dim() == 1 and (not len(y) or int(y.min()) >= 0)
        require(numbered, f"classes must be (n,) integers from 0, got {y.dtype} of shape {shape}")
        marked = name != "binary" or not len(y) or int(y.max()) <= 1
        require(marked, "the classes of a binary task are 0 and 1, the positive one, got others")
        return task, y.long()
    if name == "multilabel":
        require(y.dim() == 2, f"labels must be (n, L) zeros and ones, got shape {shape}")
        require(
            bool(((y == 0) | (y == 1)).all()), "labels must be zeros and ones, got other numbers"
        )
        return task, y.float()
    require(y.dim() <= 2, f"numbers to predict must be (n,) or (n, D), got shape {shape}")
    return task, (y if y.dim() == 2 else y[:, None]).to(torch.float64)
