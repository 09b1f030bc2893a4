"""Federated data that forward to other data: for a site, a server, or clients that join later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pfl.core.data import ClientSplit, FederatedData, MetricSpec
from pfl.core.task import Task
from pfl.core.types import Batch


class DataView:
    """Federated data that forward to other data; a subclass overrides what differs.

    Args:
        data: The other data.
    """

    def __init__(self, data: FederatedData) -> None:
        self._data = data
        self.batch_size, self.eval_batch_size = data.batch_size, data.eval_batch_size
        self.drop_last, self.shuffle = data.drop_last, data.shuffle

    @property
    def num_clients(self) -> int:
        """N."""
        return self._data.num_clients

    @property
    def task(self) -> Task:
        """The task."""
        return self._data.task

    @property
    def outputs(self) -> int:
        """The number of outputs D."""
        return self._data.outputs

    @property
    def num_classes(self) -> int | None:
        """C; ``None`` where there are no classes."""
        return self._data.num_classes

    @property
    def metrics(self) -> Sequence[MetricSpec]:
        """Metrics to compute besides the task's own scores."""
        return self._data.metrics

    def pooled_test(self) -> ClientSplit | None:
        """Return the common test set, where there is one."""
        return self._data.pooled_test()

    def public_split(self) -> ClientSplit | None:
        """Return the samples that the server may see, where there are any."""
        return self._data.public_split()

    def to(self, device: torch.device) -> None:
        """Move the samples to the device on which batches are made."""
        self._data.to(device)

    def description(self) -> dict[str, Any]:
        """Describe the partition in plain values."""
        return self._data.description()


class EmptySplit:
    """A split whose samples must not be read or are not here, so that it has none.

    Args:
        targets: (n,) targets, from which only counts are taken.
        why: The message of the error when samples are asked for.
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
