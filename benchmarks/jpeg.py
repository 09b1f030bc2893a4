"""CIFAR-10 or CIFAR-100 as a folder of JPEG files, and a hash by which cells of the ledger name it.

python -m benchmarks.jpeg data data              # data/cifar-10-batches-py -> data/cifar10
python -m benchmarks.jpeg data data --name CIFAR100
python -m benchmarks.jpeg --hash data/cifar10    # the hash of a folder that is there

The files are of quality 75 with colours at half the resolution (4:2:0), as those of most runs in
docs/ledger.md. The hash is that of the decoded pixels of each class, in any order: it does not
depend on the names of the files, and the order of the images in the originals is not known to the
ledger's folder.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100

SETS = {"CIFAR10": CIFAR10, "CIFAR100": CIFAR100}
QUALITY, SUBSAMPLING = 75, "4:2:0"


def write(samples: Iterable[tuple[Image.Image, int]], classes: Sequence[str], folder: Path) -> int:
    """Write images as ``<folder>/<class>/NNNN.jpg``, numbered in each class; return how many.

    Raises:
        FileExistsError: The folder exists.
    """
    folder.mkdir(parents=True)
    counts = dict.fromkeys(classes, 0)
    for name in classes:
        (folder / name).mkdir()
    for image, label in samples:
        name = classes[label]
        file = folder / name / f"{counts[name]:04d}.jpg"
        image.convert("RGB").save(file, quality=QUALITY, subsampling=SUBSAMPLING)
        counts[name] += 1
    return sum(counts.values())


def digest(folder: Path) -> str:
    """Return a hash of 32 characters of the images below a folder: their pixels, by their folder.

    Raises:
        FileNotFoundError: There are none.
    """
    lines = []
    for file in folder.rglob("*.jpg"):
        with Image.open(file) as image:
            pixels = hashlib.sha256(image.convert("RGB").tobytes()).hexdigest()
        lines.append(f"{file.parent.relative_to(folder).as_posix()} {pixels}")
    if not lines:
        raise FileNotFoundError(f"there are no .jpg files below {folder}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:32]


def main(argv: Sequence[str] | None = None) -> int:
    """Write a folder, or read one, and print its hash; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jpeg", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("root", nargs="?", help="where torchvision's data set lies")
    parser.add_argument("out", nargs="?", type=Path, help="where the folder is written")
    parser.add_argument("--name", choices=SETS, default="CIFAR10")
    parser.add_argument("--download", action="store_true", help="download the data set first")
    parser.add_argument("--hash", type=Path, metavar="FOLDER", help="only print the hash of this")
    options = parser.parse_args(argv)
    folder = options.hash
    try:
        if folder is None:
            if options.out is None:
                parser.error("give ROOT and OUT, or --hash FOLDER")
            folder = options.out / options.name.lower()
            for split, train in (("train", True), ("test", False)):
                found = SETS[options.name](options.root, train=train, download=options.download)
                count = write(found, found.classes, folder / split)
                print(f"{count} images in {folder / split}")
        print(f"hash {digest(folder)}")
    except (OSError, RuntimeError) as error:
        # torchvision raises the latter for data that are missing or damaged.
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
