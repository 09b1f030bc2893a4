"""The 8x8 digits that scikit-learn carries: real images, no download."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from datamodules.base import FederatedDataModule
from datamodules.targets import Catalogue, Ints, Targets, array_digest


class Digits(FederatedDataModule):
    """1,797 handwritten digits of 8x8 pixels, 10 classes; no official test set.

    The 17 grey values 0..16 become round(255 v / 16), so at most 0.2 % of the range is lost. Mean
    and standard deviation are 0.5 by default: inputs lie in [-1, 1].

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits (UCI), as bundled
    with scikit-learn (``sklearn.datasets.load_digits``).

    Args:
        common: Arguments of :class:`~datamodules.base.FederatedDataModule`.
    """

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The ten digits."""
        return tuple("0123456789")

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """One channel of 8x8."""
        return (1, 8, 8)

    def catalogue(self) -> Catalogue:
        """Labels of all samples."""
        pixels, labels = _load()
        return Catalogue(
            Targets(labels), len(labels), self.class_names, digest=array_digest(pixels)
        )

    def images(self, ids: Ints) -> tuple[Tensor, Ints]:
        """The pixels of all samples."""
        return torch.from_numpy(_load()[0]), ids


def _load() -> tuple[np.ndarray[Any, np.dtype[np.uint8]], Ints]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
    return pixels, digits.target.astype(np.int64)
