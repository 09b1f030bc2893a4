"""A federation's data as one record: what each client has, and what belongs to none.

The data of a site, of a server whose clients are at sites, and of clients that join later are such
records; ``dataclasses.replace`` sets what differs from the original data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeGuard

import torch
from torch import Tensor

from pfl.core.data import ClientSplit, FederatedData, MetricSpec, item
from pfl.core.task import Task
from pfl.core.types import Batch, DataSplit, Inputs, Split


def _no_inputs(count: int) -> Inputs:
    raise ValueError("these data do not declare the shapes of their inputs")


@dataclass(frozen=True, eq=False)
class DataView:
    """Federated data as one record; its fields are those of :class:`pfl.core.data.FederatedData`.

    Attributes:
        apart: The clients that are not of the federation, by what they are there for.
        groups: Labels of groups of clients, and each client's group.
        client_names: (N,) names of the clients; empty if they have only numbers.
        rows: Returns the number of each sample of a split in its data set.
        input_shape: Shape of one sample.
        blank: Returns placeholder inputs with the shapes and types of real batches.
        stands_for: The name of the data, if samples of clients cannot be read here.
        source: The user's own data module or loaders, whose hooks on batches run with a module that
            has steps of its own; ``None`` for others.
        real: Whether the clients are real, so that what protects them must not follow from a seed.
    """

    num_clients: int
    task: Task
    outputs: int
    num_classes: int | None
    metrics: Sequence[MetricSpec]
    batch_size: int
    eval_batch_size: int
    drop_last: bool
    shuffle: bool
    split: Callable[[int, DataSplit], ClientSplit]
    pooled_test: Callable[[], ClientSplit | None]
    to: Callable[[torch.device], None]
    description: Callable[[], dict[str, Any]]
    apart: Mapping[str, Sequence[int]] = field(default_factory=dict)
    groups: tuple[tuple[str, ...], list[int]] = ((), [])
    client_names: Sequence[str] = ()
    rows: Callable[[int, Split], Sequence[int]] = lambda client, split: ()
    input_shape: tuple[int, ...] = ()
    blank: Callable[[int], Inputs] = _no_inputs
    stands_for: str = ""
    source: Any = None
    real: bool = False

    @classmethod
    def of(cls, data: FederatedData) -> DataView:
        """Return the record of any federated data."""
        names = (one.name for one in fields(cls))
        return cls(**{name: getattr(data, name) for name in names if hasattr(data, name)})


class Subset:
    """Some samples of a split, in a given order.

    Args:
        split: The split.
        positions: (m,) positions in the split, on any device.
    """

    def __init__(self, split: ClientSplit, positions: Tensor) -> None:
        self._split, self._positions = split, positions.to("cpu", copy=True)
        self.augmented = split.augmented

    @property
    def targets(self) -> Tensor:
        """(m, ...) targets, in the order of the positions."""
        return self._split.targets[self._positions]

    def __len__(self) -> int:
        return len(self._positions)

    def batch(self, positions: Tensor, rng: torch.Generator | None = None) -> Batch:
        """Return the samples at ``positions`` of this subset."""
        return self._split.batch(self._positions[positions.cpu()], rng)

    def item(self, positions: Tensor, rng: torch.Generator | None = None) -> Any:  # noqa: ANN401
        """Return the samples at ``positions`` of this subset in the form of its split."""
        return item(self._split, self._positions[positions.cpu()], rng)


class EmptySplit:
    """An empty split, for samples that are at other places or must not be read.

    Args:
        targets: (n,) targets, from which only counts are taken.
        why: The message of the error that reading samples raises.
    """

    augmented = False

    def __init__(self, targets: Tensor, why: str) -> None:
        self.targets = targets
        self._why = why

    def __len__(self) -> int:
        return 0

    def batch(self, positions: Tensor, rng: torch.Generator | None = None) -> Batch:
        """Refuse to return samples.

        Raises:
            ValueError: Always.
        """
        raise ValueError(self._why)


def stand_in(data: FederatedData) -> TypeGuard[DataView]:
    """Return ``True`` if data stand for others, whose samples cannot be read here."""
    return isinstance(data, DataView) and data.stands_for != ""


def name_of(data: FederatedData) -> str:
    """Return the name of data: of those that they stand for, or of their class."""
    return data.stands_for if stand_in(data) else type(data).__name__


def an_input(data: FederatedData) -> Inputs:
    """Return (1, ...) inputs of the first client with data, or placeholders of their shape."""
    if stand_in(data):
        return data.blank(1)
    splits = (data.split(client, "train") for client in range(data.num_clients))
    split = next(split for split in splits if len(split))
    inputs: Inputs = split.batch(torch.zeros(1, dtype=torch.int64)).x
    return inputs
