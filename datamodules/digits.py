"""The 8x8 digits bundled with scikit-learn: real images without a download."""

from __future__ import annotations

import numpy as np

from datamodules.arrays import ArrayData, Arrays
from datamodules.targets import Targets


class Digits(ArrayData):
    """1,797 handwritten digits of 8x8 pixels, 10 classes; no official test set.

    The 17 grey values 0..16 become round(255 v / 16), a change of at most 0.2 % of the range. Mean
    and standard deviation are 0.5 by default, so that inputs lie in [-1, 1].

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits (UCI), as bundled
    with scikit-learn (``sklearn.datasets.load_digits``). The arguments are those of
    :class:`~datamodules.base.FederatedDataModule`.
    """

    published = 1797
    class_names = tuple("0123456789")
    input_shape = (1, 8, 8)

    def read(self) -> Arrays:
        """Read the whole data set."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
        return Arrays(pixels, Targets(digits.target.astype(np.int64)), len(pixels))
