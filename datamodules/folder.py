"""Any folder of images, with one folder per class, or one per domain and class."""

from __future__ import annotations

import os
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

from datamodules.filedata import FileData, Listing
from datamodules.files import image_files, subfolders
from datamodules.superclasses import CIFAR100


class ImageFolder(FileData):
    """Images in folders, one folder per class.

    Either ``root/train/<class>/*`` and ``root/test/<class>/*`` (or ``root/val/<class>/*``,
    ImageNet's layout), or ``root/<class>/*`` without an official test set. The arguments are those
    of :class:`~datamodules.filedata.FileData`.
    """

    layout = "expected: root/train/<class>/*.jpg and root/test/<class>/*.jpg, or root/<class>/*.jpg"
    source_argument = "root"

    def scan(self) -> Listing:
        """Find the files.

        Raises:
            FileNotFoundError: The folder is missing or has another layout.
            ValueError: A class has no image, or the test set has a class that the training set
                lacks.
        """
        train, test = self._parts()
        files, classes = _by_class(train, self.layout)
        if test is None:
            return Listing(files, classes, len(files))
        test_files, test_classes = _by_class(test, self.layout)
        if unknown := sorted(set(test_classes) - set(classes)):
            raise ValueError(f"{test} has the class {unknown[0]!r}, which {train} does not have")
        return Listing(files + test_files, classes + test_classes, len(files))

    def _parts(self) -> tuple[Path, Path | None]:
        """Return the folders of training and of test images."""
        train = self.root / "train"
        if not train.is_dir():
            return self.root, None
        tests = [part for part in (self.root / "test", self.root / "val") if part.is_dir()]
        return train, tests[0] if tests else None


class CIFAR100Folder(ImageFolder):
    """CIFAR-100 as a folder of images, ``root/train/<class>/*`` and ``root/test/<class>/*``.

    It takes the place of :class:`~datamodules.torchvision_sets.CIFAR100` in a configuration: the
    folders bear the published names of the 100 classes, which are numbered as there.

    Args:
        root: The folder.
        superclasses: Predict the 20 superclasses; the 100 classes are then the subclasses that
            :class:`~datamodules.partition.slices.ConceptDrift` divides.
        options: Other arguments of :class:`~datamodules.filedata.FileData`.
    """

    default_mean = (0.5074, 0.4867, 0.4411)
    default_std = (0.2011, 0.1987, 0.2025)
    layout = "expected: root/{train,test}/<class>/*.png with CIFAR-100's 100 classes, as beaver"

    def __init__(self, root: str, superclasses: bool = False, **options: Any) -> None:
        super().__init__(root, **options)
        self.coarse = superclasses

    @cached_property
    def parents(self) -> dict[str, str]:
        """The superclass of each class; empty if the classes themselves are predicted."""
        if not self.coarse:
            return {}
        return {name: parent for parent, names in CIFAR100.items() for name in names.split()}


class DomainFolder(FileData):
    """Images in ``root/<domain>/<class>/*``; every domain has all classes, no official test set.

    It reads any data set with this layout (PACS, Office, DomainNet, ...). The arguments are those
    of :class:`~datamodules.filedata.FileData`.
    """

    layout = "expected: root/<domain>/<class>/*.jpg"
    source_argument = "root"

    def scan(self) -> Listing:
        """Find the files.

        Raises:
            FileNotFoundError: The folder is missing or has another layout.
            ValueError: A class has no image in some domain.
        """
        files: list[str] = []
        classes: list[str] = []
        domains: list[str] = []
        for domain in subfolders(self.root, self.layout):
            images, names = _by_class(domain, self.layout)
            if classes and (lacking := sorted(set(classes) ^ set(names))):
                raise ValueError(
                    f"the class {lacking[0]!r} is missing in some domain of {self.root}"
                )
            files += images
            classes += names
            domains += [domain.name] * len(images)
        return Listing(files, classes, len(files), domains)


class PACS(DomainFolder):
    """9,991 pictures in 4 styles (art painting, cartoon, photo, sketch), 7 classes, 227x227 pixels.

    Source: Li et al., "Deeper, broader and artier domain generalization", ICCV 2017. The arguments
    are those of :class:`~datamodules.filedata.FileData`; at full size the set takes 1.4 GiB.
    """

    layout = (
        "PACS is linked from the authors' page, dali-dl.github.io/project_iccv2017.html; expected: "
        "root/{art_painting,cartoon,photo,sketch}/<class>/*.jpg"
    )


def _by_class(folder: Path, layout: str) -> tuple[list[str], list[str]]:
    """List all files in a folder of classes, and the class of each."""
    files: list[str] = []
    classes: list[str] = []
    nested: list[str] = []
    for subfolder in subfolders(folder, layout):
        images = image_files(subfolder)
        files += images
        classes += [subfolder.name] * len(images)
        # A single folder, as Tiny ImageNet has in each class, is no sign of another layout.
        nested += [subfolder.name] if len({*map(os.path.dirname, images)}) > 1 else []
    if nested:
        warnings.warn(
            f"{folder / nested[0]} has images in several folders, which are all of the class "
            f"{nested[0]!r}; {layout}",
            stacklevel=2,
        )
    return files, classes
