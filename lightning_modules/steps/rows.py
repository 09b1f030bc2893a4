"""Models of all clients at the server, as stacks with a leading axis, and their similarities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from pfl import method as fl

Similarity: TypeAlias = Literal["rows", "flat"]
BLOCK = 2**13
"""Entries of each model that are compared or mixed at a time."""
CAP = 0.9999
"""Largest similarity of two classifiers; 1 would give an infinite weight in pFedSim."""


def repeated(state: fl.State, count: int) -> fl.State:
    """Return a stack in which each of ``count`` clients has the same values, without copies.

    Example:
        >>> import torch
        >>> repeated({"w": torch.zeros(3)}, 2)["w"].shape
        torch.Size([2, 3])
    """
    return {name: value.expand(count, *value.shape) for name, value in state.items()}


def row(stack: fl.State, client: int) -> fl.State:
    """Return views of a client's values."""
    return {name: value[client] for name, value in stack.items()}


class Rows(fl.Fold[fl.State]):
    """A copy of a stack, in which the models of a round are as uploaded.

    Args:
        stack: (N, ...) each.
    """

    def __init__(self, stack: fl.State) -> None:
        self._old = self._stack = stack

    def add(self, upload: fl.Upload) -> None:
        """Write a client's row."""
        sent = {name: upload.shared[name] for name in self._old}
        if self._stack is self._old:
            self._stack = {n: fl.empty_alike(v).copy_(v) for n, v in self._old.items()}
        for name, value in sent.items():
            self._stack[name][upload.client] = value

    def value(self) -> fl.State:
        """Return the stack."""
        return self._stack


def with_rows(
    stack: fl.State, uploads: Sequence[fl.Upload], states: Sequence[fl.State]
) -> fl.State:
    """Return a copy of a stack with new values for the clients of some uploads.

    Args:
        stack: (N, ...) each.
        uploads: The uploads.
        states: The new values, in the order of the uploads.
    """
    found = {name: value.clone() for name, value in stack.items()}
    for upload, state in zip(uploads, states, strict=True):
        for name, value in found.items():
            value[upload.client] = state[name]
    return found


def as_others(stack: fl.State, places: Mapping[int, int]) -> fl.State:
    """Return models of other clients as entries of a list of frozen copies, ``others``.

    Args:
        stack: (N, ...) each, named ``net...``.
        places: Numbers of clients, by their places in the list.

    Example:
        >>> import torch
        >>> as_others({"net.weight": torch.tensor([[1.0], [2.0]])}, {0: 1})
        {'others.0.module.weight': tensor([2.])}
    """
    return {
        f"others.{place}.module.{name.removeprefix('net.')}": value[number]
        for place, number in places.items()
        for name, value in stack.items()
    }


def products(stack: fl.State) -> Tensor:
    """Return the (N, N) float64 scalar products of the models of a stack, each taken as a vector.

    Example:
        >>> import torch
        >>> products({"w": torch.tensor([[1.0, 2.0], [3.0, 0.0]])}).tolist()
        [[5.0, 3.0], [3.0, 9.0]]
    """
    return _over_blocks(stack, lambda block: torch.stack([block @ one for one in block]))


def square_distances(stack: fl.State) -> Tensor:
    """Return the (N, N) float64 square distances of the models of a stack.

    Example:
        >>> import torch
        >>> square_distances({"w": torch.tensor([[1.0, 2.0], [3.0, 0.0]])}).tolist()
        [[0.0, 8.0], [8.0, 0.0]]
    """
    return _over_blocks(
        stack, lambda block: torch.stack([(block - one).square().sum(1) for one in block])
    )


def _over_blocks(stack: fl.State, compare: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the sum of (N, N) comparisons of blocks, which stay in a cache, in float64."""
    return torch.stack(
        [
            compare(block.cpu().double())
            for value in stack.values()
            for block in torch.split(value.flatten(1), BLOCK, 1)
        ]
    ).sum(0)


def mixtures(stack: fl.State, shares: Tensor) -> list[fl.State]:
    """Return means of the models of a stack, one for each of m rows of shares, in float64.

    Args:
        stack: (N, ...) each.
        shares: (m, N) float64.
    """
    mixed = {n: v.new_empty(len(shares), *v.shape[1:]) for n, v in stack.items()}
    for name, value in stack.items():
        wide = shares.to(value.device, fl.widest(value.device))
        into = mixed[name].flatten(1)
        for old, new in zip(
            torch.split(value.flatten(1), BLOCK, 1), torch.split(into, BLOCK, 1), strict=True
        ):
            new.copy_(wide @ old.to(wide.dtype))
    return [row(mixed, number) for number in range(len(shares))]


class ModelsServer(fl.Server[fl.StateT]):
    """A server that stores a model for each client: ``shared`` has a leading axis of N.

    It sends each client its own model, and a newcomer the mean of the members' models, weighted by
    samples. A subclass says how the models start. A round stores what clients upload.
    """

    per_client = True

    def begin(self, state: fl.StateT, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Declare the models after the round, as ``rows``."""
        return {"rows": Rows(state.shared)}

    def finish(self, state: fl.StateT, folded: fl.Folded) -> fl.StateT:
        """Store the models of the round, as uploaded."""
        return replace(state, shared=folded["rows"], client_report=self.reported(folded))

    def broadcast(self, state: fl.StateT, client: int, round: int) -> fl.Broadcast:
        """Send the client's model."""
        return fl.Broadcast(row(state.shared, client))

    def mixture(self, state: fl.StateT, shares: Tensor, names: fl.Patterns = ("*",)) -> fl.State:
        """Return the mean of the models by (N,) shares; those with a share of zero are left out."""
        near = shares.nonzero()[:, 0].tolist()
        models = fl.select(state.shared, names)
        return fl.weighted_mean([row(models, number) for number in near], shares[near])

    def welcome(
        self,
        state: fl.StateT,
        info: fl.ClientInfo,
        members: Sequence[fl.ClientInfo],
        upload: fl.Upload | None = None,
    ) -> tuple[fl.Broadcast, fl.State]:
        """Send the mean of the members' models, weighted by samples."""
        sizes = torch.tensor([float(one.samples) for one in members], dtype=torch.float64)
        return fl.Broadcast(self.mixture(state, sizes / sizes.sum())), {}


def similarities(heads: Tensor, similarity: Similarity) -> Tensor:
    """Return the (m, m) float64 similarities of (m, C, D) classifiers, with ones on the diagonal.

    They are at least 0, and those of different clients at most 0.9999.

    Args:
        heads: Their weights.
        similarity: ``rows`` is the mean of the cosines of the classes' rows, ``flat`` the cosine of
            the whole matrices.

    Example:
        >>> heads = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[1.0, 0.0], [0.0, -1.0]]])
        >>> similarities(heads, "rows")[0, 1], similarities(heads, "flat")[0, 1]
        (tensor(0., dtype=torch.float64), tensor(0., dtype=torch.float64))
    """
    rows = heads.cpu().double()
    rows = F.normalize(rows if similarity == "rows" else rows.flatten(1)[:, None], dim=-1)
    alike = torch.einsum("icd,jcd->ijc", rows, rows).mean(-1).clamp(0, CAP)
    return alike.fill_diagonal_(1)
