"""The 8x8 digits bundled with scikit-learn: real images without a download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
        pixels, labels = _bundled()
        shades = np.rint(pixels.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
        return Arrays(shades, Targets(labels.astype(np.int64)), len(shades))


def _bundled() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (1797, 64) pixels and (1797,) labels.

    The file is read where it lies, as importing scikit-learn takes longer than small runs. If it is
    not there, scikit-learn is asked.
    """
    found = find_spec("sklearn")
    home = Path(found.origin).parent if found and found.origin else None
    file = None if home is None else home / "datasets" / "data" / "digits.csv.gz"
    if file is None or not file.is_file():
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        return pixels, labels
    whole = np.loadtxt(file, delimiter=",")
    return whole[:, :-1], whole[:, -1]
