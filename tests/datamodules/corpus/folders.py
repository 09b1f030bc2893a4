"""Folders of images, and of images with masks, sound and damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from datamodules import IID, ByDomain, DomainFolder, ImageFolder, PairFolder
from tests.datamodules.corpus.kinds import Case
from tests.datamodules.corpus.names import INVISIBLE, TWINS

CLASSES = ("heron", "ibis", "crane")
CLIENTS = ("north", "south", "rome")
Change = Callable[[Path, np.random.Generator], None]


def picture(rng: np.random.Generator, size: int = 12, mode: str = "RGB") -> Image.Image:
    """Return an image of noise."""
    channels = {"L": (), "RGB": (3,), "RGBA": (4,), "CMYK": (4,)}[mode]
    pixels = rng.integers(0, 256, (size, size, *channels), dtype=np.uint8)
    return (
        Image.fromarray(pixels, mode=None)
        if mode in ("L", "RGB", "RGBA")
        else Image.fromarray(pixels[..., :3]).convert(mode)
    )


def fill(folder: Path, rng: np.random.Generator, count: int = 8, **options: Any) -> None:
    """Write images into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        picture(rng, **options).save(folder / f"IMG_{number:03}.png")


def classes(root: Path, rng: np.random.Generator) -> None:
    """Write a folder of each class."""
    for name in CLASSES:
        fill(root / name, rng)


def folder(
    damage: str, words: str, change: Change, start: Change = classes, **options: Any
) -> Case:
    """Return a case of a folder of classes that is changed."""

    def make(place: Path, rng: np.random.Generator) -> Any:
        start(place / "k", rng)
        change(place / "k", rng)
        usual = {"root": str(place / "k"), "num_clients": 3, "partition": IID()}
        if options.get("cache_dir"):
            options["cache_dir"] = str(place / "cache")
        return ImageFolder(**{**usual, **options})

    return Case("folder", damage, make, words)


def domains(damage: str, words: str, change: Change, **options: Any) -> Case:
    """Return a case of a folder of clients that is changed."""

    def make(place: Path, rng: np.random.Generator) -> Any:
        for name in CLIENTS:
            classes(place / "d" / name, rng)
        change(place / "d", rng)
        return DomainFolder(str(place / "d"), num_clients=None, partition=ByDomain(), **options)

    return Case("folder", f"{damage} (clients)", make, words)


def pairs(damage: str, words: str, change: Change, **options: Any) -> Case:
    """Return a case of images and masks that is changed."""

    def make(place: Path, rng: np.random.Generator) -> Any:
        for client in CLIENTS[:2]:
            for number in range(8):
                name = f"{client}/scan_{number:02}"
                for part in ("images", "masks"):
                    (place / part / client).mkdir(parents=True, exist_ok=True)
                picture(rng).save(place / "images" / f"{name}.png")
                mask(rng).save(place / "masks" / f"{name}.png")
        change(place, rng)
        return PairFolder(str(place / "images"), str(place / "masks"), **options)

    return Case("pairs", damage, make, words)


def mask(rng: np.random.Generator, high: int = 1, size: int = 12) -> Image.Image:
    """Return a mask of two classes."""
    return Image.fromarray(high * (rng.random((size, size)) < 0.4).astype(np.uint8))


def copied(source: str, target: str) -> Change:
    def change(root: Path, rng: np.random.Generator) -> None:
        (root / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / source, root / target)

    return change


def link(source: str, target: str) -> Change:
    """Return a change that makes a link; a source that begins with ``..`` is outside."""

    def change(root: Path, rng: np.random.Generator) -> None:
        place = (root / source).resolve() if source else root
        if source.startswith("../") and "nothing" not in source:
            fill(place, rng, 3)
        os.symlink(os.path.abspath(place), root / target)

    return change


def write(name: str, content: bytes) -> Change:
    def change(root: Path, rng: np.random.Generator) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)

    return change


