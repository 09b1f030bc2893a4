"""SUN397: photographs of scenes."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from datamodules.checks import existing, require
from datamodules.downloads import tidied
from datamodules.filedata import FileData, Listing
from datamodules.finding import image_files
from pfl.core.places import Place
from pfl.core.ranges import AtLeastOne

_PLACE = Place(
    "SUN397 is at vision.princeton.edu/projects/2010/SUN (SUN397.tar.gz; or set download: true); "
    "expected: root/SUN397/ClassName.txt and root/SUN397/<letter>/<class>/sun_*.jpg"
)


class SUN397(FileData):
    """108,754 photographs of 397 kinds of scenes, in many sizes; no official test set is used.

    Classes are named as in the published ``ClassName.txt`` without the leading letter: ``abbey``,
    ``apartment_building/outdoor``. pFedVEM predicts the 3 superclasses ``indoor``,
    ``outdoor_natural`` and ``outdoor_man-made`` of the published hierarchy, with 50 classes each
    and 100 images per class: ``images_per_class: 100``, ``test_fraction: 0.2``, and either a
    ``superclasses`` file of these 150 classes, or ``hierarchy`` to draw them from.

    Source: Xiao et al., "SUN database: large-scale scene recognition from abbey to zoo", CVPR 2010.

    Args:
        root: The folder that contains ``SUN397/ClassName.txt``.
        image_size: Height and width to which the largest centred square of each image is resized.
            At 64 the set takes 1.2 GiB.
        images_per_class: Maximum number of images of each class: the first ones, or random ones
            with ``hierarchy``.
        hierarchy: The sheet ``SUN397`` of the published three-level hierarchy
            (``three_levels.xlsx``), saved as CSV. ``classes_per_superclass`` classes of each
            superclass are drawn, among those that belong to one superclass only; ``split_seed``
            determines classes and images.
        classes_per_superclass: Number of classes to draw from each superclass.
        download: Let torchvision download the set into ``root`` if it is not there yet (37 GB).
        common: Further arguments of :class:`~datamodules.filedata.FileData` and
            :class:`~datamodules.base.FederatedDataModule`.

    Raises:
        ValueError: A number is smaller than 1, or both ``superclasses`` and ``hierarchy`` are
            given.
    """

    layout = _PLACE.hint

    def __init__(
        self,
        root: Annotated[str, _PLACE] = "data",
        image_size: AtLeastOne = 64,
        images_per_class: AtLeastOne | None = None,
        download: bool = False,
        hierarchy: str | None = None,
        classes_per_superclass: AtLeastOne = 50,
        **common: Any,
    ) -> None:
        super().__init__(root, image_size=image_size, **common)
        if hierarchy is not None and self.superclasses is not None:
            raise ValueError(
                "superclasses and hierarchy both define the classes: give only one of them"
            )
        self.hierarchy = hierarchy
        self.classes_per_superclass = classes_per_superclass
        self.images_per_class = images_per_class
        self.download = download

    @cached_property
    def parents(self) -> dict[str, str]:
        """The superclass of each class; with ``hierarchy``, of the drawn classes."""
        if self.hierarchy is None:
            return super().parents
        tree = read_hierarchy(self.hierarchy)
        return draw_classes(tree, self.classes_per_superclass, self.rule.rng("classes"))

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

            try:
                with tidied(self.root):
                    torchvision.datasets.SUN397(str(self.root), download=True)
            except (RuntimeError, OSError) as error:
                raise FileNotFoundError(f"SUN397 cannot be downloaded ({error})") from error
        existing(names, hint=self.layout)
        files: list[str] = []
        classes: list[str] = []
        rng = self.rule.rng("images")
        for line in names.read_text(encoding="utf-8").split():
            images = image_files(folder / line.lstrip("/"))
            require(bool(images), f"the folder {folder / line.lstrip('/')} contains no images")
            if self.hierarchy is not None:
                images = [images[place] for place in rng.permutation(len(images))]
            images = images[: self.images_per_class]
            files += images
            # "/a/apartment_building/outdoor" is the class "apartment_building/outdoor".
            classes += [line.lstrip("/").split("/", 1)[1]] * len(images)
        return Listing(files, classes, len(files))


# Columns of the hierarchy's first level, and their superclasses' names in this project.
_LEVELS = {
    "indoor": "indoor",
    "outdoor, natural": "outdoor_natural",
    "outdoor, man-made": "outdoor_man-made",
}


def read_hierarchy(path: str) -> dict[str, str]:
    """Read the superclass of each class with exactly one from the published table.

    Args:
        path: A CSV file with the columns ``category`` (such as ``/a/abbey``), ``indoor``,
            ``outdoor, natural`` and ``outdoor, man-made`` (0 or 1), named in its first or second
            line.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file lacks a column.
    """
    file = existing(path, "hierarchy")
    with file.open(newline="", encoding="utf-8-sig") as lines:
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines)]
    wanted = {"category", *_LEVELS}
    start = next((n for n, row in enumerate(rows[:2]) if wanted <= {*row}), None)
    if start is None:
        raise ValueError(
            f"{file} needs the columns {', '.join(sorted(wanted))}: save the sheet SUN397 of "
            "three_levels.xlsx as CSV"
        )
    tree = {}
    for row in rows[start + 1 :]:
        cells = dict(zip(rows[start], row, strict=False))
        marked = [parent for name, parent in _LEVELS.items() if cells.get(name) in ("1", "1.0")]
        if len(marked) == 1:
            tree[cells["category"].lstrip("/").split("/", 1)[1]] = marked[0]
    return tree


def draw_classes(tree: Mapping[str, str], count: int, rng: np.random.Generator) -> dict[str, str]:
    """Draw ``count`` classes from each superclass.

    Raises:
        ValueError: A superclass has fewer classes.
    """
    drawn: dict[str, str] = {}
    for parent in _LEVELS.values():
        members = sorted(name for name, above in tree.items() if above == parent)
        if len(members) < count:
            raise ValueError(
                f"classes_per_superclass={count}, but {parent} has only {len(members)}"
            )
        drawn |= {members[place]: parent for place in rng.permutation(len(members))[:count]}
    return drawn
