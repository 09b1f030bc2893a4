"""Pictures: one is decoded here, wherever it lies, and what was seen of it is noted."""

from __future__ import annotations

import io
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from datamodules import formats
from datamodules.checks import require
from datamodules.record import Pictures

_BROKEN = (OSError, SyntaxError, ValueError, KeyError, TypeError, EOFError)
# EXIF tag of the orientation.
_ORIENTATION = 0x0112
T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """Common format of the decoded images.

    Args:
        size: Height and width to which the largest centred square of each image is resized.
            ``None`` keeps the size, which must then be the same for all images.
        grayscale: Use one channel instead of three.
        over_white: Draw transparent images over white instead of their hidden colours, often black.
        exif_orientation: Rotate images by their EXIF orientation.
    """

    size: int | None = None
    grayscale: bool = False
    over_white: bool = True
    exif_orientation: bool = True

    def of(self, first: str) -> tuple[int, int, int]:
        """Return channels, height and width of the decoded images, given one of them."""
        channels = 1 if self.grayscale else 3
        if self.size is not None:
            return channels, self.size, self.size
        height, width = opened(first, lambda image: self.upright(image)[0].size[::-1])
        return channels, height, width

    def drawn(self, image: Image.Image) -> tuple[Image.Image, list[str]]:
        """Return an image in the common format, and what kind of image it was, in words.

        Raises:
            ValueError: Its values would be clipped or cut.
        """
        require(
            image.mode[0] not in "IF",
            f"its pixels are {image.mode} instead of bytes, so that values would be clipped at "
            "255; rescale its values and save it with 8 bits",
        )
        # Pillow would keep only the upper byte, which is 0 in many microscopy images.
        require(
            not re.search(";16[BLN]", str(getattr(image, "tile", ""))),
            "its pixels have 16 bits per channel; rescale its values and save it with 8",
        )
        kinds = [f"{image.mode} images"]
        image, turned = self.upright(image)
        kinds += ["images turned by their EXIF orientation"] if turned else []
        if self.over_white and _is_transparent(image):
            kinds.append("images with transparency, laid over white")
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        image = image.convert("L" if self.grayscale else "RGB")
        return self.resized(image, Image.Resampling.BILINEAR), kinds

    def pixels(self, image: Image.Image) -> tuple[NDArray[np.uint8], list[str]]:
        """Return an image as (C, H, W) bytes, and what kind of image it was, in words."""
        drawn, kinds = self.drawn(image)
        found = np.asarray(drawn, np.uint8)
        return (found[None] if self.grayscale else found.transpose(2, 0, 1)), kinds

    def resized(self, image: Image.Image, how: Image.Resampling) -> Image.Image:
        """Return the largest centred square of an image in the common size, if there is one."""
        if self.size is None:
            return image
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        square = image.crop((left, top, left + side, top + side))
        return square.resize((self.size, self.size), how)

    def upright(self, image: Image.Image) -> tuple[Image.Image, bool]:
        """Rotate an image by its EXIF orientation; also return whether it was rotated."""
        turned = self.exif_orientation and turn(image) in range(2, 9)
        return (ImageOps.exif_transpose(image), True) if turned else (image, False)


def turn(image: Image.Image) -> int:
    """Return the EXIF orientation of an image; 1 is upright."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    # Pillow raises many kinds of errors for unreadable metadata, which do not affect the image.
    except Exception:
        return 1


class Seen:
    """What is seen while images are decoded, one after the other or on several cores.

    Args:
        count: Number of images.
    """

    def __init__(self, count: int) -> None:
        self._kinds: list[str] = []
        self._frames: dict[str, int] = {}
        self._side, self._cut = np.zeros(count), np.zeros(count)

    def add(self, row: int, name: str, image: Image.Image, shape: Shape) -> NDArray[np.uint8]:
        """Return the (C, H, W) pixels of an image, and note what it is."""
        # The further images of a phone's MPO file are previews and depths.
        frames = 1 if image.format == "MPO" else int(getattr(image, "n_frames", 1))
        size = image.size
        pixels, kinds = shape.pixels(image)
        if frames > 1:
            self._frames[name] = frames
        self._kinds += kinds
        self._side[row] = min(size)
        if shape.size is not None:
            self._cut[row] = 1 - min(size) / max(size)
        return pixels

    def pictures(self, pixels: NDArray[np.uint8] | None = None) -> Pictures:
        """Return what was seen; with (n, C, H, W) pixels also what they hold."""
        frames = dict(sorted(self._frames.items()))
        seen = Pictures(Counter(self._kinds), side=self._side, cut=self._cut, frames=frames)
        return seen if pixels is None else seen.of(pixels)


def _is_transparent(image: Image.Image) -> bool:
    """Return ``True`` if an image has an alpha channel or a transparent colour."""
    return image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info


class UnreadableError(ValueError):
    """An image cannot be read, or not as it should be."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"cannot read the image {file} ({why}); replace or remove it")
        self.file = file
        self.why = why


def opened(file: str, read: Callable[[Image.Image], T], content: bytes | None = None) -> T:
    """Return what a function reads from an image file, or from its content.

    Raises:
        UnreadableError: The file is broken.
    """
    try:
        if content is None and not os.path.isfile(file):
            raise OSError("a link to nothing" if os.path.islink(file) else "not a regular file")
        with Image.open(file if content is None else io.BytesIO(content)) as image:
            return read(image)
    # Pillow raises any of these for a broken file, depending on the decoder.
    except (*_BROKEN, Image.DecompressionBombError) as error:
        raise UnreadableError(file, _why(file, content, error)) from error


def _why(file: str, content: bytes | None, error: Exception) -> str:
    """Return why an image cannot be read: what its content is, if that is no image."""
    if not isinstance(error, UnidentifiedImageError):
        return str(error)
    head = content if content is not None else Path(file).read_bytes()[: formats.HEAD]
    if not head:
        return "the file is empty"
    name = formats.name_of_bytes(head[: formats.HEAD])
    return formats.advice(name, file) if name else str(error)
