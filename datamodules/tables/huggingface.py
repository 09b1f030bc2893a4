"""Data sets saved to disk by Hugging Face's ``datasets`` package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from datamodules import formats
from datamodules.checks import optional, require
from datamodules.decoding import decoded
from datamodules.doubts.copies import BELONGS
from datamodules.partition.partitioner import Partitioner
from datamodules.pictures import Seen, Shape, UnreadableError, opened
from datamodules.record import Notes, Pictures, Record
from datamodules.tables.data import TableData
from datamodules.tables.sources import arrow_table
from datamodules.tables.table import Table
from datamodules.tables.targets import targets
from datamodules.tasks.named import AnyTask
from pfl.core.ranges import AtLeastOne, NotNegative
from pfl.core.task import Classification

_PART = 64


class HFDataset(TableData):
    """A folder written by ``save_to_disk`` of Hugging Face's ``datasets``, without downloads.

    The folder contains one data set or several splits: ``train``, and official test samples in
    ``test``; other splits are ignored. Inputs are numbers, lists of numbers of equal length, lists
    of tokens of any length (with ``max_length``), or images of equal size.

    Args:
        path: The folder.
        inputs: The input column, or several, which the network receives as a dictionary.
        target: The column to predict, or several, for regression and multilabel (zeros and ones).
        num_clients: Number of clients, N; if not given, one for each natural client.
        partition: As in :class:`FederatedDataModule`; ``ByDomain`` if not given.
        task: What is predicted; required if the targets are floats. Words, class labels and
            integers are classes.
        max_length: Cut lists of integers (tokens and their masks) to this length, and pad shorter
            ones with zeros at the end.
        memory: Maximum size of the decoded samples in memory, in gigabytes. Larger sets are decoded
            into a temporary file and read from there as needed.
        options: As in :class:`~datamodules.tables.data.TableData`; rows with a missing target,
            client or time are refused.

    Raises:
        ImportError: The package ``datasets`` is not installed.
        OSError: The folder cannot be read.
        ValueError: A column is missing or unsuitable.
    """

    def __init__(
        self,
        path: str,
        inputs: str | Sequence[str],
        target: str | Sequence[str],
        num_clients: int | None = None,
        partition: Partitioner | str | None = None,
        *,
        task: AnyTask | None = None,
        max_length: AtLeastOne | None = None,
        memory: NotNegative[float] = 8.0,
        **options: Any,
    ) -> None:
        super().__init__(path, target, num_clients, partition, task=task, **options)
        # Input columns by their names in TensorData.
        self.input_columns = (
            {"x": inputs} if isinstance(inputs, str) else {f"x.{name}": name for name in inputs}
        )
        self.max_length = max_length
        self.memory = memory
        self._splits: tuple[str, ...] = ()
        self._pictured: tuple[str, ...] = ()
        self._grey: dict[str, bool] = {}
        self._seen = Seen(0)
        self._cut = 0

    def record(self) -> Record:
        """Return the columns as read, and the splits that are not."""
        tensors, table = super(TableData, self).record(), self._table
        found = self.columned(
            table, [name for name in self.input_columns.values() if name in table.columns]
        )
        self._note_splits(found.notes)
        if self._cut:
            why = f"what is beyond max_length: {self.max_length}"
            found.notes.left_out.append((f"{self._cut:,} lists", why))
        if 2 * self._cut > len(table):
            found.notes.unread.append(
                f"{self._cut:,} of {len(table):,} lists are longer than max_length: "
                f"{self.max_length}, and are cut: raise it"
            )
        # Single numbers are columns of the table.
        lists = (one for one in tensors.columns if one.use == "feature" and "[" in one.name)
        return replace(
            found,
            notes=replace(found.notes, facts=tensors.notes.facts),
            columns=(*found.columns, *lists),
            arrays=tensors.arrays,
            goal=tensors.goal,
            times=tensors.times,
            pictures=self._seen.pictures() if self._pictured else Pictures(),
            shown=found.place,
        )

    def _note_splits(self, notes: Notes) -> None:
        """Note the splits that are not read, and which of them may be meant to be."""
        others = [name for name in self._splits if name not in ("train", "test")]
        notes.left_out += [(f"split {name!r}", "only train and test are read") for name in others]
        if others and "test" not in self._splits:
            notes.unread.append(
                f"{self.path} has no split 'test', and {others[0]!r} is not read: test samples are "
                "drawn from 'train'; rename the split to test if it is meant"
            )
        notes.validation = others[0] if others else ""

    def read(self) -> Mapping[str, Any]:
        """Read the tensors by name."""
        content, num_train = self._content()
        known = ", ".join(content.column_names)
        places = [name for name in (self.client_column, self.time_column) if name is not None]
        for name in (*self.input_columns.values(), *self.target, *places):
            require(
                name in content.column_names, f"{self.path} has no column {name!r}, only {known}"
            )
        needed = [*self.target, *places]
        more = [n for n in content.column_names if n not in needed and self._is_plain(content, n)]
        plain = content.select_columns([*needed, *more]).with_format("arrow")[:]
        table = self._table = arrow_table(Path(self.path), plain, self.spelling)
        for name in needed:
            table.refuse_missing(name)
        self._pictured = tuple(
            name
            for name in self.input_columns.values()
            if type(content.features[name]).__name__ == "Image"
        )
        self._seen = Seen(len(content))
        return {
            **decoded(self._samples(content), len(content), self.memory),
            **self._targets(content, table),
            **self.placed(table),
            "num_train": num_train,
        }

    def _is_plain(self, content: Any, name: str) -> bool:  # noqa: ANN401
        """Return ``True`` for an input of single numbers, and for what names a sample's origin."""
        dtype = str(getattr(content.features[name], "dtype", ""))
        number = name in self.input_columns.values() and dtype.startswith(("float", "int"))
        origin = BELONGS.match(name) and dtype.startswith(("int", "string", "large_string"))
        return bool(number or origin)

    def _content(self) -> tuple[Any, int]:
        """Return the data set, official training samples first, and the number of these."""
        datasets = optional("datasets", "hf", f"reading {self.path}")
        place = Path(self.path).expanduser()
        try:
            content = datasets.load_from_disk(str(place))
            parts = content.values() if isinstance(content, datasets.DatasetDict) else [content]
            for part in parts:
                # Offsets beyond the data would be read as lists of other lengths.
                part.data.validate(full=True)
        except (FileNotFoundError, NotADirectoryError) as error:
            kind = formats.name_of(place) if place.is_file() else ""
            what = f" ({formats.advice(kind, place)})" if kind else _instead(place)
            raise FileNotFoundError(
                f"{self.path} is no folder that save_to_disk wrote{what}: {error}"
            ) from error
        # pyarrow raises its own kinds of errors for damaged files.
        except IndexError as error:
            raise ValueError(f"{self.path} has a split without samples: save it again") from error
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            found = ((file, formats.instead(file)) for file in sorted(place.rglob("*.arrow")))
            other = next((f"{file} is not of Arrow{how}" for file, how in found if how), "")
            raise ValueError(other or f"{self.path} is damaged: {error}; save it again") from error
        if not isinstance(content, datasets.DatasetDict):
            return content, len(content)
        self._splits = tuple(content)
        known = ", ".join(content)
        require(
            "train" in content,
            f"{self.path} has no split 'train', only {known}: rename one (DatasetDict)",
        )
        parts = [content[name] for name in ("train", "test") if name in content]
        try:
            return datasets.concatenate_datasets(parts), len(parts[0])
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{self.path}: the splits train and test have other columns or types, "
                f"{parts[0].features} and {parts[-1].features}: make them alike (cast)"
            ) from error

    def _targets(self, content: Any, table: Table) -> Mapping[str, Any]:  # noqa: ANN401
        names = getattr(content.features[self.target[0]], "names", None)
        if names and len(self.target) == 1:
            return {"y": table[self.target[0]].labels(), "class_names": names}
        dtype = str(content.features[self.target[0]].dtype)
        numbered = len(self.target) == 1 and dtype.startswith(("int", "uint", "bool"))
        return targets(table, self.target, self._task or (Classification() if numbered else None))

    def _samples(self, content: Any) -> Iterator[dict[str, Tensor]]:  # noqa: ANN401
        import datasets

        columns = list(self.input_columns.values())
        content = content.select_columns(columns)
        for column in self._pictured:
            # Decoded here, as those of folders.
            content = content.cast_column(column, datasets.Image(decode=False))
        rows = content.with_format("torch", [c for c in columns if c not in self._pictured],
                                   output_all_columns=True)  # fmt: skip
        # One by one, rows would take twenty times as long.
        for start in range(0, len(rows), _PART):
            part = rows[start : start + _PART]
            for row in range(len(part[columns[0]])):
                yield {
                    name: self._tensor(part[column][row], column, start + row)
                    for name, column in self.input_columns.items()
                }

    def _picture(self, value: Any, column: str, row: int) -> Tensor:  # noqa: ANN401
        """Return the (C, H, W) bytes of a picture: grey if the first is, else in colours."""
        place = f"{self.path}, row {row + 1}, column {column!r}"
        require(bool(value), f"{place}: the picture is missing")

        def read(image: Image.Image) -> Tensor:
            grey = image.mode in ("1", "L")
            self._grey.setdefault(column, grey)
            require(
                grey or not self._grey[column],
                f"it has {image.mode} colours, but the first picture is grey: convert all alike",
            )
            shape = Shape(grayscale=self._grey[column])
            return torch.from_numpy(self._seen.add(row, place, image, shape).copy())

        try:
            return opened(str(value.get("path") or place), read, value.get("bytes"))
        except UnreadableError as error:
            raise ValueError(f"{place}: {error.why}") from error

    def _tensor(self, value: Any, column: str, row: int) -> Tensor:  # noqa: ANN401
        if column in self._pictured:
            return self._picture(value, column, row)
        try:
            tensor = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"{self.path}, row {row + 1}, column {column!r}: {str(value)[:40]!r} is not a "
                "tensor of numbers; convert words to tokens"
            ) from error
        if self.max_length is None or tensor.dim() != 1 or tensor.is_floating_point():
            return tensor
        self._cut += len(tensor) > self.max_length
        # A negative number truncates.
        return F.pad(tensor, (0, self.max_length - len(tensor)))


def _instead(place: Path) -> str:
    """Return how to make a folder that is read from what is in its place."""
    parts = sorted(place.iterdir()) if place.is_dir() else []
    if any(one.suffix == ".arrow" for one in parts):
        return " (dataset_info.json or state.json is lost: copy it again as a whole)"
    for suffix, kind in ((".parquet", "parquet"), (".json", "json"), (".csv", "csv")):
        if some := [one for one in parts if one.suffix.startswith(suffix)]:
            files = f"'{place / '*'}{some[0].suffix}'"
            return f" (datasets.load_dataset('{kind}', data_files={files}).save_to_disk(...) does)"
    return "" if parts else f" (datasets.load_dataset('{place}').save_to_disk(...) does)"
