"""Samples and splits that FL-bench's generator wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datamodules import formats
from datamodules.checks import require
from datamodules.partition.splits import TestProtocol
from datamodules.tensors import TensorData

# Where the generator puts inputs and labels, by data set.
_FILES = (("data.npy", "targets.npy"), ("raw/xdata.npy", "raw/ydata.npy"))
_LETTERS = 28 * 28


class FLBenchFolder(TensorData):
    """A folder of FL-bench's ``data``: ``data.npy``, ``targets.npy`` and ``partition.pkl``.

    It holds FEMNIST, CelebA, the synthetic and the medical sets. Those that FL-bench takes from
    torchvision, such as ``data/mnist``, are read by their own class with the same file: ``data:
    MNIST, data.partition: data/mnist/partition.pkl``. Inputs are floats, images with channels first
    and scaled to [0, 1], as FL-bench gives them to its transforms.

    Source: Tan and Wang, "FL-bench: A federated learning benchmark for solving image classification
    tasks", 2023, github.com/KarhouTam/FL-bench.

    Args:
        root: The folder.
        test_protocol: As in :class:`FederatedDataModule`.
        options: As in :class:`TensorData`, such as ``batch_size`` and ``partition``, by default the
            folder's.

    Raises:
        FileNotFoundError: A file is missing.
        OSError: A file is damaged or has something else than arrays.
        ValueError: The arrays do not belong together.
    """

    source_argument = "root"

    def __init__(
        self, root: str, *, test_protocol: TestProtocol = "matched", **options: Any
    ) -> None:
        self.root = Path(root).expanduser()
        partition = options.pop("partition", None) or str(self.root / "partition.pkl")
        super().__init__(root, partition=partition, test_protocol=test_protocol, **options)

    def read(self) -> Mapping[str, Any]:
        """Read inputs and labels."""
        there = [pair for pair in _FILES if (self.root / pair[0]).is_file()]
        if not there:
            raise FileNotFoundError(
                f"root: {self.root} has no data.npy, which FL-bench's generate_data.py writes for "
                "femnist, celeba and synthetic; for those of torchvision, such as mnist, give "
                f"data: MNIST and data.partition: {self.root / 'partition.pkl'}"
            )
        x, y = (_array(self.root / name) for name in there[0])
        x, y = x.astype(np.float32), y.reshape(len(y), -1)
        require(
            len(x) == len(y) and y.shape[1] == 1 and bool((y % 1 == 0).all()),
            f"{self.root / there[0][1]}: expected one whole number for each of the {len(x)} "
            f"samples, got {y.shape} numbers",
        )
        if x.max(initial=0.0) > 1:
            x /= np.float32(255)
        return {"x": _channels_first(x), "y": y[:, 0].astype(np.int64)}


def _array(file: Path) -> NDArray[Any]:
    """Return the array of a ``.npy`` file."""
    with formats.reading(file, "is not a .npy file of plain numbers", OSError):
        found: NDArray[Any] = np.load(file, allow_pickle=False)
    return found


def _channels_first(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return images as (n, C, H, W); other inputs unchanged."""
    if x.ndim == 2 and x.shape[1] == _LETTERS:
        return x.reshape(-1, 1, 28, 28)
    if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return x[:, None] if x.ndim == 3 else x
