"""Images and the masks of their pixels, in two folders."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from datamodules.checks import require
from datamodules.files import decode, for_each_file
from datamodules.finding import existing_folder, image_files
from datamodules.partition.partitioner import Partitioner
from datamodules.pictures import Shape, UnreadableError, opened, turn
from datamodules.record import Notes, Pictures, Record
from datamodules.targets import plain_name
from datamodules.tasks.named import AnyTask
from datamodules.tensors import TensorData
from pfl.core.ranges import AtLeastOne

# What the names of masks, or of images, may have in addition.
_ADDED = re.compile(r"[_-](mask|seg|segmentation|label|labels|gt|image|img)$", re.IGNORECASE)
_LOSSY = {".jpg", ".jpeg", ".webp"}
_SPLITS = ("train", "test")


class PairFolder(TensorData):
    """Images and their masks, in two folders with the same names: a class for each pixel.

    A mask has the path of its image, ``masks/a/1.png`` for ``images/a/1.jpg``; its name may end
    with ``_mask`` or ``_seg``. The folders directly below, such as ``a``, are the natural clients;
    above them there may be ``train`` and ``test``, for official test samples. The pixels of a mask
    are numbers of classes: of a palette image they are the places in its palette. Image and mask
    are cropped, resized and augmented alike.

    Args:
        images: The folder of images.
        masks: The folder of masks.
        num_clients: Number of clients, N; if not given, one for each folder.
        partition: As in :class:`FederatedDataModule`; ``ByDomain`` if not given.
        task: As in :class:`TensorData`; give :class:`Segmentation` for its options, such as the
            number of classes.
        values: The numbers in masks, in the order of classes, such as ``[0, 255]``; by default they
            are the classes.
        image_size: As in :class:`FileData`; classes of a resized mask are those of the nearest
            pixels.
        grayscale: Use one channel of the images instead of three.
        options: As in :class:`FederatedDataModule`.

    Raises:
        ValueError: An image has no mask, or a mask cannot be read, is not of its image's size, or
            has colours or numbers that are no classes; the message names the file.
        FileNotFoundError: A folder does not exist.
    """

    source_argument = None

    def __init__(
        self,
        images: str,
        masks: str,
        num_clients: int | None = None,
        partition: Partitioner | str | None = None,
        *,
        task: AnyTask = "segmentation",
        values: Sequence[int] | None = None,
        image_size: AtLeastOne | None = None,
        grayscale: bool = False,
        **options: Any,
    ) -> None:
        super().__init__({}, num_clients, partition, task=task, **options)
        self.images, self.masks = Path(images).expanduser(), Path(masks).expanduser()
        self.values = values
        self.shape = Shape(image_size, grayscale)
        self._files: list[str] = []
        self._notes = Notes()
        self._seen = Pictures()
        # A file in which a number has a colour.
        self._colours: dict[int, dict[tuple[int, ...], str]] = {}

    def read(self) -> Mapping[str, Any]:
        """Read images, masks and clients."""
        notes = self._notes = Notes()
        images, masks = (_by_name(folder, notes) for folder in (self.images, self.masks))
        if lost := [file for name, file in images.items() if name not in masks]:
            name = os.path.relpath(os.path.splitext(lost[0])[0], self.images)
            raise ValueError(
                f"{len(lost)} of {len(images)} images have no mask, first {lost[0]}: expected "
                f"{self.masks / name}.png"
            )
        if unused := [file for name, file in masks.items() if name not in images]:
            notes.left_out += [(file, "a mask without an image") for file in unused]
            notes.unread.append(
                f"{len(unused)} masks have no image (first {unused[0]}): add their images, or "
                "remove them"
            )
        # Official test samples come last.
        names = sorted(images, key=lambda name: (name[0] == "test", name))
        files = [images[name] for name in names]
        self._files = files
        pixels, self._seen = decode(files, self.shape)
        y = self._decoded(files, [masks[name] for name in names], pixels.shape[2:])
        found: dict[str, Any] = {"x": pixels, "y": y}
        clients = [name[1] for name in names]
        if all(clients):
            found["client"] = clients
        if 0 < (tests := sum(name[0] == "test" for name in names)) < len(names):
            found["num_train"] = len(names) - tests
        return found

    def record(self) -> Record:
        """Return images and masks, and the masks that are not used."""
        known, y = super().record(), self._tensors.y
        share = [f"{float((y == c).float().mean()):.1%}" for c in range(self.outputs)]
        goal = self._goal()
        return replace(
            known,
            samples=f"{len(y):,} images with masks",
            source=str(self.images),
            notes=replace(
                self._notes,
                facts=[*known.notes.facts, f"pixels of class 0, 1, ...: {', '.join(share)}"],
            ),
            pictures=self._seen,
            goal=replace(goal, values="" if self.values else "values", colours=self._two_colours()),
            place=lambda row: self._files[row],
            shown=lambda row: self._files[row],
        )

    def _two_colours(self) -> tuple[str, ...]:
        """Return a line for each number that two palettes show in different colours."""
        lines = []
        for number, files in sorted(self._colours.items()):
            (first, one), *others = files.items()
            if others:
                lines.append(f"{number} is {first} in {one}, but {others[0][0]} in {others[0][1]}")
        return tuple(lines)

    def _decoded(self, files: Sequence[str], masks: Sequence[str], form: Sequence[int]) -> Tensor:
        """Return (n, H, W) masks of classes, as bytes."""
        found = np.empty((len(masks), *form), np.uint8)

        def fill(row: int) -> None:
            found[row] = self._mask(files[row], masks[row])

        text = f"Decoding {len(masks):,} masks"
        if reasons := for_each_file(masks, text, fill):
            (first, why), *more = reasons.items()
            others = f"; and {len(more)} more masks" if more else ""
            raise ValueError(f"cannot use the mask {first}: {why}{others}")
        return torch.from_numpy(found)

    def _mask(self, image: str, mask: str) -> NDArray[np.uint8]:
        (size, turned), suffix = (
            opened(image, lambda one: (one.size, turn(one))),
            os.path.splitext(mask)[1].lower(),
        )

        def read(found: Image.Image) -> NDArray[np.uint8]:
            require(
                suffix not in _LOSSY,
                f"{suffix} changes the numbers of pixels where it saves space: save it as .png",
            )
            require(
                found.mode in ("1", "L", "P", "I", "I;16"),
                f"its pixels are {found.mode} colours, not numbers of classes: save it as an image "
                "with a palette, or in grey",
            )
            require(
                found.size == size,
                f"it has {found.width}x{found.height} pixels, and its image {image} has "
                f"{size[0]}x{size[1]}",
            )
            require(
                turn(found) == turned,
                f"its EXIF orientation is not that of its image {image}: save both upright",
            )
            if found.mode == "P":
                self._note(found, mask)
            upright, _ = self.shape.upright(found)
            numbers = np.asarray(self.shape.resized(upright, Image.Resampling.NEAREST))
            return self._classes(numbers.astype(np.int64))

        try:
            return opened(mask, read)
        except UnreadableError as error:
            raise UnreadableError(mask, error.why) from error

    def _note(self, mask: Image.Image, file: str) -> None:
        """Note the colours that the numbers of a mask have in its palette."""
        palette = mask.getpalette() or []
        for number in np.unique(np.asarray(mask)).tolist():
            colour = tuple(palette[3 * number : 3 * number + 3])
            self._colours.setdefault(number, {}).setdefault(colour, file)

    def _classes(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        present = np.unique(numbers)
        if self.values is not None:
            other = [int(one) for one in present if one not in self.values]
            require(not other, f"it has the number {other[:1]}, which is not among values")
            table = {value: place for place, value in enumerate(self.values)}
            classes: NDArray[np.uint8] = np.vectorize(table.get, otypes=[np.uint8])(numbers)
            return classes
        outside = [int(one) for one in present if not 0 <= one < 256]
        require(not outside, f"it has the number {outside[:1]}, and classes are at most 255")
        return numbers.astype(np.uint8)


def _by_name(folder: Path, notes: Notes) -> dict[tuple[str, str, str], str]:
    """Return the image files in a folder by split, client and name.

    Raises:
        FileNotFoundError: There is no folder, or no image in it.
        ValueError: Two files have the same name.
    """
    found: dict[tuple[str, str, str], str] = {}
    for file in image_files(existing_folder(folder), notes):
        *parents, last = Path(os.path.relpath(file, folder)).parts
        split = parents.pop(0).lower() if parents and parents[0].lower() in _SPLITS else ""
        client = plain_name(parents[0]) if parents else ""
        stem = plain_name(_ADDED.sub("", os.path.splitext(last)[0]))
        key = (split, client, "/".join([*map(plain_name, parents[1:]), stem]))
        require(key not in found, f"{found.get(key)} and {file} have the same name")
        found[key] = file
    if not found:
        raise FileNotFoundError(f"the folder {folder} contains no image")
    return found
