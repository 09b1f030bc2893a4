"""Data sets saved to disk by Hugging Face's ``datasets`` package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from datamodules.checks import require
from datamodules.decoding import decoded
from datamodules.named_tensors import TaskName
from datamodules.partition.partitioner import Partitioner
from datamodules.table_data import TableData
from datamodules.table_targets import targets
from datamodules.tables import Table, arrow_table
from pfl.core.checks import at_least_one, not_negative

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
        options: As in :class:`~datamodules.table_data.TableData`; rows with a missing target,
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
        task: TaskName | None = None,
        max_length: int | None = None,
        memory: float = 8.0,
        **options: Any,
    ) -> None:
        not_negative(memory=memory)
        at_least_one(max_length=max_length)
        super().__init__(path, target, num_clients, partition, task=task, **options)
        # Input columns by their names in TensorData.
        self.input_columns = (
            {"x": inputs} if isinstance(inputs, str) else {f"x.{name}": name for name in inputs}
        )
        self.max_length = max_length
        self.memory = memory

    def read(self) -> Mapping[str, Any]:
        """Read the tensors by name."""
        content, num_train = self._content()
        places = [name for name in (self.client_column, self.time_column) if name is not None]
        known = ", ".join(content.column_names)
        for name in (*self.input_columns.values(), *self.target, *places):
            require(
                name in content.column_names, f"{self.path} has no column {name!r}, only {known}"
            )
        plain = content.select_columns([*self.target, *places]).with_format("arrow")[:]
        table = arrow_table(Path(self.path), plain, self.spelling)
        for name in table.columns:
            table.refuse_missing(name)
        tensors: dict[str, Any] = {
            **decoded(self._samples(content), len(content), self.memory),
            **self._targets(content, table),
            "num_train": num_train,
        }
        if self.client_column is not None:
            tensors["client"] = table[self.client_column].labels()
        if self.time_column is not None:
            tensors["column.time"], _ = table.times(self.time_column)
        return tensors

    def _content(self) -> tuple[Any, int]:
        """Return the data set, official training samples first, and the number of these."""
        try:
            import datasets
        except ImportError as error:
            raise ImportError(
                f"reading {self.path} needs datasets: pip install 'pfl-lightning[hf]'"
            ) from error
        content = datasets.load_from_disk(str(Path(self.path).expanduser()))
        if not isinstance(content, datasets.DatasetDict):
            return content, len(content)
        known = ", ".join(content)
        require("train" in content, f"{self.path} has no split 'train', only {known}")
        parts = [content[name] for name in ("train", "test") if name in content]
        return datasets.concatenate_datasets(parts), len(parts[0])

    def _targets(self, content: Any, table: Table) -> Mapping[str, Any]:  # noqa: ANN401
        names = getattr(content.features[self.target[0]], "names", None)
        if names and len(self.target) == 1:
            return {"y": table[self.target[0]].labels(), "class_names": names}
        dtype = str(content.features[self.target[0]].dtype)
        numbered = len(self.target) == 1 and dtype.startswith(("int", "uint", "bool"))
        return targets(table, self.target, self._task or ("classification" if numbered else None))

    def _samples(self, content: Any) -> Iterator[dict[str, Tensor]]:  # noqa: ANN401
        columns = list(self.input_columns.values())
        rows = content.select_columns(columns).with_format("torch")
        for start in range(0, len(rows), _PART):
            part = rows[start : start + _PART]
            for row in range(len(part[columns[0]])):
                yield {
                    name: self._tensor(part[column][row], column, start + row)
                    for name, column in self.input_columns.items()
                }

    def _tensor(self, value: Any, column: str, row: int) -> Tensor:  # noqa: ANN401
        try:
            tensor = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"{self.path}, row {row + 1}, column {column!r}: {str(value)[:40]!r} is not a "
                "tensor of numbers; convert words to tokens"
            ) from error
        if self.max_length is None or tensor.dim() != 1 or tensor.is_floating_point():
            return tensor
        # A negative number truncates.
        return F.pad(tensor, (0, self.max_length - len(tensor)))
