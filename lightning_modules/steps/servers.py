"""Servers that step towards the average, or beyond it, and the step itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from pfl import method as fl

Descent: TypeAlias = Callable[..., Tensor]
"""Takes a gradient step with given values on the tensors of a batch, and returns the loss."""


@dataclass(eq=False)
class MovingServer(fl.Server[fl.ServerState]):
    """A server that moves from its old values towards the average of the uploads.

    The new values are ``(1 - beta) old + beta average``. Used by pFedMe (Dinh et al., NeurIPS 2020,
    arXiv 2006.08848) and pFedBayes (Zhang et al., ICML 2022, arXiv 2206.07977).

    Args:
        weighting: As in :class:`~pfl.core.server.Server`.
        step: beta; 1 gives the average, more than 1 goes beyond it.
        parameters: Names of the entries that go beyond the average; the others stop at it.

    Raises:
        ValueError: ``step`` is negative.
    """

    step: fl.NotNegative[float] = 1.0
    parameters: fl.Patterns = ("*",)

    def __post_init__(self) -> None:
        fl.check_arguments(self)

    def finish(self, state: fl.ServerState, folded: fl.Folded) -> fl.ServerState:
        """Return the state after the step; see :meth:`pfl.core.server.Server.finish`."""
        after = super().finish(state, folded)
        if self.step == 1:
            return after
        # Beyond their average, running variances could be negative.
        names = self.parameters if self.step > 1 else ("*",)
        return replace(after, shared=stepped(state.shared, after.shared, self.step, names))


@dataclass(frozen=True, kw_only=True)
class DampedState(fl.ServerState):
    """The shared values, and the sum of all members' weights."""

    total: int


class DampedServer(fl.Server[DampedState]):
    """A server that averages as if absent members had sent back the last global values.

    As in the authors' code of FedEM (Marfoq et al., NeurIPS 2021, arXiv 2108.10252).
    """

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> DampedState:
        """Add up the weights of all members."""
        return DampedState(shared=shared, total=self._total(clients))

    def begin(self, state: DampedState, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Declare the mean, and who is in it."""
        return {**super().begin(state, senders), "present": fl.Uploads(shared=(), extra=())}

    def finish(self, state: DampedState, folded: fl.Folded) -> DampedState:
        """Return the state with the average over all members."""
        after = super().finish(state, folded)
        share = self._total(folded["present"]) / state.total
        return replace(after, shared=stepped(state.shared, after.shared, share))

    def _total(self, clients: Sequence[fl.ClientInfo | fl.Upload]) -> int:
        samples = [client.samples for client in clients]
        return sum(samples if self.weighting == "samples" else map(bool, samples))


@dataclass(eq=False)
class MeansServer(fl.Server[fl.StateT]):
    """A server that trains parameters on the class means that clients send.

    It takes steps of plain SGD; clients send what
    :func:`~lightning_modules.steps.prototypes.means_upload` returns.

    Args:
        weighting: Not used.
        server_lr: Learning rate.
        server_epochs: Epochs over all means of the round.
        server_batch: Batch size, in means.
    """

    reports: ClassVar = {}
    server_lr: float = 0.01
    server_epochs: int = 100
    server_batch: int = 10

    def begin(self, state: fl.StateT, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Hold the class means of all clients."""
        return {"means": fl.Uploads(shared=())}

    def orders(self, count: int, round: int) -> Iterable[Tensor]:
        """Return the order of ``count`` means in each epoch, shuffled anew."""
        rng = fl.generator(self.seed, "means", round)
        return (torch.randperm(count, generator=rng) for _ in range(self.server_epochs))

    def descended(
        self, start: fl.State, descend: Descent, rows: Sequence[Tensor], orders: Iterable[Tensor]
    ) -> tuple[fl.State, float]:
        """Return the values after a step on each batch, and the mean loss (0 without a step).

        Each step begins where the last one ended, so that none can be taken beside another.

        Args:
            start: The values to train; they are not changed.
            descend: Takes a step, such as :func:`descent` by autograd.
            rows: Tensors whose rows belong together, such as inputs and labels.
            orders: The order of the rows in each epoch.

        Example:
            >>> def halved(state, x):
            ...     return 0.5 * (state["w"] * x).square().sum()
            >>> server, start = MeansServer(server_batch=1), {"w": torch.tensor([8.0])}
            >>> rows, orders = [torch.ones(2)], [torch.arange(2)]
            >>> server.descended(start, descent(halved, 0.5), rows, orders)
            ({'w': tensor([2.])}, 20.0)
        """
        values, losses = fl.clone(start), []
        # Thousands of tiny steps, one after another: an optimiser would take as long again.
        with torch.inference_mode():
            for order in orders:
                shuffled = (each.index_select(0, order.to(each.device)) for each in rows)
                batches = (torch.split(each, self.server_batch) for each in shuffled)
                losses += [descend(values, *batch) for batch in zip(*batches, strict=True)]
            return values, float(torch.stack(losses).mean()) if losses else 0.0


def descent(loss: Callable[..., Tensor], lr: float) -> Descent:
    """Return a function that takes steps of plain SGD by the gradient that autograd finds."""

    def descend(values: fl.State, *batch: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
            found = loss(leaves, *(each.clone() for each in batch))
            slopes = torch.autograd.grad(found, [*leaves.values()], allow_unused=True)
        for value, slope in zip(values.values(), slopes, strict=True):
            if slope is not None:
                value.add_(slope, alpha=-lr)
        return found.detach()

    return descend


def linear_descent(lr: float) -> Descent:
    """Return a function that takes steps of plain SGD with a linear layer's mean cross-entropy.

    For layers that are as small as a head, autograd's own work takes several times as long as the
    arithmetic, and so does each further call: this one makes five.

    Returns:
        A function of the layer's only value, its weight (C, D); of (n, D) inputs, among them a
        column of ones if it has a bias; of their (n,) labels; and of (n, C) targets, -1 at the
        label and 0 elsewhere. It returns the loss.
    """

    def descend(values: fl.State, x: Tensor, y: Tensor, targets: Tensor) -> Tensor:
        (weight,) = values.values()
        chances = x.mm(weight.t()).log_softmax(1)
        slopes = torch._log_softmax_backward_data(targets, chances, 1, x.dtype)
        weight.addmm_(slopes.t(), x, alpha=-lr / y.shape[0])
        return F.nll_loss(chances, y)

    return descend


def uploaded_means(uploads: Sequence[fl.Upload], like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (n, D) class means of some uploads, and their (n,) classes.

    They are in the order of uploads and classes; the means have the type of ``like``.
    """
    means = torch.cat([upload.extra["means"] for upload in uploads])
    classes = torch.cat([upload.extra["classes"] for upload in uploads])
    return means.to(like), classes.to(like.device, torch.int64)


def stepped(old: fl.State, new: fl.State, scale: float, names: fl.Patterns = ("*",)) -> fl.State:
    """Return ``old + scale (new - old)`` for entries that match ``names``, and ``new`` for others.

    Example:
        >>> import torch
        >>> old, new = {"w": torch.tensor(1.0)}, {"w": torch.tensor(3.0)}
        >>> stepped(old, new, 2.0)
        {'w': tensor(5.)}
    """
    start = fl.select(old, names)
    return {**new, **fl.add(start, fl.subtract(fl.select(new, names), start), scale)}
