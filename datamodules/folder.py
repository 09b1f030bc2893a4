"""Any folder of images, with one folder per class, or one per domain and class."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from datamodules.filedata import FileData, Listing
from datamodules.finding import HIDDEN, existing_folder, folders_of, image_files, note_images
from datamodules.record import Notes
from datamodules.superclasses import CIFAR100
from datamodules.targets import plain_name
from pfl.core.places import Place


class ImageFolder(FileData):
    """Images in folders, one folder per class.

    Either ``root/train/<class>/*`` and ``root/test/<class>/*`` (or ``root/val/<class>/*``,
    ImageNet's layout), or ``root/<class>/*`` without an official test set. A class may be empty.
    The arguments are those of :class:`~datamodules.filedata.FileData`.
    """

    layout = "expected: root/train/<class>/*.jpg and root/test/<class>/*.jpg, or root/<class>/*.jpg"
    source_argument = "root"

    def scan(self) -> Listing:
        """Find the files.

        Raises:
            FileNotFoundError: The folder is missing or has another layout.
            ValueError: The test set has a class that the training set lacks.
        """
        found = _Found(self.layout)
        for place, part in enumerate(found.parts(self.root)):
            before = found.known
            found.add(part, "", official=place > 0)
            if place and (unknown := sorted(found.known - before)):
                raise ValueError(
                    f"{part} has the class {unknown[0]!r}, which the training images do not have"
                )
        return found.listing()


class CIFAR100Folder(ImageFolder):
    """CIFAR-100 as a folder of images, ``root/train/<class>/*`` and ``root/test/<class>/*``.

    It replaces :class:`~datamodules.torchvision_sets.CIFAR100` in a configuration: the folders have
    the published names of the 100 classes, with the same numbers.

    Args:
        root: The folder.
        superclasses: Predict the 20 superclasses; the 100 classes are then the subclasses that
            :class:`~datamodules.partition.slices.ConceptDrift` divides.
        options: Other arguments of :class:`~datamodules.filedata.FileData`.
    """

    default_mean = (0.5074, 0.4867, 0.4411)
    default_std = (0.2011, 0.1987, 0.2025)
    layout = "expected: root/{train,test}/<class>/*.png with CIFAR-100's 100 classes, as beaver"

    def __init__(
        self, root: Annotated[str, Place()], superclasses: bool = False, **options: Any
    ) -> None:
        super().__init__(root, **options)
        self.coarse = superclasses

    @cached_property
    def parents(self) -> dict[str, str]:
        """The superclass of each class; empty if the classes themselves are predicted."""
        if not self.coarse:
            return {}
        return {name: parent for parent, names in CIFAR100.items() for name in names.split()}


class DomainFolder(FileData):
    """Images in ``root/<domain>/<class>/*``; a domain may lack classes.

    The classes are those of all domains. Each domain may have an official test set, in
    ``root/<domain>/train/<class>/*`` and ``root/<domain>/test/<class>/*``, or all together, in
    ``root/train/<domain>/<class>/*`` and ``root/test/<domain>/<class>/*``. It reads any data set
    with this layout (PACS, Office, DomainNet, ...). The arguments are those of
    :class:`~datamodules.filedata.FileData`.
    """

    layout = "expected: root/<domain>/<class>/*.jpg"
    source_argument = "root"

    def scan(self) -> Listing:
        """Find the files.

        Raises:
            FileNotFoundError: The folder is missing or has another layout.
        """
        found = _Found(self.layout)
        for place, part in enumerate(found.parts(self.root)):
            for domain in folders_of(part, self.layout, found.notes):
                for inner, folder in enumerate(found.parts(domain)):
                    found.add(folder, plain_name(domain.name), official=place + inner > 0)
        return found.listing()


class PACS(DomainFolder):
    """9,991 pictures in 4 styles (art painting, cartoon, photo, sketch), 7 classes, 227x227 pixels.

    Source: Li et al., "Deeper, broader and artier domain generalization", ICCV 2017. The arguments
    are those of :class:`~datamodules.filedata.FileData`; at full size the set takes 1.4 GiB.
    """

    layout = (
        "PACS is linked from the authors' page, dali-dl.github.io/project_iccv2017.html; expected: "
        "root/{art_painting,cartoon,photo,sketch}/<class>/*.jpg"
    )


# Names of the folders of official splits, in several languages.
_TRAIN = (
    "train training trn entrainement entraînement apprentissage entrenamiento addestramento treino"
)
_TEST = "test testing tst tests prueba pruebas teste testes testfall testset"
_VAL = "val valid validation validate dev validierung validación validacion validazione validação"
_SPLITS = {
    name: split
    for split, names in (("train", _TRAIN), ("test", _TEST), ("val", _VAL))
    for name in names.split()
}


class _Found:
    """The files found so far, with official training and test files apart."""

    def __init__(self, layout: str) -> None:
        self._layout = layout
        # (file, class, domain) of training and test files.
        self._files: tuple[list[tuple[str, str, str]], ...] = ([], [])
        self.notes = Notes()
        self.known: frozenset[str] = frozenset()

    def parts(self, folder: Path) -> list[Path]:
        """Return the folders of training and test images, or the folder itself without splits.

        Raises:
            ValueError: A split is beside classes, or there are both validation and test images.
        """
        if not folder.is_dir():
            return [folder]
        splits = self._splits(folder)
        if "train" not in splits:
            return [folder]
        used = [splits.pop("train"), *splits.values()]
        beside = [one for one in sorted(folder.iterdir()) if one not in used]
        beside = [one for one in beside if not one.name.startswith(HIDDEN)]
        self.notes.left_out += [(str(one), "beside train") for one in beside]
        parts = [[str(one) for one in beside if one.is_file()]]
        parts += [image_files(one) for one in beside if one.is_dir()]
        for files in parts:
            why = "lie beside the folders of splits, and are not read: move them into one"
            note_images(files, why, self.notes)
        if len(used) > 1 and (fact := f"test images: {used[1].name}") not in self.notes.facts:
            self.notes.facts.append(fact)
            self.notes.validation = used[1].name if "val" in splits else ""
        return used

    def _splits(self, folder: Path) -> dict[str, Path]:
        """Return the folders in a folder that are named as splits are.

        Raises:
            ValueError: They are not of training images, and perhaps of validation or test images.
        """
        inner = sorted(path for path in folder.iterdir() if path.is_dir())
        splits: dict[str, Path] = {}
        for path in inner:
            if (split := _SPLITS.get(plain_name(path.name).casefold())) is None:
                continue
            if split in splits:
                raise ValueError(f"{splits[split]} and {path} are both folders of {split} images")
            splits[split] = path
        alone = len(splits) == len(inner) > 1 or ("test" in splits and len(inner) > 1)
        if "train" not in splits and alone:
            shown = ", ".join(path.name for path in splits.values())
            raise ValueError(
                f"{folder} has {shown}, the name of a split, but no train; {self._layout}"
            )
        if len(splits) == 3:
            raise ValueError(
                f"{folder} has train, {splits['val'].name} and {splits['test'].name}: validation "
                "images are drawn from the training images (val_fraction), so move those of "
                f"{splits['val'].name} into {splits['train'].name}, or out of it"
            )
        return splits

    def add(self, folder: Path, domain: str, official: bool) -> None:
        """Add the files in a folder of classes; a domain's class may be empty."""
        inside = sorted(existing_folder(folder, self._layout).iterdir())
        inside = [path for path in inside if not path.name.startswith(".")]
        loose = [str(path) for path in inside if path.is_file()]
        notes = self.notes
        notes.left_out += [(file, "not in a class's folder") for file in loose]
        why = "lie beside the folders of the classes, and have no class: move them"
        note_images(loose, why, notes)
        if domain and not inside:
            notes.left_out.append((str(folder), "empty"))
            notes.unread.append(f"{folder} is empty: this client has no samples")
            return
        for subfolder in folders_of(folder, self._layout, notes):
            images, name = image_files(subfolder, notes), plain_name(subfolder.name)
            self.known |= {name}
            self._files[official].extend((file, name, domain) for file in images)
            # A single folder in each class, as in Tiny ImageNet, is not another layout.
            if len({*map(os.path.dirname, images)}) > 1:
                notes.nested.append(str(subfolder))

    def listing(self) -> Listing:
        """Return all files, training files first."""
        files = [*self._files[0], *self._files[1]]
        names, classes, domains = zip(*files, strict=True) if files else ((), (), ())
        return Listing(
            names,
            classes,
            len(self._files[0]),
            domains if any(domains) else (),
            sorted(self.known - {*classes}),
            self.notes,
        )
