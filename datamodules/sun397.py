"""SUN397: scenes."""

from __future__ import annotations

from typing import Any

from datamodules.filedata import FileData, Listing
from datamodules.files import image_files
from pfl.core.checks import at_least_one


class SUN397(FileData):
    """108,754 photographs of 397 kinds of scenes, in many sizes; no official test set used.

    Classes are named as in the published ``ClassName.txt`` without the leading letter:
    ``abbey``, ``apartment_building/outdoor``. pFedVEM predicts the 3 superclasses ``indoor``,
    ``outdoor_natural``, ``outdoor_man-made`` of the published hierarchy, with 50 classes each and
    100 images a class: a ``superclasses`` file of these 150 classes, ``images_per_class: 100``,
    ``test_fraction: 0.2``.

    Source: Xiao et al., "SUN database: large-scale scene recognition from abbey to zoo", CVPR 2010.

    Args:
        root: The folder that holds ``SUN397/ClassName.txt``.
        image_size: Height and width: the largest centred square of each image, resized. At 64 the
            set takes 1.2 GiB.
        images_per_class: Use only the first so many images of each class.
        download: Fetch the set there through torchvision, if it is not there yet (37 GB).
        common: Further arguments of :class:`~datamodules.filedata.FileData` and
            :class:`~datamodules.base.FederatedDataModule`.

    Raises:
        ValueError: ``images_per_class`` is smaller than 1.
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
        **common: Any,
    ) -> None:
        super().__init__(root, image_size=image_size, **common)
        at_least_one(images_per_class=images_per_class)
        self.images_per_class = images_per_class
        self.download = download

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
        for line in names.read_text(encoding="utf-8").split():
            found = image_files(folder / line.lstrip("/"))[: self.images_per_class]
            files += found
            # "/a/apartment_building/outdoor" is the class "apartment_building/outdoor".
            classes += [line.lstrip("/").split("/", 1)[1]] * len(found)
        return Listing(files, classes, len(files))
