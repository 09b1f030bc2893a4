"""FedCAC's critical parameters, and the clients whose critical parameters overlap."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pfl import method as fl


def critical(before: Tensor, after: Tensor, tau: float) -> Tensor:
    """Return a mask of a parameter's critical entries: a share tau of them, or more with ties.

    Args:
        before: (...) values before training.
        after: (...) values after training.
        tau: The share; the number of entries is rounded down, possibly to none.

    Example:
        >>> critical(torch.zeros(4), torch.tensor([1.0, -3.0, 2.0, 0.5]), 0.5)
        tensor([False,  True,  True, False])
    """
    count = int(tau * after.numel())
    if count == 0:
        return torch.zeros_like(after, dtype=torch.bool)
    scores = ((after - before) * after).abs()
    least = scores.flatten().topk(count).values[-1]
    if least <= 1e-10 and (scores > 1e-20).any():
        least = scores[scores > 1e-20].min()
    return scores >= least


def collaborators(masks: Sequence[fl.State], progress: float) -> Tensor:
    """Return an (m, m) mask of the clients (columns) that share parameters with each client (row).

    Args:
        masks: Masks of the critical parameters of each of m clients.
        progress: t / beta.

    Example:
        >>> places = [[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]]
        >>> collaborators([{"w": torch.tensor(row) > 0} for row in places], 0.5).int()
        tensor([[1, 1, 0],
                [1, 1, 1],
                [0, 1, 1]], dtype=torch.int32)
    """
    flat = torch.stack([torch.cat([mask.flatten() for mask in one.values()]) for one in masks])
    flat = flat.cpu().double()
    sizes, itself = flat.sum(1), torch.eye(len(flat), dtype=torch.bool)
    if len(flat) == 1:
        return itself
    apart = sizes[:, None] + sizes - 2 * flat @ flat.T
    overlaps = torch.where(sizes[:, None] > 0, 1 - apart / (2 * sizes[:, None]), 0.0)
    others = overlaps[~itself]
    threshold = others.mean() + progress * (others.max() - others.mean())
    return itself | (overlaps >= threshold)
