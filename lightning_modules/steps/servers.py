"""Servers that step towards the average, or beyond it, and the step itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from pfl import method as fl

Slopes: TypeAlias = Callable[..., tuple[Tensor, Sequence[Tensor | None]]]
"""The loss of given values on the tensors of a batch, and its gradient, in the values' order."""


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
        self, start: fl.State, slopes: Slopes, rows: Sequence[Tensor], orders: Iterable[Tensor]
    ) -> tuple[fl.State, float]:
        """Return the values after a step on each batch, and the mean loss (0 without a step).

        Each step begins where the last one ended, so that none can be taken beside another.

        Args:
            start: The values to train; they are not changed.
            slopes: Returns the loss of given values on a batch, and its gradient in the same order;
                such as :func:`slopes_of` a loss.
            rows: Tensors whose rows belong together, such as inputs and labels.
            orders: The order of the rows in each epoch.

        Example:
            >>> def halved(state, x):
            ...     return 0.5 * (state["w"] * x).square().sum()
            >>> server, start = MeansServer(server_lr=0.5), {"w": torch.tensor([8.0])}
            >>> server.descended(start, slopes_of(halved), [torch.ones(20)], [torch.arange(20)])
            ({'w': tensor([128.])}, 2720.0)
        """
        values, losses = fl.clone(start), []
        # Thousands of tiny steps, one after another: an optimiser would take as long again.
        with torch.inference_mode():
            for order in orders:
                shuffled = (each.index_select(0, order.to(each.device)) for each in rows)
                batches = (torch.split(each, self.server_batch) for each in shuffled)
                for batch in zip(*batches, strict=True):
                    loss, gradient = slopes(values, *batch)
                    for value, slope in zip(values.values(), gradient, strict=True):
                        if slope is not None:
                            value.add_(slope, alpha=-self.server_lr)
                    losses.append(loss)
            return values, float(torch.stack(losses).mean()) if losses else 0.0


def slopes_of(loss: Callable[..., Tensor]) -> Slopes:
    """Return a function that computes a loss and its gradient by autograd."""

    def slopes(values: fl.State, *batch: Tensor) -> tuple[Tensor, Sequence[Tensor | None]]:
        with torch.inference_mode(False), torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
            found = loss(leaves, *(each.clone() for each in batch))
            gradient = torch.autograd.grad(found, [*leaves.values()], allow_unused=True)
            return found.detach(), gradient

    return slopes


def linear_slopes(
    values: fl.State, x: Tensor, y: Tensor, chosen: Tensor
) -> tuple[Tensor, Sequence[Tensor | None]]:
    """Return the mean cross-entropy of a linear layer, and its gradient.

    It calls what autograd would call, and has the same bits, in a fifth of the time: for layers
    that are as small as a head, autograd's own work takes longer than the arithmetic.

    Args:
        values: The layer's ``weight`` and ``bias``, in any order.
        x: (n, D) inputs.
        y: (n,) labels.
        chosen: (n, C) -1 at the label, and 0 elsewhere.
    """
    chances = F.linear(x, values["weight"], values["bias"]).log_softmax(1)
    slope = torch._log_softmax_backward_data(chosen / y.shape[0], chances, 1, x.dtype)
    found = {"weight": slope.t().mm(x), "bias": slope.sum(0)}
    return F.nll_loss(chances, y), [found[name] for name in values]


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