def moving(root: Path, rng: np.random.Generator, suffix: str = "png") -> None:
    frames = [picture(rng) for _ in range(3)]
    frames[0].save(root / f"heron/moving.{suffix}", save_all=True, append_images=frames[1:])


def moving_tiff(root: Path, rng: np.random.Generator) -> None:
    moving(root, rng, "tiff")


def flat(root: Path, rng: np.random.Generator) -> None:
    Image.new("RGB", (12, 12), (0, 0, 0)).save(root / "heron/IMG_003.png")


def renamed(folder_name: str, change: Callable[[str], str]) -> Change:
    """Return a change that moves half of a folder's images into one of another name."""

    def of(root: Path, rng: np.random.Generator) -> None:
        (root / change(folder_name)).mkdir()
        for file in sorted((root / folder_name).rglob("*.png"))[::2]:
            target = root / change(folder_name) / file.relative_to(root / folder_name)
            target.parent.mkdir(exist_ok=True)
            file.rename(target)

    return of


def without_suffix(root: Path, rng: np.random.Generator) -> None:
    for file in sorted((root / "heron").glob("*.png"))[:3]:
        file.rename(file.with_suffix(""))


def split(test: str) -> Change:
    def start(root: Path, rng: np.random.Generator) -> None:
        for part, count in (("train", 8), (test, 4)):
            for name in CLASSES:
                fill(root / part / name, rng, count)

    return start


def across(root: Path, rng: np.random.Generator) -> None:
    shutil.copy(root / "train/ibis/IMG_001.png", root / "test/ibis/again.png")


def years(root: Path, rng: np.random.Generator) -> None:
    for name in ("train2017", "val2017"):
        fill(root / name, rng)
    for name in CLASSES:
        shutil.rmtree(root / name)


def patients(root: Path, rng: np.random.Generator) -> None:
    for place, name in enumerate(CLASSES):
        for number, file in enumerate(sorted((root / name).glob("*.png"))):
            file.rename(file.with_name(f"patient{8 * place + number // 2}_scan{number % 2}.png"))


def cmyk(root: Path, rng: np.random.Generator) -> None:
    picture(rng, mode="CMYK").save(root / "heron/print.jpg")


def wide(root: Path, rng: np.random.Generator) -> None:
    Image.fromarray(rng.integers(0, 256, (12, 90, 3), dtype=np.uint8)).save(root / "ibis/wide.png")


def deep(root: Path, rng: np.random.Generator) -> None:
    Image.fromarray(rng.integers(0, 60000, (12, 12), dtype=np.uint16)).save(root / "ibis/deep.png")


def nested(root: Path, rng: np.random.Generator) -> None:
    fill(root / "heron/batch2", rng, 4)


