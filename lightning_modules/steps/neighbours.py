"""A store of features, and class votes of those nearest to a sample."""

from __future__ import annotations

import torch
from torch import Tensor

from pfl import method as fl


def memory(z: Tensor, y: Tensor, bank: Tensor) -> fl.State:
    """Return a client's store of features, in Q rows.

    Args:
        z: (n, D) features of its samples; if n > Q, Q evenly spaced ones are stored.
        y: (n,) labels.
        bank: (Q, D) tensor with the shape of the store.

    Returns:
        ``bank`` (Q, D), ``labels`` (Q,), and ``filled`` (Q,), ``True`` where a sample is stored.

    Example:
        >>> stored = memory(torch.arange(5.0)[:, None], torch.arange(5), torch.zeros(3, 1))
        >>> stored["labels"].tolist(), stored["filled"].all()
        ([0, 1, 3], tensor(True))
    """
    count = min(len(z), len(bank))
    rows = torch.arange(count, device=z.device) * len(z) // count
    features, labels = torch.zeros_like(bank), y.new_zeros(len(bank))
    features[:count], labels[:count] = z[rows].to(bank), y[rows]
    filled = torch.arange(len(bank), device=z.device) < count
    return {"bank": features, "labels": labels, "filled": filled}


def class_votes(
    z: Tensor, bank: Tensor, labels: Tensor, filled: Tensor, neighbours: int, width: float
) -> Tensor:
    """Return each class's share of the votes of the nearest stored features, weighted by a kernel.

    A feature at squared distance d votes with weight ``exp(-d / width)``. In a tie the first is
    taken; if fewer than ``neighbours`` are stored, all vote. Runs under ``torch.func.vmap``.

    Args:
        z: (B, D) features.
        bank: (Q, D) stored features.
        labels: (Q, C) one-hot labels.
        filled: (Q,) ``True`` where a sample is stored.
        neighbours: k, at most Q.
        width: Width of the kernel.

    Returns:
        (B, C) shares, which sum to one; meaningless if nothing is stored.

    Example:
        >>> bank, labels = torch.tensor([[1.0], [-1.0], [9.0]]), torch.eye(2)[[0, 1, 1]]
        >>> class_votes(torch.zeros(1, 1), bank, labels, torch.ones(3) > 0, 2, 1.0)
        tensor([[0.5000, 0.5000]])
    """
    apart = torch.cdist(z.to(bank.dtype), bank).square()
    near, rows = torch.where(filled, apart, torch.finfo(apart.dtype).max).sort(dim=-1, stable=True)
    # The softmax subtracts the smallest distance first, so that not all weights can underflow.
    weight = (-near[:, :neighbours] / width).softmax(-1)
    return (weight[..., None] * labels[rows[:, :neighbours]]).sum(1)


def hits(own: Tensor, votes: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """Count the correct predictions of 101 mixtures, with shares 0, 0.01, ..., 1 of the votes.

    Args:
        own: (B, C) predictions without votes.
        votes: (B, C) from :func:`class_votes`.
        y: (B,) labels.
        weight: (B,) one for a real sample and zero for padding, or ``None``.

    Returns:
        (101,) counts.

    Example:
        >>> own, votes = torch.tensor([[0.7, 0.3]]), torch.tensor([[0.0, 1.0]])
        >>> hits(own, votes, torch.tensor([1])).argmax()
        tensor(29)
    """
    shares = torch.linspace(0, 1, 101).to(votes)
    right = torch.lerp(own, votes, shares[:, None, None]).argmax(-1) == y
    return (right if weight is None else right * weight).to(votes.dtype).sum(-1)
