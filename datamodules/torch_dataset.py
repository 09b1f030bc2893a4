"""Any map-style data set of torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from datamodules.checks import require
from datamodules.decoding import decoded
from datamodules.named_tensors import as_tensor
from datamodules.partition.partitioner import Partitioner
from datamodules.pictures import Shape
from datamodules.record import Record
from datamodules.tasks.named import AnyTask
from datamodules.tensors import TensorData
from pfl.core.ranges import NotNegative
from pfl.core.seeds import streams


class TorchDataset(TensorData):
    """A map-style data set of torch whose samples are pairs of inputs and target.

    Inputs are a tensor, an array, a Pillow image, or several of these by name in a dictionary; all
    samples have the same shape. Each sample is decoded once, so that random transforms in the data
    set are applied only once; for random transforms of training batches use ``augment``, and images
    of bytes, without ``ToTensor``. Class names are those in the data set's attribute ``classes``,
    if it has one.

    Args:
        dataset: The data set; in YAML, its class path and arguments.
        num_clients: Number of clients, N.
        partition: As in :class:`FederatedDataModule`.
        test: Another data set, with the official test samples.
        task: What is predicted; inferred from the type of the targets if not given.
        memory: Maximum size of the decoded samples in memory, in gigabytes. Larger sets are decoded
            into a temporary file and read from there as needed.
        options: As in :class:`FederatedDataModule`.

    Raises:
        ValueError: A sample is not a pair, or its shape differs from the first one's.
    """

    def __init__(
        self,
        dataset: Dataset,  # type: ignore[type-arg] # the parser refuses Dataset[Any]
        num_clients: int,
        partition: Partitioner | str,
        *,
        test: Dataset | None = None,  # type: ignore[type-arg]
        task: AnyTask | None = None,
        memory: NotNegative[float] = 8.0,
        **options: Any,
    ) -> None:
        super().__init__({}, num_clients, partition, task=task, **options)
        self.dataset = dataset
        self.test = test
        self.memory = memory
        self._changing = False

    def read(self) -> Mapping[str, Any]:
        """Read the tensors by name."""
        parts = [self.dataset] if self.test is None else [self.dataset, self.test]
        sizes = [_size(part) for part in parts]
        items = self._items(parts, sizes)
        samples = (_named(item, number) for number, item in enumerate(items))
        names = getattr(self.dataset, "classes", None)
        return {
            **decoded(samples, sum(sizes), self.memory),
            **({"class_names": names} if names else {}),
            "num_train": sizes[0],
        }

    def record(self) -> Record:
        """Return the tensors, and whether others would come at the next reading."""
        found = super().record()
        if self._changing:
            found.notes.unread.append(
                f"samples of {type(self.dataset).__name__} draw random numbers, and are read once, "
                "so that all epochs have the same: leave random transforms out of it, and give "
                "augment"
            )
        return found

    def _items(self, parts: Sequence[Dataset[Any]], sizes: Sequence[int]) -> Iterator[Any]:
        """Yield the samples, each read once, and note whether they drew from default streams."""
        before = streams()
        for part, size in zip(parts, sizes, strict=True):
            yield from (part[row] for row in range(size))
        self._changing = streams() != before


def _size(dataset: Dataset[Any]) -> int:
    name = type(dataset).__name__
    usable = not isinstance(dataset, IterableDataset) and hasattr(dataset, "__len__")
    require(usable, f"{name} is not a map-style data set, which has __len__ and __getitem__")
    size = len(dataset)  # type: ignore[arg-type]
    require(size > 0, f"{name} has no samples")
    return size


def _named(item: Any, number: int) -> dict[str, Tensor]:  # noqa: ANN401
    """Return a sample's inputs and target as tensors, by their names in :class:`TensorData`."""
    pair = isinstance(item, tuple | list) and len(item) == 2
    require(pair, f"sample {number} is a {type(item).__name__}, not a pair (inputs, target)")
    x, y = item
    several = {f"x.{name}": value for name, value in x.items()} if isinstance(x, Mapping) else None
    sample = {**(several or {"x": x}), "y": y}
    return {name: _tensor(value, name, number) for name, value in sample.items()}


def _tensor(value: Any, name: str, number: int) -> Tensor:  # noqa: ANN401
    if isinstance(value, Image.Image):
        try:
            pixels, _ = Shape(grayscale=value.mode in ("1", "L")).pixels(value)
        except ValueError as error:
            raise ValueError(f"{name} of sample {number}: {error}") from error
        return torch.from_numpy(pixels.copy())
    return as_tensor(value, f"{name} of sample {number}")
