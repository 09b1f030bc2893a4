"""Samples and splits that PFLlib's generators wrote, one file for each client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from datamodules import formats
from datamodules.checks import require
from datamodules.finding import existing_folder
from datamodules.numpy_pickle import read_arrays
from datamodules.partition.splits import TestProtocol
from datamodules.record import Record
from datamodules.tensors import TensorData


class PFLlibFolder(TensorData):
    """A folder of PFLlib: ``train/0.npz``, ``train/1.npz``, ... and the same below ``test``.

    A client is a pair of files, and is tested on its own. The inputs are as PFLlib wrote them:
    floats that are normalised already. PFLlib pickles the arrays; they are read without calling
    anything that a file names.

    Source: Zhang et al., "PFLlib: A beginner-friendly and comprehensive personalized federated
    learning library and benchmark", JMLR 2025.

    Args:
        root: The folder of a data set, such as ``dataset/MNIST``, with ``train`` and ``test``.
        test_protocol: As in :class:`FederatedDataModule`; each client's own test file by default.
        options: As in :class:`TensorData`, such as ``batch_size`` and ``val_fraction``.

    Raises:
        FileNotFoundError: A file is missing.
        OSError: A file is damaged or has something else than arrays.
        ValueError: A client has training or test samples alone.
    """

    source_argument = "root"
    own_clients = True

    def __init__(
        self, root: str, *, test_protocol: TestProtocol = "matched", **options: Any
    ) -> None:
        super().__init__(root, test_protocol=test_protocol, **options)
        self.root = Path(root).expanduser()

    def read(self) -> Mapping[str, Any]:
        """Read the arrays of all clients, training samples first."""
        train, test = self._clients("train"), self._clients("test")
        only = sorted(train.keys() ^ test.keys())
        require(not only, f"{self.root}: client {[*only, ''][0]} lacks its training or test file")
        parts = [*train.items(), *test.items()]
        return {
            "x": np.concatenate([x for _, (x, _) in parts]),
            "y": np.concatenate([y for _, (_, y) in parts]).astype(np.int64),
            "client": np.concatenate([np.full(len(y), number) for number, (_, y) in parts]),
            "num_train": sum(len(y) for _, y in train.values()),
        }

    def record(self) -> Record:
        """Return the arrays, and what of the folder is not read."""
        found = super().record()
        unread = found.notes.unread
        files = [*self.root.glob("train/*.npz"), *self.root.glob("test/*.npz")]
        if others := sorted(str(file) for file in files if not file.stem.isdecimal()):
            unread.append(
                f"{len(others)} files (first {others[0]}) are not named by a client's number, as "
                "0.npz is, and are not read: remove or rename them"
            )
        numbers = {int(file.stem) for file in files if file.stem.isdecimal()}
        if lost := sorted({*range(max(numbers))} - numbers):
            unread.append(
                f"{self.root} has no client {lost[0]}, but one of number {max(numbers)}: was a "
                "file lost?"
            )
        meant = self._meant()
        if meant not in (None, len(numbers)):
            unread.append(
                f"{self.root / 'config.json'} has num_clients: {meant}, and there are files of "
                f"{len(numbers)} clients: are some lost, or of another run? Generate them again"
            )
        return found

    def _meant(self) -> object:
        """Return the number of clients that the generator wrote down; ``None`` if it did not."""
        try:
            return json.loads((self.root / "config.json").read_text()).get("num_clients")
        except (OSError, ValueError, AttributeError):
            return None

    def _clients(self, part: str) -> dict[int, tuple[NDArray[Any], NDArray[Any]]]:
        """Return inputs and labels of each client, by its number."""
        folder = self.root / part
        existing_folder(folder, "PFLlib's generate_*.py writes train and test")
        files = {int(file.stem): file for file in folder.glob("*.npz") if file.stem.isdecimal()}
        require(bool(files), f"{folder} has no files 0.npz, 1.npz, ...")
        found = {number: _arrays(file) for number, file in sorted(files.items())}
        first = next(iter(found))
        for number, (x, _) in found.items():
            (form, kind), like = (x.shape[1:], x.dtype), found[first][0]
            require(
                (form, kind) == (like.shape[1:], like.dtype),
                f"{files[number]} has {kind} of shape {form} in x, and {files[first]} has "
                f"{like.dtype} of {like.shape[1:]}: write all alike",
            )
        return found


def _arrays(file: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return inputs and labels of a file."""
    found = dict(_members(file))
    held = found.get("data", found)
    wanted = isinstance(held, Mapping) and {"x", "y"} <= held.keys()
    require(wanted, f"{file} has no arrays x and y, which PFLlib's generators write")
    x, y = np.asarray(held["x"]), np.asarray(held["y"])
    require(
        x.dtype != object and len(x) == len(y),
        f"{file}: x must be one array with a row for each of the {len(y)} labels y",
    )
    require(
        y.dtype.kind in "biuf" and bool((y % 1 == 0).all()),
        f"{file}: labels y must be whole numbers, got {y.ravel()[:3].tolist()}",
    )
    return x, y


def _members(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a ``.npz`` file, pickled or not, by name.

    Raises:
        OSError: The file is damaged.
    """
    with formats.reading(file, "is not an .npz file", OSError), ZipFile(file) as members:
        for name in members.namelist():
            with members.open(name) as member:
                version = np.lib.format.read_magic(member)
                read_header = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
                shape, by_columns, kind = read_header(member)
                content = member.read()
            if kind.hasobject:
                value = read_arrays(file, content)
            else:
                order: Literal["F", "C"] = "F" if by_columns else "C"
                value = np.frombuffer(content, kind).reshape(shape, order=order)
            yield name.removesuffix(".npy"), value
