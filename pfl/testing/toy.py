"""A tiny split network, and a tiny federation made of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from pfl.core.data import MetricSpec
from pfl.core.seeds import generator, scoped
from pfl.core.task import Classification, MultiLabel, Task
from pfl.core.types import Batch, DataSplit

CPU = torch.device("cpu")
# Training samples of each client.
SIZES = (9, 6, 4)
Samples: TypeAlias = tuple[Tensor, Tensor]


class ToyNet(nn.Module):
    """A backbone that computes features, and a linear head that computes logits from them.

    Args:
        backbone: (B, ...) -> (B, D) features.
        head: (B, D) -> (B, C) logits.
    """

    def __init__(self, backbone: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.features = head.in_features
        self.num_classes = head.out_features

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits."""
        logits: Tensor = self.head(self.backbone(x))
        return logits


def mlp(num_classes: int = 3, dim: int = 5, hidden: int = 6, seed: int = 1) -> ToyNet:
    """Return a network of ``dim`` -> ``hidden`` -> ``num_classes`` units, with seeded weights."""
    with scoped(seed):
        return ToyNet(
            nn.Sequential(nn.Linear(dim, hidden), nn.ReLU()), nn.Linear(hidden, num_classes)
        )


def normed(seed: int = 1, bias: bool = True) -> ToyNet:
    """Return the network of :func:`mlp` with batch norm in its backbone.

    The gradient of a bias before batch norm is only numerical noise; ``bias=False`` leaves it out.
    """
    with scoped(seed):
        backbone = nn.Sequential(nn.Linear(5, 6, bias), nn.BatchNorm1d(6), nn.ReLU())
        return ToyNet(backbone, nn.Linear(6, 3))


class ToySplit:
    """One split of one client.

    Args:
        x: (n, ...) inputs.
        y: (n,) labels.
        device: The device of the batches.
    """

    augmented = False

    def __init__(self, x: Tensor, y: Tensor, device: torch.device = CPU) -> None:
        self.x, self.targets, self._device = x, y, device

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, positions: Tensor, rng: torch.Generator | None = None) -> Batch:
        """Return the samples at ``positions``."""
        x, y = self.x[positions].to(self._device), self.targets[positions].to(self._device)
        dtype = torch.get_default_dtype()
        return Batch(x.to(dtype), y.to(dtype) if y.is_floating_point() else y)


class ToyData:
    """Federated data made of given tensors.

    Attributes:
        splits: Each client's inputs and labels, by the name of the split.

    Args:
        train: Each client's inputs and labels for training.
        test: The same for tests; by default the training samples.
        val: The same for validation; empty by default.
        pooled: The common test set.
        outputs: D, the number of outputs of a network; C in classification.
        batch_size: Number of samples in a batch.
        task: The task; classification by default.
        apart: The clients that are not of the federation, by what they are there for.
    """

    metrics: Sequence[MetricSpec] = ()

    def __init__(
        self,
        train: Sequence[Samples],
        test: Sequence[Samples] | None = None,
        val: Sequence[Samples] | None = None,
        pooled: Samples | None = None,
        outputs: int = 3,
        batch_size: int = 4,
        task: Task | None = None,
        apart: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.apart = apart or {}
        self.batch_size, self.eval_batch_size = batch_size, 7
        self.drop_last, self.shuffle = False, True
        nothing = [(x[:0], y[:0]) for x, y in train]
        self.splits: dict[str, list[Samples]] = {
            "train": list(train),
            "test": list(test or train),
            "val": list(val or nothing),
        }
        self._pooled, self._device = pooled, CPU
        self.num_clients, self.outputs = len(train), outputs
        self.task = Classification() if task is None else task
        self.num_classes = outputs if self.task.has_classes else None

    def split(self, client: int, name: DataSplit) -> ToySplit:
        """Return one split of one client.

        The public samples are the first client's; a server should not need their labels.

        Raises:
            ValueError: There is no such client.
        """
        if name == "public":
            client, name = 0, "train"
        if client < 0:  # which a list would count from its end
            raise ValueError(f"there is no client {client}, only 0 to {self.num_clients - 1}")
        return ToySplit(*self.splits[name][client], self._device)

    def blank(self, count: int) -> Tensor:
        """Return ``count`` inputs of zeros."""
        x, _ = self.splits["train"][0]
        return torch.zeros(count, *x.shape[1:], dtype=torch.get_default_dtype())

    def pooled_test(self) -> ToySplit | None:
        """Return the common test set, if there is one."""
        return None if self._pooled is None else ToySplit(*self._pooled, self._device)

    def to(self, device: torch.device) -> None:
        """Make batches on a device."""
        self._device = device

    def description(self) -> dict[str, Any]:
        """Return what identifies the data."""
        return {"hash": "toy"}


def blobs(
    sizes: Sequence[int] = SIZES,
    num_classes: int = 3,
    dim: int = 5,
    seed: int = 0,
    batch_size: int = 4,
    pooled: bool = True,
    task: Task | None = None,
) -> ToyData:
    """Return data of Gaussian classes; client i has more samples of class i + 1 than others.

    For other tasks, the targets are C linear functions of the inputs, or their signs.

    Args:
        sizes: Number of training samples of each client.
        num_classes: Number of classes, C.
        dim: Size of an input.
        seed: Seed of centres and samples.
        batch_size: Number of samples in a batch.
        pooled: Whether there is a common test set.
        task: The task; classification by default.
    """
    rng = generator(seed, "blobs")
    slopes = torch.randn(dim, num_classes, generator=generator(seed, "slopes")) / dim
    centres = torch.randn(num_classes, dim, generator=rng) * 2

    def draw(count: int, client: int) -> Samples:
        y = torch.randint(0, num_classes, (count,), generator=rng)
        y[: count // 2] = (client + 1) % num_classes
        x = centres[y] + 0.5 * torch.randn(count, dim, generator=rng)
        if task is None or task.has_classes:
            return x, y
        # The number of targets for these outputs.
        values = (x @ slopes)[:, : num_classes // task.outputs(1)]
        return x, (values > 0).float() if isinstance(task, MultiLabel) else values

    train = [draw(size, client) for client, size in enumerate(sizes)]
    test = [draw(6, client) for client in range(len(sizes))]
    val = [draw(4, client) for client in range(len(sizes))]
    common = draw(12, 0) if pooled else None
    return ToyData(train, test, val, common, num_classes, batch_size, task)
