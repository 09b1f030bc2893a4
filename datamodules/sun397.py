"""SUN397: scenes."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from datamodules.filedata import FileData, Listing
from datamodules.files import image_files
from pfl.core.checks import at_least_one


class SUN397(FileData):
    """108,754 photographs of 397 kinds of scenes, in many sizes; no official test set used.

    Classes are named as in the published ``ClassName.txt`` without the leading letter:
    ``abbey``, ``apartment_building/outdoor``. pFedVEM predicts the 3 superclasses ``indoor``,
    ``outdoor_natural``, ``outdoor_man-made`` of the published hierarchy, with 50 classes each and
    100 images a class: ``images_per_class: 100``, ``test_fraction: 0.2``, and either a
    ``superclasses`` file of these 150 classes, or ``hierarchy``, from which they are drawn.

    Source: Xiao et al., "SUN database: large-scale scene recognition from abbey to zoo", CVPR 2010.

    Args:
        root: The folder that holds ``SUN397/ClassName.txt``.
        image_size: Height and width: the largest centred square of each image, resized. At 64 the
            set takes 1.2 GiB.
        images_per_class: Use only so many images of each class: the first, or with a ``hierarchy``
            random ones.
        hierarchy: The published three-level hierarchy (``three_levels.xlsx``), its sheet ``SUN397``
            saved as CSV. Of the classes that belong to one superclass alone so many of each are
            drawn as ``classes_per_superclass`` says; ``split_seed`` decides on classes and images.
        classes_per_superclass: Drawn classes of each superclass.
        download: Fetch the set there through torchvision, if it is not there yet (37 GB).
        common: Further arguments of :class:`~datamodules.filedata.FileData` and
            :class:`~datamodules.base.FederatedDataModule`.

    Raises:
        ValueError: A number is smaller than 1, or there are both ``superclasses`` and
            ``hierarchy``.
    """

    layout = (
        "SUN397 is at vision.princeton.edu/projects/2010/SUN (SUN397.tar.gz; or say download: "
        "true); expected are root/SUN397/ClassName.txt and root/SUN397/<letter>/<class>/sun_*.jpg"
    )

    def __init__(
        self,
        root: str = "data",
        image_size: int = 64,
        images_per_class: int | None = None,
        download: bool = False,
        hierarchy: str | None = None,
        classes_per_superclass: int = 50,
        **common: Any,
    ) -> None:
        super().__init__(root, image_size=image_size, **common)
        at_least_one(
            images_per_class=images_per_class, classes_per_superclass=classes_per_superclass
        )
        if hierarchy is not None and self.superclasses is not None:
            raise ValueError("superclasses and hierarchy both name classes: give one of them")
        self.hierarchy = hierarchy
        self.classes_per_superclass = classes_per_superclass
        self.images_per_class = images_per_class
        self.download = download

    @cached_property
    def parents(self) -> dict[str, str]:
        """The superclass of each class; drawn, where there is a hierarchy."""
        if self.hierarchy is None:
            return super().parents
        kinds = read_hierarchy(self.hierarchy)
        return draw_classes(kinds, self.classes_per_superclass, self.rule.rng("classes"))

    def scan(self) -> Listing:
        """Find the files.

        Raises:
            FileNotFoundError: The folder is missing or has another layout.
            ValueError: A class has no image.
        """
        folder = self.root / "SUN397"
        names = folder / "ClassName.txt"
        if self.download and not names.is_file():
            import torchvision

            torchvision.datasets.SUN397(str(self.root), download=True)
        if not names.is_file():
            raise FileNotFoundError(f"there is no file {names}; {self.layout}")
        files: list[str] = []
        classes: list[str] = []
        rng = self.rule.rng("images")
        for line in names.read_text(encoding="utf-8").split():
            found = image_files(folder / line.lstrip("/"))
            if self.hierarchy is not None:
                found = [found[place] for place in rng.permutation(len(found))]
            found = found[: self.images_per_class]
            files += found
            # "/a/apartment_building/outdoor" is the class "apartment_building/outdoor".
            classes += [line.lstrip("/").split("/", 1)[1]] * len(found)
        return Listing(files, classes, len(files))


# Columns of the hierarchy's first level, and the superclasses' names here.
_LEVELS = {
    "indoor": "indoor",
    "outdoor, natural": "outdoor_natural",
    "outdoor, man-made": "outdoor_man-made",
}


def read_hierarchy(path: str) -> dict[str, str]:
    """Return the superclass of each class that belongs to one alone, from the published table.

    Args:
        path: A CSV file with the columns ``category`` (as ``/a/abbey``), ``indoor``, ``outdoor,
            natural`` and ``outdoor, man-made`` (0 or 1), in its first or second line.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: It lacks a column.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}, given as hierarchy")
    with file.open(newline="", encoding="utf-8-sig") as lines:
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines)]
    wanted = {"category", *_LEVELS}
    start = next((n for n, row in enumerate(rows[:2]) if wanted <= {*row}), None)
    if start is None:
        raise ValueError(
            f"{file} needs the columns {', '.join(sorted(wanted))}: save as CSV the "
            "sheet SUN397 of three_levels.xlsx"
        )
    kinds = {}
    for row in rows[start + 1 :]:
        cells = dict(zip(rows[start], row, strict=False))
        members = [kind for name, kind in _LEVELS.items() if cells.get(name) in ("1", "1.0")]
        if len(members) == 1:
            kinds[cells["category"].lstrip("/").split("/", 1)[1]] = members[0]
    return kinds


def draw_classes(kinds: Mapping[str, str], count: int, rng: np.random.Generator) -> dict[str, str]:
    """Draw ``count`` classes of each superclass.

    Raises:
        ValueError: A superclass has fewer.
    """
    drawn: dict[str, str] = {}
    for kind in _LEVELS.values():
        members = sorted(name for name, own in kinds.items() if own == kind)
        if len(members) < count:
            raise ValueError(
                f"classes_per_superclass={count}, but {kind} has {len(members)} classes of its own"
            )
        drawn |= {members[place]: kind for place in rng.permutation(len(members))[:count]}
    return drawn
