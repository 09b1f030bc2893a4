"""Clients of other data that join a run whose own clients' data are not at hand."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from pfl.core.data import ClientSplit, DataSource
from pfl.core.data_view import DataView, EmptySplit
from pfl.core.held_out import HeldOut, KnowsOrigins, client_names
from pfl.core.types import Inputs, Split
from pfl.disk import reading

TRANSFORMS, PARTITION = "transforms.json", "partition.json"
# For those who test a run with other data than its own.
ADVICE = "to let clients of other data join the run: pfl test --ckpt_path RUN --data FILE --join 5"


@runtime_checkable
class Adopts(Protocol):
    """Data that can be read with what another data module of its class learnt."""

    def transforms(self) -> dict[str, Any]:
        """Return what was learnt of the data, in plain values."""

    def adopt(self, transforms: Mapping[str, Any]) -> None:
        """Read the data with the transforms of others.

        Raises:
            ValueError: They are damaged.
        """


def adopt(data: Adopts, run: Path) -> None:
    """Let data be read with the transforms that are stored with a run.

    Raises:
        ValueError: The run has none, or they are damaged.
    """
    file = run / TRANSFORMS
    content = reading.read_json(file)
    if not content:
        raise ValueError(
            f"{run} has no {TRANSFORMS}, which says how the run read its data: resume it where its "
            "data are (pfl fit --ckpt_path) to get the file, or train a run of 0.2 anew"
        )
    try:
        data.adopt(content)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


class LaterData(DataView):
    """The clients of other data, whose numbers follow those of the run's own clients.

    Of the run's own clients only their numbers of samples are known, from the run folder: what a
    server is told before the first round.

    Args:
        data: The data of the clients that join, already set up.
        run: The run folder.
        name: Of the data; also what a client without a name is called, if it is the only one.

    Raises:
        ValueError: The run's description of its partition is missing or damaged, or the data are
            those of the run.
    """

    _data: DataSource

    def __init__(self, data: DataSource, run: Path, name: str) -> None:
        super().__init__(data)
        self.name = name
        file = run / PARTITION
        self._description = reading.read_json(file)
        try:
            self._members = _members(self._description, data.num_classes)
            out = self._description.get("held_out", {})
            earlier = sorted(int(c) for group in HeldOut._fields for c in out.get(group, []))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{file} is missing or damaged ({error!r})") from error
        later = range(self.num_clients, self.num_clients + data.num_clients)
        self.held_out = HeldOut(tuple(later), tuple(earlier))
        if data.description().get("content_hash") == self._description.get("content_hash"):
            raise ValueError("the file has the data of the run itself: leave out --join and --data")
        self.client_names = self._names()

    def _names(self) -> list[str]:
        count, data = self._data.num_clients, self._data
        recorded = self._description.get("names")
        known = [*map(str, recorded)] if isinstance(recorded, list) else []
        joining = [*client_names(data)] or ([self.name] if count == 1 else [])
        if repeated := [name for name in joining if name in known]:
            warnings.warn(
                f"{', '.join(repeated[:5])}: the run has a client of that name, so that this one "
                "may not be new",
                stacklevel=2,
            )
        numbered = [f"client {number}" for number in range(self.num_clients + count)]
        if len(known) != self.num_clients:
            known = numbered[: self.num_clients]
        return known + (joining or numbered[self.num_clients :])

    @property
    def num_clients(self) -> int:
        """The number of the run's own clients."""
        return len(self._members)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self._data.input_shape

    def blank(self, count: int) -> Inputs:
        """Return ``count`` placeholder inputs."""
        return self._data.blank(count)

    def prepare_data(self) -> None:
        """Do nothing: the data are already read."""

    def setup(self) -> None:
        """Do nothing: the data are already read."""

    def split(self, client: int, name: Split) -> ClientSplit:
        """Return the split of a client that joins; those of the run's own clients are empty."""
        if client >= self.num_clients:
            return self._data.split(client - self.num_clients, name)
        targets = self._members[client]
        why = "the samples of a client of the run are not at hand"
        return EmptySplit(targets if name == "train" else targets[:0], why)

    def rows(self, client: int, split: Split) -> Sequence[int]:
        """Return the number of each sample of a client that joins, in its file, from 0."""
        data = self._data
        return data.rows(client - self.num_clients, split) if isinstance(data, KnowsOrigins) else ()

    def pooled_test(self) -> ClientSplit | None:
        """Return ``None``: there is no common test set."""
        return None

    def description(self) -> dict[str, Any]:
        """Return the description of the run's partition."""
        return self._description


def _members(description: Mapping[str, Any], classes: int | None) -> list[Tensor]:
    """Return (n,) targets of each client of a run, with its number of samples of each class."""
    sizes = [len(client["train"]) for client in description["clients"]]
    if classes is None:
        return [torch.zeros(size) for size in sizes]
    counts = description["label_counts"]
    for size, labels in zip(sizes, counts, strict=True):
        sound = len(labels) == classes and all(type(n) is int and n >= 0 for n in labels)
        if not sound or sum(labels) != size:
            raise ValueError(f"label_counts do not fit {size} samples of {classes} classes")
    return [torch.arange(classes).repeat_interleave(torch.tensor(labels)) for labels in counts]
