"""FEMNIST: handwritten characters, grouped by writer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules import formats
from datamodules.arrays import ArrayData, Arrays
from datamodules.checks import require
from datamodules.files import DAMAGED, progress
from datamodules.finding import files_digest
from datamodules.targets import Ints, Targets, plain_name
from pfl.disk.writing import written


class FEMNIST(ArrayData):
    """About 805,000 characters of 28x28 pixels by about 3,550 writers; 62 classes.

    The domain of a sample is its writer. LEAF's own tools choose how many writers and samples the
    folder contains; all of them are used. The pixels of the complete set take 600 MiB of memory.

    Source: Caldas et al., "LEAF: a benchmark for federated settings", 2018.

    Args:
        root: LEAF's folder ``data/femnist/data``: ``train/*.json`` and ``test/*.json``, or
            ``all_data/*.json``, which has no official test set.
        cache_dir: A folder for the parsed arrays (784 bytes per sample).
        common: Arguments of :class:`~datamodules.base.FederatedDataModule`.
    """

    class_names = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
    input_shape = (1, 28, 28)
    layout = (
        "github.com/TalwalkarLab/leaf makes FEMNIST (data/femnist, preprocess.sh); expected files: "
        "root/train/*.json and root/test/*.json, or root/all_data/*.json"
    )

    def __init__(self, root: str, cache_dir: str | None = None, **common: Any) -> None:
        super().__init__(**common)
        self.root = Path(root).expanduser()
        self.cache_dir = None if cache_dir is None else Path(cache_dir).expanduser()

    def prepare_data(self) -> None:
        """Parse the files into the cache folder, if one is given and has no copy yet."""
        if self.cache_dir is not None:
            self._parsed()

    def read(self) -> Arrays:
        """Read the whole data set.

        Raises:
            FileNotFoundError: The folder is missing or has another layout.
            ValueError: A file is not in LEAF's format, no file contains a training sample, or the
                cache is damaged.
        """
        parsed = self._parsed()
        targets = Targets(parsed.labels, domains=parsed.writers)
        return Arrays(
            parsed.pixels, targets, int(parsed.num_train), domain_names=parsed.names.tolist()
        )

    def _parsed(self) -> _Parsed:
        train = sorted((self.root / "train").glob("*.json"))
        test = sorted((self.root / "test").glob("*.json"))
        if not train:
            train, test = sorted((self.root / "all_data").glob("*.json")), []
        if not train:
            raise FileNotFoundError(f"there is no LEAF data in {self.root}; {self.layout}")
        if self.cache_dir is None:
            return _parse(train, test)
        state = files_digest(self.root, map(str, [*train, *test]), stamps=True)
        cache = self.cache_dir / f"femnist-{state}.npz"
        if not cache.exists():
            parsed = _parse(train, test)
            cache.parent.mkdir(parents=True, exist_ok=True)
            with written(cache) as file:
                np.savez(file, **parsed._asdict())
            return parsed
        with formats.reading(cache, *DAMAGED), np.load(cache, allow_pickle=False) as arrays:
            return _Parsed(**arrays)


class _Parsed(NamedTuple):
    """The arrays in the cache; training samples first.

    Attributes:
        pixels: (n, 1, 28, 28).
        labels: (n,).
        writers: (n,) indices into ``names``.
        names: Names of the writers, in ascending order.
        num_train: () number of training samples.
    """

    pixels: NDArray[np.uint8]
    labels: Ints
    writers: Ints
    names: NDArray[np.str_]
    num_train: Ints


def _parse(train: Sequence[Path], test: Sequence[Path]) -> _Parsed:
    pixels: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    written: list[str] = []
    num_train = 0
    files = [*train, *test]
    for number, file in enumerate(progress(files, "Parsing FEMNIST", len(files)), 1):
        with formats.reading(file, "is not a file of LEAF's FEMNIST"):
            require(file.is_file(), "not a regular file")
            users = json.loads(file.read_text(encoding="utf-8"))["user_data"]
            for writer, samples in users.items():
                images, classes = _samples(samples)
                pixels.append(images)
                labels += classes
                written += [plain_name(writer)] * len(classes)
        if number == len(train):
            num_train = len(labels)
            require(num_train > 0, f"no file in {file.parent} contains a training sample")
    names, writers = np.unique(np.array(written), return_inverse=True)
    return _Parsed(
        np.concatenate(pixels),
        np.array(labels, np.int64),
        writers.astype(np.int64),
        names,
        np.array(num_train, np.int64),
    )


def _samples(samples: Mapping[str, Any]) -> tuple[NDArray[np.uint8], list[int]]:
    """Return the (n, 1, 28, 28) pixels and n labels of one writer."""
    # LEAF divides grey values by 255.
    values = np.rint(np.asarray(samples["x"], np.float64) * 255)
    classes = [int(label) for label in samples["y"]]
    require(
        classes == [float(label) for label in samples["y"]], "labels that are not whole numbers"
    )
    require(len(values) == len(classes), f"{len(values)} images and {len(classes)} labels")
    require(bool(((values >= 0) & (values <= 255)).all()), "grey values outside [0, 1]")
    require(all(0 <= label < 62 for label in classes), "labels outside 0..61")
    return values.astype(np.uint8).reshape(-1, 1, 28, 28), classes
