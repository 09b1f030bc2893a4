"""Image files: finding, decoding and caching them."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch import Tensor

from datamodules.checks import MEMORY_LIMIT, require
from pfl.core.checks import at_least_one
from pfl.disk.writing import written

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".webp", ".tif", ".tiff"})
_CHUNK = 64
T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """Common format of the decoded images.

    Args:
        size: Height and width to which the largest centred square of each image is resized.
            ``None`` changes nothing, and all images must then have the same size.
        grayscale: Use one channel instead of three.
    """

    size: int | None = None
    grayscale: bool = False

    def __post_init__(self) -> None:
        at_least_one(image_size=self.size)

    def of(self, first: str) -> tuple[int, int, int]:
        """Return channels, height and width of the decoded images, given one of them."""
        channels = 1 if self.grayscale else 3
        if self.size is not None:
            return channels, self.size, self.size
        return channels, *_opened(first, lambda image: (image.height, image.width))


def image_files(folder: Path) -> list[str]:
    """List the paths of all image files in a folder and below it, sorted.

    The paths are strings, because a million ``Path`` objects take many seconds.

    Raises:
        ValueError: There is no image, or the folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise ValueError(f"cannot read the folder {error.filename}: {error.strerror}") from error

    files = [
        os.path.join(parent, name)
        for parent, _, names in os.walk(folder, onerror=refuse, followlinks=True)
        for name in names
        if os.path.splitext(name)[1].lower() in SUFFIXES and not name.startswith(".")
    ]
    if not files:
        raise ValueError(f"the folder {folder} contains no image ({', '.join(sorted(SUFFIXES))})")
    return sorted(files)


def subfolders(folder: Path, layout: str) -> list[Path]:
    """List the folders in a folder, sorted by name.

    Raises:
        FileNotFoundError: The folder does not exist or contains no folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; {layout}")
    folders = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not folders:
        raise FileNotFoundError(f"the folder {folder} contains no folders; {layout}")
    return folders


def files_digest(root: Path, files: Iterable[str], *, stamps: bool = False) -> str:
    """Hash the names (below ``root``) and sizes of files; two copies of a folder have equal hashes.

    With ``stamps``, times of modification count too, so that a file replaced by one of equal size
    is noticed.
    """
    digest = hashlib.sha256()
    for file in files:
        status = os.stat(file)
        stamp = status.st_mtime_ns if stamps else ""
        name = os.path.relpath(file, root).replace(os.sep, "/")
        digest.update(f"/{name}\0{status.st_size}\0{stamp}\n".encode())
    return digest.hexdigest()[:32]


def decode(files: Sequence[str], shape: Shape) -> Tensor:
    """Decode files into (n, C, H, W) uint8 pixels in memory.

    Raises:
        ValueError: An image cannot be read or differs in size from the first, or the images take
            more than 8 GiB.
    """
    form = shape.of(files[0])
    size = len(files) * math.prod(form)
    if size > MEMORY_LIMIT:
        raise ValueError(
            f"{len(files):,} images of {form} take {size / 2**30:.1f} GiB of memory; give "
            "cache_dir a folder for a memory-mapped copy, or lower image_size or max_samples"
        )
    images = np.empty((len(files), *form), np.uint8)
    _fill(images, files, shape, f"Decoding {len(files):,} images ({size / 2**20:,.0f} MiB)")
    return torch.from_numpy(images)


def decode_once(files: Sequence[str], shape: Shape, cache: Path) -> Tensor:
    """Decode files into a cache file and memory-map its (n, C, H, W) uint8 pixels.

    ``cache`` is the path of the cache file without its suffix; it must identify the state of the
    files.

    Raises:
        ValueError: An image cannot be read or differs in size from the first, or the cache file is
            damaged.
    """
    form = shape.of(files[0])
    path = cache.with_name(f"{cache.name}-{'x'.join(map(str, form))}.npy")
    if not path.exists():
        _build(path, files, shape, form)
    with reading_cache(path):
        # Copy-on-write, because torch warns about read-only arrays; nothing writes to it.
        images = np.load(path, mmap_mode="c", allow_pickle=False)
        wanted = (len(files), *form)
        require(
            images.dtype == np.uint8 and images.shape == wanted,
            f"it contains {images.dtype} {images.shape}, not uint8 {wanted}",
        )
        return torch.from_numpy(images)


@contextmanager
def reading_cache(path: Path) -> Iterator[None]:
    """Turn any error inside this context into one that names the cache file and the remedy.

    Raises:
        ValueError: The cache is damaged.
    """
    try:
        yield
    # On damaged files numpy raises a dozen kinds of errors, of zipfile, tokenize and its own.
    except Exception as error:
        raise ValueError(
            f"the cache {path} is damaged ({error}); remove it, and it will be rebuilt"
        ) from error


def _build(path: Path, files: Sequence[str], shape: Shape, form: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with written(path) as file:
        images = np.lib.format.open_memmap(
            file.name, mode="w+", dtype=np.uint8, shape=(len(files), *form)
        )
        text = f"Decoding {len(files):,} images into {path} ({images.nbytes / 2**20:,.0f} MiB)"
        _fill(images, files, shape, text)
        images.flush()


def _fill(images: NDArray[np.uint8], files: Sequence[str], shape: Shape, text: str) -> None:
    """Decode files into the rows of an array, on all cores (Pillow releases the GIL)."""

    def part(start: int) -> None:
        for row, file in enumerate(files[start : start + _CHUNK], start):
            images[row] = _pixels(file, shape, images.shape[1:])

    starts = range(0, len(files), _CHUNK)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            done = pool.map(part, starts)
            for _ in progress(done, text, len(starts)):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def progress(steps: Iterable[T], text: str, total: int) -> Iterable[T]:
    """Yield the same steps, with a progress bar on standard error."""
    console = Console(stderr=True)
    # A notebook is not a terminal: there rich would need another package to draw bars.
    silent = not console.is_terminal
    return track(steps, text, total, console=console, transient=True, disable=silent)


def _pixels(file: str, shape: Shape, form: tuple[int, ...]) -> NDArray[np.uint8]:
    """Decode one file into (C, H, W) pixels."""

    def read(image: Image.Image) -> NDArray[np.uint8]:
        require(
            image.mode[0] not in "IF",
            f"its pixels are {image.mode}, and not bytes, so that values would be cut at 255",
        )
        image = image.convert("L" if shape.grayscale else "RGB")
        if shape.size is not None:
            side = min(image.size)
            left, top = (image.width - side) // 2, (image.height - side) // 2
            square = image.crop((left, top, left + side, top + side))
            image = square.resize((shape.size, shape.size), Image.Resampling.BILINEAR)
        pixels = np.asarray(image, np.uint8)
        return pixels[None] if shape.grayscale else pixels.transpose(2, 0, 1)

    pixels = _opened(file, read)
    if pixels.shape != form:
        _, height, width = pixels.shape
        raise ValueError(
            f"{file} is {width}x{height} pixels, others are {form[2]}x{form[1]}; "
            "give an image_size, to which all are cropped and resized"
        )
    return pixels


def _opened(file: str, read: Callable[[Image.Image], T]) -> T:
    try:
        if not os.path.isfile(file):
            raise OSError("not a regular file")
        with Image.open(file) as image:
            return read(image)
    # Depending on the decoder, Pillow raises any of these for a broken file.
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"cannot read the image {file} ({error}); replace or remove it") from error