def nothing(root: Path, rng: np.random.Generator) -> None:
    return None


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
DAMAGED = [
    folder("a link to its own folder", "link back", link("heron", "heron/loop")),
    folder("a link to the root", "link back", link("", "heron/loop")),
    folder("a link out of the folder", "link out", link("../elsewhere", "heron/more")),
    folder("a class that is a link out", "link out", link("../elsewhere", "stork")),
    folder(
        "a file that is a link out",
        "link",
        lambda root, rng: (
            fill(root.parent / "o", rng, 1),
            os.symlink(root.parent / "o/IMG_000.png", root / "ibis/l.png"),
        )[1],
    ),
    folder("a link to nothing", "link to nothing", link("../nothing.png", "heron/gone.png")),
    folder("a class within a class", "link|content", link("ibis", "heron/more")),
    folder(
        "two links around",
        "link back|content",
        lambda root, rng: (
            os.symlink(root.absolute() / "ibis", root / "heron/x"),
            os.symlink(root.absolute() / "heron", root / "ibis/y"),
        )[1],
    ),
    folder(
        "a copy in its class", "content of another", copied("heron/IMG_000.png", "heron/copy.png")
    ),
    folder(
        "a copy in another class", "different classes", copied("heron/IMG_000.png", "ibis/x.png")
    ),
    folder(
        "a copy in another format",
        "content of another",
        lambda root, rng: Image.open(root / "heron/IMG_002.png").save(root / "heron/again.bmp"),
    ),
    folder(
        "a copy, with a cache",
        "content of another",
        copied("heron/IMG_000.png", "heron/c.png"),
        cache_dir="x",
    ),
    folder("a copy on both sides", "both sides", across, split("test"), test_protocol="matched"),
    folder("several frames", "several frames", moving),
    folder("several pages", "several frames", moving_tiff),
    folder("several frames, with a cache", "several frames", moving, cache_dir="x"),
    folder("an image of one colour", "single colour", flat),
    folder("an image for print", "CMYK", cmyk),
    folder("a panorama", "outside the centred square", wide, image_size=12),
    folder("another size", "image_size", wide),
    folder("sixteen bits", "16|clipped", deep),
    folder("an empty file", "file is empty", write("heron/x.png", b"")),
    folder(
        "cut off",
        "truncated|broken|x.png",
        lambda root, rng: (
            (root / "heron/x.png").write_bytes((root / "heron/IMG_000.png").read_bytes()[:200])
            and None
        ),
    ),
    folder("a page in the place of an image", "HTML", write("heron/x.jpg", b"<html>404</html>")),
    folder(
        "a pointer of Git LFS",
        "git lfs pull",
        write("heron/x.png", b"version https://git-lfs.github.com/spec/v1\noid 1\n"),
    ),
    folder("a HEIC by another name", "HEIC", write("heron/x.jpg", HEIC)),
    folder("a HEIC", "cannot be read", write("heron/x.heic", HEIC)),
    folder("a GIF", "cannot be read", write("heron/x.gif", b"GIF89a")),
    folder("an archive", "unpack", write("heron/more.zip", b"PK\x03\x04")),
    folder("images without an ending", "not named so", without_suffix),
    folder(
        "images beside the classes", "beside the folders", copied("heron/IMG_000.png", "loose.png")
    ),
    folder(
        "masks among the images",
        "masks",
        lambda root, rng: mask(rng).save(root / "heron/IMG_001_mask.png"),
    ),
    folder(
        "previews among the images",
        "previews",
        lambda root, rng: picture(rng).save(root / "heron/IMG_001_thumb.png"),
    ),
    folder("folders within a class", "several folders", nested),
    folder("an empty class", "no sample", lambda root, rng: (root / "stork").mkdir()),
    folder("splits by other names", "splits are", years),
    folder("patients on both sides", "patient.*testing", patients),
    folder(
        "a test_fraction beside tests",
        "test_fraction",
        nothing,
        split("test"),
        test_fraction=0.4,
        test_protocol="matched",
    ),
    folder(
        "a val_fraction beside validation", "val_fraction", nothing, split("val"), val_fraction=0.1
    ),
    *(
        folder(f"{how} in a class", words, renamed("crane", change))
        for how, change, words in (*TWINS, *INVISIBLE)
    ),
    *(domains(how, words, renamed("rome", change)) for how, change, words in (*TWINS, *INVISIBLE)),
    domains(
        "a copy at another client",
        "content of another",
        copied("north/ibis/IMG_000.png", "south/ibis/copy.png"),
    ),
    domains("an empty client", "empty", lambda root, rng: (root / "west").mkdir()),
    domains("a link to its own folder", "link back", link("north", "north/ibis/loop")),
    pairs(
        "a mask without an image",
        "no image",
        lambda root, rng: mask(rng).save(root / "masks/north/more.png"),
    ),
    pairs(
        "an image without a mask",
        "no mask",
        lambda root, rng: picture(rng).save(root / "images/north/more.png"),
    ),
    pairs(
        "a copy",
        "content of another",
        lambda root, rng: (
            (
                shutil.copy(root / "images/north/scan_01.png", root / "images/north/x.png"),
                shutil.copy(root / "masks/north/scan_01.png", root / "masks/north/x.png"),
            )[1]
            and None
        ),
    ),
    pairs(
        "white masks",
        "values",
        lambda root, rng: (
            [mask(rng, 255).save(file) for file in sorted((root / "masks").rglob("*.png"))] and None
        ),
    ),
    pairs(
        "empty masks",
        "nothing can be learnt",
        lambda root, rng: (
            [mask(rng, 0).save(file) for file in sorted((root / "masks").rglob("*.png"))] and None
        ),
    ),
    pairs(
        "a mask in colours",
        "colours",
        lambda root, rng: picture(rng).save(root / "masks/north/scan_01.png"),
    ),
    pairs(
        "a mask of another size",
        "has .* pixels",
        lambda root, rng: mask(rng, size=9).save(root / "masks/north/scan_01.png"),
    ),
    pairs(
        "several frames",
        "several frames",
        lambda root, rng: (
            lambda frames: frames[0].save(
                root / "images/north/scan_01.png", save_all=True, append_images=frames[1:]
            )
        )([picture(rng) for _ in range(3)]),
    ),
    pairs("a link to its own folder", "link back", link("images/north", "images/north/loop")),
    pairs(
        "masks without an ending",
        "not named so|no mask",
        lambda root, rng: (
            [
                file.rename(file.with_suffix(""))
                for file in sorted((root / "masks/north").glob("*.png"))[:1]
            ]
            and None
        ),
    ),
    *(
        pairs(
            f"{how} in a client",
            words,
            lambda root, rng, change=change: (
                [renamed("north", change)(root / part, rng) for part in ("images", "masks")]
                and None
            ),
        )
        for how, change, words in (*TWINS, *INVISIBLE)
    ),
]

