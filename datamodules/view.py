"""All samples in one uint8 tensor, and views of it for each client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from datamodules.augment import Augmentation
from datamodules.checks import require
from datamodules.splits import Division
from datamodules.targets import Catalogue, Ints
from pfl.core.checks import finite
from pfl.core.types import Batch, Split


class Store:
    """The images and labels of all clients.

    Args:
        images: (n, C, H, W) uint8, possibly memory-mapped.
        labels: (n,) int64.
        mean: (C,) of inputs scaled to [0, 1], subtracted; or one number for all channels.
        std: (C,) likewise; divides.

    Raises:
        ValueError: ``mean`` or ``std`` is for another number of channels.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        channels = images.shape[1]
        for name, value in (("mean", mean), ("std", std)):
            if len(value) not in (1, channels):
                raise ValueError(f"{name} has {len(value)} values for {channels} channels")
        self.images = images
        self.labels = labels
        self.device = torch.device("cpu")
        wide = torch.float64
        self._scale = 1 / (255 * torch.tensor(std, dtype=wide).view(-1, 1, 1))
        self._offset = -torch.tensor(mean, dtype=wide).view(-1, 1, 1) * self._scale * 255
        self._constants: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

    def to(self, device: torch.device) -> None:
        """Make batches on ``device``; move the samples there if they fill at most half of it.

        Larger sets stay in host memory (or on disk, if memory-mapped), and each batch is copied.
        """
        if device == self.device:
            return
        self.device = device
        self._constants = {}
        fits = True
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            fits = self.images.nbytes <= free // 2
        home = device if fits else torch.device("cpu")
        self.images, self.labels = self.images.to(home), self.labels.to(home)

    def batch(
        self, rows: Tensor, augment: Augmentation | None, rng: torch.Generator | None
    ) -> Batch:
        """Return the samples in the given rows, on the working device, in torch's default dtype."""
        images = self.images.index_select(0, rows)
        if augment is not None and rng is not None:
            images = augment(images, rng)
        dtype = torch.get_default_dtype()
        if dtype not in self._constants:
            self._constants[dtype] = (
                self._scale.to(dtype).to(self.device),
                self._offset.to(dtype).to(self.device),
            )
        scale, offset = self._constants[dtype]
        # Bytes cross to the device, not floats.
        x = images.to(self.device).to(dtype).mul_(scale).add_(offset)
        return Batch(x, self.labels.index_select(0, rows).to(self.device))


class View(Dataset[Batch]):
    """One split of one client: rows of the store in a fixed order; nothing is copied.

    It is also a map-style data set whose items are whole batches, for a ``DataLoader`` with
    ``batch_size=None`` and a ``BatchSampler``.

    Args:
        store: All samples.
        rows: (n,) int64 rows of the store.
        augment: Applied to batches drawn with an rng.
    """

    def __init__(self, store: Store, rows: Tensor, augment: Augmentation | None = None) -> None:
        self._store = store
        self._rows = rows
        self._augment = augment
        self.targets = store.labels.index_select(0, rows.to(store.labels.device)).cpu()

    @property
    def augmented(self) -> bool:
        """``True`` if :meth:`batch` draws random transforms."""
        return self._augment is not None

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, positions: Tensor, rng: torch.Generator | None = None) -> Batch:
        """Return the samples at ``positions``, normalised, on the working device.

        Args:
            positions: (B,) positions within this split, on any device.
            rng: CPU source of the random transforms; without it there are none.
        """
        home = self._store.images.device
        if self._rows.device != home:
            self._rows = self._rows.to(home)
        rows = self._rows.index_select(0, positions.to(home))
        return self._store.batch(rows, self._augment, rng)

    def __getitem__(self, positions: Sequence[int]) -> Batch:
        # A plain Trainer draws the order from torch's default stream; transforms use it, too.
        return self.batch(torch.as_tensor(positions), torch.default_generator)


class Prepared:
    """A data set that is read and divided into clients.

    Args:
        catalogue: All samples, used or not.
        division: The samples of each client.
        description: The partition in plain values.
        store: The images of the samples in use.
        lookup: (samples,) the row of each sample in the store.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        division: Division,
        description: dict[str, Any],
        store: Store,
        lookup: Tensor,
    ) -> None:
        self.catalogue = catalogue
        self.division = division
        self.description = description
        self.store = store
        self._lookup = lookup
        self._views: dict[tuple[int | None, Split], View] = {}

    def view(self, key: tuple[int | None, Split], ids: Ints, augment: Augmentation | None) -> View:
        """Return the view of some samples; each key has one view."""
        if key not in self._views:
            rows = self._lookup[torch.from_numpy(ids)]
            self._views[key] = View(self.store, rows, augment if key[1] == "train" else None)
        return self._views[key]


def channel_values(name: str, values: Sequence[float] | float) -> tuple[float, ...]:
    """Return the values of ``mean`` or ``std``, one or one a channel.

    Raises:
        ValueError: There is none, or one is not finite.
    """
    numbers = (values,) if isinstance(values, int | float) else tuple(values)
    require(len(numbers) > 0, f"{name} must be a number, or one for each channel, got none")
    for number in numbers:
        finite(**{name: number})
    return numbers
