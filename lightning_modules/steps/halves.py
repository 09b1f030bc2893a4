"""Division of clients into two groups by the similarity of their changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from pfl import method as fl

Linkage: TypeAlias = Literal["complete", "single"]
Split: TypeAlias = tuple[int, int, Tensor, Tensor]
"""Numbers of the old and the new cluster; (n, P) changes of the clients that stayed and left."""


@dataclass(frozen=True)
class Splitting:
    """The rule by which CFL splits a cluster (Sattler et al., TNNLS 2020, arXiv 1910.01991).

    A cluster splits after a round in which the mean of its clients' changes is small although some
    changes are large: the model has converged, but the clients disagree.

    Args:
        eps1: Norm of the mean change below which a cluster may split.
        eps2: Norm that the longest change must exceed.
        min_size: A cluster must have more clients than this to split.
        start_round: A cluster splits only after this round.
        linkage: See :func:`halves`.
        gamma_max: gamma; halves must have ``sqrt((1 - a) / 2) > gamma``, where a is the largest
            similarity between them. 0 removes this condition.

    Raises:
        ValueError: A number is negative.
    """

    eps1: fl.NotNegative[float]
    eps2: fl.NotNegative[float]
    min_size: fl.NotNegative[int]
    start_round: fl.NotNegative[int]
    linkage: Linkage
    gamma_max: fl.NotNegative[float]

    def __post_init__(self) -> None:
        fl.check_arguments(self)

    def leaves(self, changes: Tensor, round: int) -> list[bool]:
        """Return which clients leave the cluster: none, or the half without its first client.

        Args:
            changes: (n, P) changes of all clients of a cluster.
            round: Number of the round, from 1.
        """
        nobody = [False] * len(changes)
        long = bool((changes.norm(dim=1) > self.eps2).any())
        settled = long and bool(changes.mean(0).norm() < self.eps1)
        if not settled or len(changes) <= self.min_size or round <= self.start_round:
            return nobody
        alike = cosines(changes).cpu()
        first = halves(alike, self.linkage)
        across = float(alike[first][:, ~first].max())
        apart = self.gamma_max == 0 or (1 - across) / 2 > self.gamma_max**2
        return (~first).tolist() if apart else nobody


def walked(change: Tensor, splits: Sequence[Split]) -> int:
    """Return the number of a newcomer's cluster, given its change.

    It starts in cluster 0. At each split, it moves to the half that contains the change most
    similar to its own; in a tie it stays.

    Args:
        change: (1, P) change from the model before the first split.
        splits: All splits, in the order in which they took place.

    Example:
        >>> right, left = torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.0, 0.0]])
        >>> walked(torch.tensor([[-3.0, 1.0]]), [(0, 1, right, left)])
        1
    """
    number = 0
    for old, new, *both in splits:
        stays, leaves = (cosines(torch.cat([change, rows]))[0, 1:].max() for rows in both)
        number = new if number == old and leaves > stays else number
    return number


def changes_of(states: Sequence[fl.State], start: fl.State, names: Sequence[str]) -> Tensor:
    """Return (n, P) changes of the named entries, one row for each of n states, in the widest type.

    Example:
        >>> changes_of([{"w": torch.tensor([[1.0, 2.0]])}], {"w": torch.ones(1, 2)}, ["w"])
        tensor([[0., 1.]], dtype=torch.float64)
    """
    rows = [torch.cat([(state[n] - start[n]).flatten() for n in names]) for state in states]
    return fl.wide(torch.stack(rows))


def cosines(rows: Tensor) -> Tensor:
    """Return the (n, n) cosine similarities of (n, P) rows; zero for a row of zeros.

    Example:
        >>> cosines(torch.tensor([[1.0, 0.0], [-3.0, 0.0]])).tolist()
        [[1.0, -1.0], [-1.0, 1.0]]
    """
    norms = rows.norm(dim=1)
    return rows @ rows.mT / (torch.outer(norms, norms) + 1e-12)


def halves(similarity: Tensor, linkage: Linkage = "complete") -> Tensor:
    """Merge the most similar groups until two are left, from one group for each client.

    Args:
        similarity: (n, n), symmetric, n at least 2; the diagonal is not read.
        linkage: The similarity of two groups is that of their least similar members (``complete``)
            or of their most similar ones (``single``). The latter minimises the largest similarity
            between the two groups that are left. In a tie, the first pair is merged.

    Returns:
        (n,) ``True`` for the members of the group of client 0.

    Example:
        >>> close = torch.tensor([[1.0, 0.1, 0.9], [0.1, 1.0, 0.2], [0.9, 0.2, 1.0]])
        >>> halves(close).tolist()
        [True, False, True]
    """
    join = torch.minimum if linkage == "complete" else torch.maximum
    count = len(similarity)
    near, group = similarity.cpu().clone(), torch.arange(count)
    near.fill_diagonal_(-torch.inf)
    for _ in range(count - 2):
        one, other = sorted(divmod(int(near.argmax()), count))
        near[one] = near[:, one] = join(near[one], near[other])
        near[one, one] = -torch.inf
        near[other] = near[:, other] = -torch.inf
        group[group == other] = one
    return group == group[0]
