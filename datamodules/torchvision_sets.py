"""Data sets read, and downloaded on request, by torchvision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from datamodules.arrays import ArrayData, Arrays
from datamodules.checks import require
from datamodules.downloads import tidied
from datamodules.idx import find_idx, read_idx
from datamodules.superclasses import CIFAR100 as CIFAR100_SUPERCLASSES
from datamodules.superclasses import CIFAR100_CLASSES, CIFAR100_PARENTS
from datamodules.targets import Ints, Targets

_TRAIN_OR_NOT = ({"train": True}, {"train": False})
_IDX_FILES = "{train,t10k}-{images-idx3,labels-idx1}-ubyte"
_AS_FOLDER = ", or a folder of images with --config folders/{}"


class TorchvisionData(ArrayData):
    """Base class of the data sets below.

    Attributes:
        source: Name of the class in ``torchvision.datasets``.
        files: Location of its files below ``root``, for error messages.
        parts: Arguments of that class for the official training and test set.
        otherwise: Alternative form of the data set, for error messages.

    Args:
        root: The folder of torchvision's data sets.
        download: Download the data set into it, if it is not there yet.
        common: Arguments of :class:`~datamodules.base.FederatedDataModule`.
    """

    source: ClassVar[str]
    files: ClassVar[str]
    parts: ClassVar[Sequence[Mapping[str, Any]]] = _TRAIN_OR_NOT
    otherwise: ClassVar[str] = ""

    def __init__(self, root: str = "data", download: bool = False, **common: Any) -> None:
        super().__init__(**common)
        self.root = root
        self.download = download

    def prepare_data(self) -> None:
        """Download the data set if ``download`` is set."""
        if self.download:
            for part in self.parts:
                self._part(part)

    def read(self) -> Arrays:
        """Read the whole data set.

        Raises:
            FileNotFoundError: The files are missing.
        """
        (train, labels), (test, test_labels) = (self._part(part) for part in self.parts)
        targets = self.targets(np.concatenate([labels, test_labels]))
        fine_names = CIFAR100_CLASSES if targets.fine is not None else ()
        return Arrays(np.concatenate([train, test]), targets, len(train), fine_names)

    def targets(self, labels: Ints) -> Targets:
        """Return the targets for the published labels."""
        return Targets(labels)

    def _part(self, arguments: Mapping[str, Any]) -> tuple[NDArray[np.uint8], Ints]:
        """Read the (n, C, H, W) pixels and (n,) labels of one part."""
        import torchvision

        try:
            with tidied(self.root):
                part = getattr(torchvision.datasets, self.source)(
                    self.root, download=self.download, **arguments
                )
        except (RuntimeError, OSError) as error:
            advice = "" if self.download else "; set download: true to download it"
            raise FileNotFoundError(
                f"torchvision's {self.source} cannot be read in {self.root!r} ({error}); its files "
                f"are {Path(self.root, self.files).as_posix()}{self.otherwise}{advice}"
            ) from error
        pixels = np.asarray(part.data, np.uint8)
        channels = self.input_shape[0]
        if pixels.ndim == 3:
            pixels = pixels[:, None]
        elif pixels.shape[1] != channels:
            pixels = pixels.transpose(0, 3, 1, 2)
        labels = part.labels if hasattr(part, "labels") else part.targets
        return pixels, np.asarray(labels, np.int64)


class CIFAR10(TorchvisionData):
    """60,000 photographs of 32x32 pixels, 10 classes; 10,000 are the official test set.

    Inputs are normalised by the training set's mean and standard deviation; set ``mean: 0.5`` and
    ``std: 0.5`` for [-1, 1].

    Args:
        root: The folder that contains ``cifar-10-batches-py``.
        download: Download the data set into it, if it is not there yet (170 MB).
        common: Arguments of :class:`~datamodules.base.FederatedDataModule`.
    """

    default_mean = (0.4914, 0.4822, 0.4465)
    default_std = (0.2023, 0.1994, 0.2010)
    published = 60_000
    source = "CIFAR10"
    files = "cifar-10-batches-py/{data_batch_1,...,data_batch_5,test_batch,batches.meta}"
    otherwise = _AS_FOLDER.format("cifar10")
    input_shape = (3, 32, 32)
    class_names = (
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    )


class CIFAR100(TorchvisionData):
    """60,000 photographs of 32x32 pixels, 100 classes in 20 superclasses; 10,000 are for testing.

    Inputs are normalised by the training set's mean and standard deviation; set ``mean: 0.5`` and
    ``std: 0.5`` for [-1, 1].

    Args:
        root: The folder that contains ``cifar-100-python``.
        download: Download the data set into it, if it is not there yet (170 MB).
        superclasses: Predict the 20 superclasses; the 100 classes are then the subclasses that
            :class:`~datamodules.partition.slices.ConceptDrift` divides.
        common: Arguments of :class:`~datamodules.base.FederatedDataModule`.
    """

    default_mean = (0.5074, 0.4867, 0.4411)
    default_std = (0.2011, 0.1987, 0.2025)
    published = 60_000
    source = "CIFAR100"
    files = "cifar-100-python/{train,test,meta}"
    otherwise = _AS_FOLDER.format("cifar100")
    input_shape = (3, 32, 32)

    def __init__(
        self, root: str = "data", download: bool = False, superclasses: bool = False, **common: Any
    ) -> None:
        super().__init__(root, download, **common)
        self.superclasses = superclasses

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the predicted classes or superclasses."""
        return tuple(CIFAR100_SUPERCLASSES) if self.superclasses else CIFAR100_CLASSES

    def targets(self, labels: Ints) -> Targets:
        """Return classes, or superclasses with the classes as subclasses."""
        if not self.superclasses:
            return Targets(labels)
        return Targets(np.array(CIFAR100_PARENTS, np.int64)[labels], fine=labels)