SOUND = [
    folder("as it is", "", nothing),
    folder("a cache", "", nothing, cache_dir="x"),
    folder("with tests", "", nothing, split("test"), test_protocol="matched"),
    folder("with tests that are pooled", "", nothing, split("test")),
    folder("with val as tests", "", nothing, split("val"), test_protocol="global"),
    folder("resized", "", nothing, image_size=8),
    folder("grey", "", nothing, grayscale=True),
    folder("validated", "", nothing, val_fraction=0.1),
    folder(
        "hidden files",
        "",
        lambda root, rng: (
            [write(name, b"x")(root, rng) for name in ("heron/.DS_Store", "heron/._IMG_000.png")]
            and None
        ),
    ),
    folder("a text beside", "", write("heron/LICENCE.txt", b"free")),
    folder(
        "all classes are links",
        "",
        lambda root, rng: (
            [
                (
                    (root / name).rename(root.parent / name),
                    os.symlink(root.parent / name, root / name),
                )
                for name in CLASSES
            ]
            and None
        ),
    ),
    folder(
        "transparent",
        "",
        lambda root, rng: (
            [picture(rng, mode="RGBA").save(root / f"heron/t{n}.png") for n in range(3)] and None
        ),
    ),
    folder(
        "numbered classes",
        "",
        lambda root, rng: (
            [(root / name).rename(root / str(n)) for n, name in enumerate(CLASSES)] and None
        ),
    ),
    folder(
        "a folder deeper",
        "",
        lambda root, rng: (
            [
                (
                    fill(root / name / "images", rng),
                    [f.unlink() for f in (root / name).glob("*.png")],
                )
                for name in CLASSES
            ]
            and None
        ),
    ),
    domains("as they are", "", nothing),
    domains("a client lacks a class", "", lambda root, rng: shutil.rmtree(root / "north/ibis")),
    pairs("as they are", "", nothing),
    pairs(
        "white masks that are named",
        "",
        lambda root, rng: (
            [mask(rng, 255).save(file) for file in sorted((root / "masks").rglob("*.png"))] and None
        ),
        values=[0, 255],
    ),
]
