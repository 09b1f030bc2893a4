"""All samples in memory, and views of them for each client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from datamodules.augment import Augmentation
from datamodules.checks import require
from datamodules.partition.splits import Division
from datamodules.targets import Catalogue, Ints
from pfl.core import devices
from pfl.core.checks import finite
from pfl.core.data import ClientSplit
from pfl.core.state import each, nbytes, tensors
from pfl.core.types import Batch, DataSplit, Inputs, Split

# Number of samples that are checked together.
_PART = 4096


def are_images(inputs: Inputs) -> bool:
    """Return ``True`` for images, (n, C, H, W) uint8; only these are scaled."""
    return isinstance(inputs, Tensor) and inputs.dtype == torch.uint8 and inputs.dim() == 4


def count(inputs: Inputs) -> int:
    """Return the number of samples."""
    return len(tensors(inputs)[0])


def first_not_finite(value: Tensor) -> int | None:
    """Return the first sample with a number that is not finite in float32, or ``None``.

    ``value`` is (n, ...), of any type.
    """
    if value.is_floating_point():
        # In parts: a tensor in a file may exceed the memory.
        for start in range(0, len(value), _PART):
            part = value[start : start + _PART].float()
            bad = ~part.reshape(len(part), -1).isfinite().all(1)
            if bad.any():
                return start + int(bad.nonzero()[0])
    return None


def checked(raw: Inputs, inputs: Inputs, augment: Augmentation | None) -> Inputs:
    """Check inputs after transforms, and return them.

    Raises:
        ValueError: A transform gave a number that is not finite, or inputs with ``augment`` are not
            images.
    """
    for value in tensors(inputs) if inputs is not raw else ():
        bad = first_not_finite(value)
        require(
            bad is None,
            "after standardisation and the replacement of missing values, an input is not "
            f"finite, first that of sample {bad}: a number is too large for it",
        )
    require(
        augment is None or are_images(inputs),
        "augment needs images of bytes, (n, C, H, W) uint8: leave out transforms such as ToTensor",
    )
    return inputs


class Store:
    """The inputs and targets of all clients.

    Args:
        inputs: (n, ...), one tensor or several by name, possibly in files. Images stay bytes until
            batching.
        targets: (n, ...).
        mean: (C,) mean to subtract from images scaled to [0, 1]; or one number for all channels.
        std: (C,) standard deviation by which these images are divided; or one number.

    Raises:
        ValueError: ``mean`` or ``std`` has another number of channels.
    """

    def __init__(
        self, inputs: Inputs, targets: Tensor, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        self.inputs = inputs
        self.targets = targets
        self.device = torch.device("cpu")
        self._images = are_images(inputs)
        channels = inputs.shape[1] if self._images and isinstance(inputs, Tensor) else 1
        for name, value in (("mean", mean), ("std", std)):
            if self._images and len(value) not in (1, channels):
                raise ValueError(f"{name} has {len(value)} values for {channels} channels")
        wide = torch.float64
        self._scale = 1 / (255 * torch.tensor(std, dtype=wide).view(-1, 1, 1))
        self._offset = -torch.tensor(mean, dtype=wide).view(-1, 1, 1) * self._scale * 255
        self._constants: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

    def to(self, device: torch.device) -> None:
        """Place batches on ``device``, and move the samples there if they fill at most half of it.

        Larger sets stay in host memory (or in their files), and each batch is copied.
        """
        if device == self.device:
            return
        self.device = device
        self._constants = {}
        free = devices.free(device)
        fits = free is None or nbytes(self.inputs) <= free // 2
        home = device if fits else torch.device("cpu")
        self.inputs = each(lambda value: _at(home, value), self.inputs)
        self.targets = _at(home, self.targets)

    def batch(
        self, rows: Tensor, augment: Augmentation | None, rng: torch.Generator | None
    ) -> Batch:
        """Return the samples of rows on the working device, in torch's default dtype."""
        y = self._moved(self.targets.index_select(0, rows))
        if not self._images or not isinstance(self.inputs, Tensor):
            return Batch(
                each(lambda value: self._moved(value.index_select(0, rows)), self.inputs), y
            )
        images = self.inputs.index_select(0, rows)
        if augment is not None and rng is not None:
            if y.dim() > 2 and y.shape[-2:] == images.shape[-2:]:
                images, y = augment.pairs(images, y.to(images.device), rng)
                y = y.to(self.device)
            else:
                images = augment(images, rng)
        dtype = torch.get_default_dtype()
        if dtype not in self._constants:
            self._constants[dtype] = (
                self._scale.to(dtype).to(self.device),
                self._offset.to(dtype).to(self.device),
            )
        scale, offset = self._constants[dtype]
        # Copy bytes to the device, not floats.
        x = images.to(self.device).to(dtype).mul_(scale).add_(offset)
        return Batch(x, y)

    def _moved(self, value: Tensor) -> Tensor:
        """Return a tensor on the working device, with floats in torch's default dtype."""
        if value.is_floating_point():
            value = value.to(torch.get_default_dtype())
        return value.to(self.device)