class IdxData(TorchvisionData):
    """Base class of MNIST and Fashion-MNIST, which come as four ``idx`` files.

    The files may be packed (``.gz``) or not, in ``root`` itself or in torchvision's folder
    ``root/<name>/raw``.
    """

    otherwise = ", packed (.gz) or not; they may also be in root itself"
    input_shape = (1, 28, 28)

    def _part(self, arguments: Mapping[str, Any]) -> tuple[NDArray[np.uint8], Ints]:
        """Read one part; torchvision downloads it first if the files are not there."""
        part = "train" if arguments["train"] else "t10k"
        names = [f"{part}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")]
        root = Path(self.root).expanduser()
        for folder in (root / self.source / "raw", root):
            images, labels = (find_idx(folder, name) for name in names)
            if images is not None and labels is not None:
                return self._checked(images, labels)
        return super()._part(arguments)

    def _checked(self, images: Path, labels: Path) -> tuple[NDArray[np.uint8], Ints]:
        pixels, classes = read_idx(images), read_idx(labels)
        require(pixels.shape[1:] == (28, 28), f"{images} does not have images of 28x28 pixels")
        require(
            classes.shape == pixels.shape[:1] and classes.max(initial=0) < 10,
            f"{labels} needs a class from 0 to 9 for each of {len(pixels):,} images of {images}",
        )
        return pixels[:, None], classes.astype(np.int64)


class MNIST(IdxData):
    """70,000 handwritten digits, 28x28 pixels, 10 classes; 10,000 are the official test set.

    Args:
        root: The folder that contains the four ``idx`` files, packed or not, or ``MNIST/raw`` with
            them.
        download: Download the data set into it, if it is not there yet (12 MB).
        common: Arguments of :class:`~datamodules.base.FederatedDataModule`.
    """

    default_mean = (0.1307,)
    default_std = (0.3081,)
    published = 70_000
    source = "MNIST"
    files = f"MNIST/raw/{_IDX_FILES}"
    class_names = tuple("0123456789")


class FashionMNIST(IdxData):
    """70,000 grey pictures of clothes, 28x28 pixels, 10 classes; 10,000 are the official test set.

    Args:
        root: The folder that contains the four ``idx`` files, packed or not, or
            ``FashionMNIST/raw`` with them.
        download: Download the data set into it, if it is not there yet (30 MB).
        common: Arguments of :class:`~datamodules.base.FederatedDataModule`.
    """

    default_mean = (0.2860,)
    default_std = (0.3530,)
    published = 70_000
    source = "FashionMNIST"
    files = f"FashionMNIST/raw/{_IDX_FILES}"
    class_names = (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    )


class STL10(TorchvisionData):
    """13,000 labelled photographs of 96x96 pixels, 10 classes; 8,000 are the official test set.

    The 100,000 unlabelled photographs are not used. Inputs lie in [-1, 1] by default (UniVarFL).

    Args:
        root: The folder that contains ``stl10_binary``.
        download: Download the data set into it, if it is not there yet (2.6 GB).
        common: Arguments of :class:`~datamodules.base.FederatedDataModule`.
    """

    source = "STL10"
    files = "stl10_binary/{train,test}_{X,y}.bin"
    parts = ({"split": "train"}, {"split": "test"})
    input_shape = (3, 96, 96)
    class_names = (
        *("airplane", "bird", "car", "cat", "deer"),
        *("dog", "horse", "monkey", "ship", "truck"),
    )
