"""Any folder of images, one folder a class."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from datamodules.base import FederatedDataModule
from datamodules.files import Shape, decode, decode_once, files_digest, image_files, subfolders
from datamodules.targets import Catalogue, Ints, Targets


@dataclass(frozen=True)
class Listing:
    """The files of a data set, official training files first.

    Attributes:
        files: One a sample.
        classes: The name of each file's class.
        num_train: Number of official training files; all, where there is no official test set.
        domains: The name of each file's domain, where the data set has domains.
    """

    files: Sequence[str]
    classes: Sequence[str]
    num_train: int
    domains: Sequence[str] = ()


class ImageFolder(FederatedDataModule):
    """Images in folders, one a class.

    Either ``root/train/<class>/*`` and ``root/test/<class>/*`` (or ``root/val/<class>/*``, as
    ImageNet comes), or ``root/<class>/*`` without an official test set. Classes are numbered in the
    order of their names.

    Args:
        root: The folder.
        image_size: Height and width: the largest centred square of each image, resized. ``None``
            leaves the images as they are; they must then all have one size.
        grayscale: One channel instead of three.
        superclasses: A CSV file with the columns ``class`` and ``superclass``: the folders become
            subclasses, the superclasses are what the model predicts.
        cache_dir: A folder for the decoded images (one byte a pixel and channel, one file for each
            combination of files and size), decoded once and memory-mapped from then on; sets larger
            than memory need it. ``None`` decodes in memory each time.
        common: Arguments of :class:`~datamodules.base.FederatedDataModule`.
    """

    layout = (
        "expected are root/train/<class>/*.jpg and root/test/<class>/*.jpg, or root/<class>/*.jpg"
    )

    def __init__(
        self,
        root: str,
        image_size: int | None = None,
        grayscale: bool = False,
        superclasses: str | None = None,
        cache_dir: str | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.root = Path(root).expanduser()
        self.shape = Shape(image_size, grayscale)
        self.superclasses = superclasses
        self.cache_dir = None if cache_dir is None else Path(cache_dir).expanduser()

    def scan(self) -> Listing:
        """Find the files.

        Raises:
            FileNotFoundError: The folder is missing or looks otherwise.
            ValueError: A class has no image, or the test set has a class of its own.
        """
        train, test = self._parts()
        files: list[str] = []
        classes: list[str] = []
        num_train = 0
        for part in (train, test) if test else (train,):
            for folder in subfolders(part, self.layout):
                if folder.name not in self.folder_names:
                    raise ValueError(f"{folder} is a class that {train} does not have")
                found = image_files(folder)
                files += found
                classes += [folder.name] * len(found)
            num_train = num_train or len(files)
        return Listing(files, classes, num_train)

    @cached_property
    def folder_names(self) -> tuple[str, ...]:
        """Names of the class folders."""
        return tuple(folder.name for folder in subfolders(self._parts()[0], self.layout))

    @cached_property
    def listing(self) -> Listing:
        """The files, found once."""
        return self.scan()

    @cached_property
    def hierarchy(self) -> dict[str, str]:
        """The superclass of each folder; empty where folders are classes.

        Raises:
            FileNotFoundError: There is no such CSV file.
            ValueError: It lacks a column or a folder.
        """
        return {} if self.superclasses is None else _hierarchy(self.superclasses, self.folder_names)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(sorted(set(self.hierarchy.values()))) or self.folder_names

    @cached_property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return self.shape.of(self.first_image())

    def first_image(self) -> str:
        """Some image, found without listing all."""
        return image_files(subfolders(self._parts()[0], self.layout)[0])[0]

    def prepare_data(self) -> None:
        """Decode into the cache, where there is one and it is not there yet."""
        if self.cache_dir is not None:
            self.images(np.empty(0, np.int64))

    def catalogue(self) -> Catalogue:
        """Labels and the like of all samples."""
        listing, hierarchy = self.listing, self.hierarchy
        targets = Targets(
            _numbers([hierarchy.get(c, c) for c in listing.classes], self.class_names),
            _numbers(listing.classes, self.folder_names) if hierarchy else None,
        )
        return Catalogue(
            targets,
            listing.num_train,
            self.class_names,
            self.folder_names if hierarchy else (),
            digest=files_digest(self.root, listing.files),
        )

    def images(self, ids: Ints) -> tuple[Tensor, Ints]:
        """The pixels of at least the samples ``ids``, which ascend."""
        files = self.listing.files
        if self.cache_dir is None:
            wanted = [files[i] for i in ids]
            return decode(wanted, self.shape), np.arange(len(ids), dtype=np.int64)
        state = files_digest(self.root, files, stamps=True)
        cache = self.cache_dir / f"{type(self).__name__.lower()}-{state}"
        return decode_once(files, self.shape, cache), ids

    def _parts(self) -> tuple[Path, Path | None]:
        """The folders of training and of test images."""
        if not self.root.is_dir():
            raise FileNotFoundError(f"there is no folder {self.root}; {self.layout}")
        train = self.root / "train"
        if not train.is_dir():
            return self.root, None
        tests = [part for part in (self.root / "test", self.root / "val") if part.is_dir()]
        return train, tests[0] if tests else None


def _numbers(names: Sequence[str], order: Sequence[str]) -> Ints:
    number = {name: i for i, name in enumerate(order)}
    return np.array([number[name] for name in names], np.int64)


def _hierarchy(path: str, folders: Sequence[str]) -> dict[str, str]:
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file} (superclasses)")
    with file.open(newline="", encoding="utf-8") as lines:
        rows = csv.DictReader(lines)
        if not {"class", "superclass"} <= set(rows.fieldnames or ()):
            raise ValueError(f"{file} needs the columns class and superclass")
        known = {row["class"]: row["superclass"] for row in rows}
    if missing := [name for name in folders if name not in known]:
        raise ValueError(f"{file} gives no superclass for {missing[0]!r}")
    return {name: known[name] for name in folders}