def _at(device: torch.device, value: Tensor) -> Tensor:
    """Move a tensor to a device, as float32 if the device does not support float64."""
    wide = value.dtype == torch.float64
    return value.to(device, devices.widest(device) if wide else value.dtype)


class View(Dataset[Batch]):
    """One split of one client: rows of the store in a fixed order, without copies.

    It is also a map-style data set whose items are whole batches, for a ``DataLoader`` with
    ``batch_size=None`` and a ``BatchSampler``.

    Attributes:
        augmented: Whether :meth:`batch` applies random transforms.

    Args:
        store: All samples.
        rows: (n,) int64 rows of the store.
        augment: Random transforms of batches drawn with an rng.
    """

    def __init__(self, store: Store, rows: Tensor, augment: Augmentation | None = None) -> None:
        self._store = store
        self._rows = rows
        self._augment = augment
        self.augmented = augment is not None

    @cached_property
    def targets(self) -> Tensor:
        """(n, ...) targets in the order of the samples, on the CPU."""
        targets = self._store.targets
        return targets.index_select(0, self._rows.to(targets.device)).cpu()

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, positions: Tensor, rng: torch.Generator | None = None) -> Batch:
        """Return the samples at ``positions``, normalised, on the working device.

        Args:
            positions: (B,) positions within this split, on any device.
            rng: CPU generator of the random transforms; without it, none are applied.
        """
        rows = self._at_home()
        return self._store.batch(
            rows.index_select(0, positions.to(rows.device)), self._augment, rng
        )

    def joined(self, splits: Sequence[ClientSplit]) -> View | None:
        """Concatenate several splits into one view, in order and without transforms."""
        rows = []
        for split in splits:
            if not isinstance(split, View) or split._store is not self._store:
                return None
            rows.append(split._at_home())
        return View(self._store, torch.cat(rows))

    def _at_home(self) -> Tensor:
        """Return the rows on the samples' device, moving them there once."""
        self._rows = self._rows.to(tensors(self._store.inputs)[0].device)
        return self._rows

    def __getitem__(self, positions: Sequence[int]) -> Batch:
        # In a plain Trainer, order and transforms use torch's default generator.
        return self.batch(torch.as_tensor(positions), torch.default_generator)


@dataclass(eq=False)
class Prepared:
    """A data set that has been read and divided into clients.

    Args:
        catalogue: All samples, used or not.
        division: The samples of each client.
        description: The partition in plain values.
        store: Inputs and targets of the samples in use.
        lookup: (samples,) the row of each sample in the store.
        raw: Inputs as read, before transforms, until they have been examined.

    Attributes:
        views: Those that were asked for, by client and split; without a client, of all clients.
    """

    catalogue: Catalogue
    division: Division
    description: dict[str, Any]
    store: Store
    lookup: Tensor
    raw: Inputs
    views: dict[tuple[int | None, DataSplit], View] = field(default_factory=dict, init=False)

    def view(self, key: tuple[int | None, Split], ids: Ints, augment: Augmentation | None) -> View:
        """Return the view of samples, one for each key."""
        if key not in self.views:
            rows = self.lookup[torch.from_numpy(ids)]
            self.views[key] = View(self.store, rows, augment if key[1] == "train" else None)
        return self.views[key]


def channel_values(name: str, values: Sequence[float] | float) -> tuple[float, ...]:
    """Return the values of ``mean`` or ``std``: one, or one per channel.

    Raises:
        ValueError: There are no values, or one is not finite.
    """
    numbers = (values,) if isinstance(values, int | float) else tuple(values)
    require(len(numbers) > 0, f"{name} must be a number, or one for each channel, got none")
    for number in numbers:
        finite(**{name: number})
    return numbers


def batches(
    view: View, size: int, shuffle: bool = False, drop_last: bool = False
) -> DataLoader[Batch]:
    """Return the batches of a view for a plain Trainer."""
    order = RandomSampler(view) if shuffle else SequentialSampler(view)
    return DataLoader(view, sampler=BatchSampler(order, size, drop_last), batch_size=None)
