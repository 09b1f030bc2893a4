"""A federation's data as one record: what each client has, and what belongs to none.

The data of a site, of a server whose clients are at sites, and of clients that join later are such
records; ``dataclasses.replace`` sets what differs from the original data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from pfl.core.data import ClientSplit, FederatedData, MetricSpec
from pfl.core.task import Task
from pfl.core.types import Batch, Inputs, Split


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
        stands_for: The name of the data, if samples of clients lie elsewhere.
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
    split: Callable[[int, Split], ClientSplit]
    pooled_test: Callable[[], ClientSplit | None]
    public_split: Callable[[], ClientSplit | None]
    to: Callable[[torch.device], None]
    description: Callable[[], dict[str, Any]]
    apart: Mapping[str, Sequence[int]] = field(default_factory=dict)
    groups: tuple[tuple[str, ...], list[int]] = ((), [])
    client_names: Sequence[str] = ()
    rows: Callable[[int, Split], Sequence[int]] = lambda client, split: ()
    input_shape: tuple[int, ...] = ()
    blank: Callable[[int], Inputs] = _no_inputs
    stands_for: str = ""
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


class EmptySplit:
    """An empty split, for samples that are elsewhere or must not be read.

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
