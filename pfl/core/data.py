"""The interface of federated data, and the information that a client has on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from pfl.core.task import Task
from pfl.core.types import Batch, ClientInfo, DataSplit, Inputs, Split

# A metric of torchmetrics: its class path, or a mapping with the path ("metric"), a name, options.
MetricSpec: TypeAlias = str | dict[str, Any]


class ClientSplit(Protocol):
    """One split of one client: an indexable view into the data set, nothing copied."""

    @property
    def targets(self) -> Tensor:
        """(n, ...) targets, (n,) integer labels in classification, on the CPU, in stored order."""

    @property
    def augmented(self) -> bool:
        """``True`` if :meth:`batch` draws random transforms."""

    def __len__(self) -> int: ...

    def batch(self, positions: Tensor, rng: torch.Generator | None = None) -> Batch:
        """Return the samples at ``positions`` of this split, normalised, on the working device."""


@runtime_checkable
class CountedSplit(Protocol):
    """A split of which only counts are known, as its samples cannot be read here."""

    @property
    def label_counts(self) -> Tensor | None:
        """(C,) samples of each class; ``None`` if they are not known."""


@runtime_checkable
class JoinableSplit(Protocol):
    """A split that may share its store with others, so that their batches can be read together."""

    def joined(self, splits: Sequence[ClientSplit]) -> ClientSplit | None:
        """Return several splits as one, in order; ``None`` if they do not share a store."""


@runtime_checkable
class ItemSplit(Protocol):
    """A split whose batches have a form of their own: nested tuples, dictionaries, lists."""

    def item(self, positions: Tensor, rng: torch.Generator | None = None) -> Any:  # noqa: ANN401
        """Return the samples at ``positions`` as their own loader would, on the CPU."""


def item(split: ClientSplit, positions: Tensor, rng: torch.Generator | None = None) -> Any:  # noqa: ANN401
    """Return samples as a LightningModule with its own steps gets them: ``[x, y]`` by default."""
    if isinstance(split, ItemSplit):
        return split.item(positions, rng)
    batch = split.batch(positions, rng)
    return [batch.x, batch.y]


class FederatedData(Protocol):
    """The interface of a federated data module that loop and engines use."""

    @property
    def batch_size(self) -> int:
        """Number of samples in a training batch."""

    @property
    def eval_batch_size(self) -> int:
        """Number of samples in a batch of a test."""

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete last batch is left out."""

    @property
    def shuffle(self) -> bool:
        """Whether training batches are drawn in a new order in each epoch."""

    @property
    def num_clients(self) -> int:
        """N."""

    @property
    def task(self) -> Task:
        """The task."""

    @property
    def outputs(self) -> int:
        """The number of network outputs D, one for each class, label or number."""

    @property
    def num_classes(self) -> int | None:
        """C; ``None`` where there are no classes."""

    @property
    def metrics(self) -> Sequence[MetricSpec]:
        """Metrics to compute besides the task's own scores."""

    def split(self, client: int, name: DataSplit, /) -> ClientSplit:
        """Return the ``train``, ``val`` or ``test`` split of one client; it may be empty.

        The ``public`` split belongs to no client: for each, and for
        :data:`~pfl.core.types.NO_CLIENT`, it has the same samples, which the server may see, too.
        """

    def pooled_test(self) -> ClientSplit | None:
        """Return the common test set that belongs to no client, where there is one."""

    def to(self, device: torch.device, /) -> None:
        """Move the samples to the device on which batches are made."""

    def description(self) -> dict[str, Any]:
        """Describe the partition in plain values: recipe, seed, indices, content hash."""


class Reading(Protocol):
    """A report on how data were read."""

    def line(self) -> str:
        """Return the report in one line."""

    def plain(self) -> dict[str, Any]:
        """Return the report as plain values, ready for JSON."""


@runtime_checkable
class Adopts(Protocol):
    """Data that can be read with what another data module of its class learnt."""

    def transforms(self) -> dict[str, Any]:
        """Return what was learnt of the data, in plain values."""

    def adopt(self, transforms: Mapping[str, Any]) -> None:
        """Read the data with the transforms of another data set.

        Raises:
            ValueError: They are damaged.
        """


@runtime_checkable
class ReportsReading(Protocol):
    """Federated data that report how they were read."""

    @property
    def reading(self) -> Reading:
        """What was read, what is doubtful, and the sample counts of clients and classes."""


class DataSource(FederatedData, Protocol):
    """A data module as built from a configuration, before and after its samples are read."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""

    def blank(self, count: int) -> Inputs:
        """Return ``count`` placeholder inputs with the shapes and types of real batches."""

    def prepare_data(self) -> None:
        """Download and decode what is missing on disk."""

    def setup(self) -> None:
        """Read the samples and divide them among the clients."""


def info_of(data: FederatedData, client: int, rounds: int = 0) -> ClientInfo:
    """Return a client's information on its data, before the first round."""
    split, counts = data.split(client, "train"), None
    if isinstance(split, CountedSplit):
        return ClientInfo(client, len(split), split.label_counts, rounds=rounds)
    if data.num_classes is not None:
        counts = torch.bincount(split.targets, minlength=data.num_classes)
    # Where the samples of a run's own clients are not available, they are as many as their targets.
    return ClientInfo(client, len(split) or len(split.targets), counts, rounds=rounds)


def absent_info(data: FederatedData, client: int, rounds: int = 0) -> ClientInfo:
    """Return the information on a held-out client: it has no data here."""
    counts = None if data.num_classes is None else torch.zeros(data.num_classes).long()
    return ClientInfo(client, 0, counts, rounds=rounds)


def others(data: FederatedData) -> Mapping[str, Sequence[int]]:
    """Return the clients that are not of the federation, by what they are there for.

    Data without ``apart`` have none.
    """
    apart: Mapping[str, Sequence[int]] = getattr(data, "apart", {})
    return apart


def members(data: FederatedData) -> Sequence[int]:
    """Return the clients of the federation, ascending; no others take part in a round."""
    apart = {client for clients in others(data).values() for client in clients}
    return [client for client in range(data.num_clients) if client not in apart]


def holders(data: FederatedData, *splits: Split) -> Sequence[int]:
    """Return the clients of the federation that have samples of each of some splits."""
    return [c for c in members(data) if all(len(data.split(c, name)) for name in splits)]
