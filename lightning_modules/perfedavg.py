"""Per-FedAvg: an initialisation from which one gradient step gives a good model for each client.

Fallah et al., "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020, arXiv 2002.07948, in both of its practical forms: first-order
(FO) and Hessian-free (HF). The authors released no code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_modules import base as fl


class PerFedAvg(fl.ClientModule):
    """A meta-learned initialisation that each client adapts by a gradient step before the test.

    A meta-step from w, with independent parts D, D', D'' of a batch, is ``w~ = w - alpha grad(w;
    D)``, ``g = grad(w~; D')``, and ``w <- w - beta d`` with ``d = g`` (FO) or ``d = g - alpha
    (grad(w + delta g; D'') - grad(w - delta g; D'')) / (2 delta)`` (HF). beta is the learning rate
    of the optimiser, which must be SGD without momentum. Under a plain Trainer the objective is
    cross-entropy. The whole network travels both ways; nothing stays with the client, as the
    adapted copy is discarded after the test.

    There are no departures from the paper. Public codes differ: there, clients with fewer than two
    or three batches do not train, while here every client takes at least one meta-step; and the
    baseline in pFedMe's repository adapts on test data, while here clients adapt on training data.

    Args:
        net: The network.
        variant: ``fo`` or ``hf``.
        inner_lr: alpha, the learning rate of the step to w~ and of the adaptation before the test.
        delta: Step size of HF's finite difference.
        part_size: Samples in each of D, D', D''. ``None`` divides each of the data module's batches
            into two (HF: three) parts.
        adapt_epochs: Adapt for this many epochs before the test; ``None`` takes one step on one
            training batch (paper).
        weighting: As in :class:`ClientModule`; the paper's is ``uniform``.
        options: See :class:`ClientModule`. ``lr_decay`` and ``lr_schedule`` apply to beta and to
            the adaptation.

    Raises:
        ValueError: A number is out of range, or a choice is unknown.
    """

    record = fl.MethodRecord(
        name="Per-FedAvg",
        family="One model for all, and where to tune it",
        travels="network",
        apart="a meta-learned starting point (first-order and Hessian-free)",
        paper=fl.Paper(
            (
                "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic "
                "Meta-Learning Approach"
            ),
            "Fallah, Alireza and Mokhtari, Aryan and Ozdaglar, Asuman",
            "NeurIPS",
            2020,
            "https://arxiv.org/abs/2002.07948",
        ),
    )

    vectorizable = True
    needs = ("outputs",)

    def __init__(
        self,
        net: nn.Module,
        *,
        variant: Literal["fo", "hf"] = "fo",
        inner_lr: fl.NotNegative[float] = 0.01,
        delta: fl.Positive[float] = 1e-3,
        part_size: fl.AtLeastOne | None = None,
        adapt_epochs: fl.NotNegative[int] | None = None,
        weighting: Literal["samples", "uniform"] = "uniform",
        **options: Any,
    ) -> None:
        super().__init__(net, weighting=weighting, **options)
        self.parts = 2 if variant == "fo" else 3
        self.inner_lr = inner_lr
        self.delta = delta
        self.part_size = part_size
        self.adapt_epochs = adapt_epochs
        # A batch norm in train mode cannot use a batch of one sample.
        norms = nn.modules.batchnorm._BatchNorm
        resting = {
            child
            for home in net.modules()
            if isinstance(home, fl.Frozen)
            for child in home.modules()
        }
        coupled = any(isinstance(child, norms) for child in set(net.modules()) - resting)
        self.least = 2 if coupled else 1

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return alpha in the range of the literature."""
        return (fl.Dimension("inner_lr", 0.001, 0.1, log=True),)

    def plan(self) -> fl.Plan:
        """Declare the meta-steps."""
        size = None if self.part_size is None else self.parts * self.part_size
        return [fl.Phase(name="meta", objective=self._meta, epochs=self.epochs, batch_size=size)]

    def adapt(self) -> fl.Plan:
        """Declare the adaptation before the test."""
        return [
            fl.Phase(
                name="adapt",
                objective=self.losses,
                epochs=self.adapt_epochs or 0,
                steps=1 if self.adapt_epochs is None else None,
                optimizer=partial(torch.optim.SGD, lr=self.inner_lr),
            )
        ]

    def configure_optimizers(self) -> Optimizer:
        """Return the optimiser of the meta-step.

        Raises:
            ValueError: It is not SGD, or has momentum.
        """
        optimizer = super().configure_optimizers()
        if other := fl.beyond_plain_sgd(optimizer):
            raise ValueError(
                f"Per-FedAvg takes plain gradient steps, by SGD with a momentum of 0; got {other}"
            )
        return optimizer

    def _meta(self, batch: fl.Batch) -> fl.Outcome:
        """Return the cross-entropy of the adapted model, with the direction d as its gradient."""
        first, second, *third = split_batch(batch, self.parts, self.least)
        start = {name: value.detach() for name, value in self.net.named_parameters()}
        before = fl.statistics(self.net)
        slope, _, buffers = fl.slopes_at(self.net, start, before, first, self.task.loss)
        adapted = fl.add(start, slope, scale=-self.inner_lr)
        direction, loss, buffers = fl.slopes_at(self.net, adapted, buffers, second, self.task.loss)
        for part in third:
            # The changes that these two passes make to running statistics are discarded.
            forth, back = (fl.add(start, direction, sign * self.delta) for sign in (1, -1))
            ahead, _, _ = fl.slopes_at(self.net, forth, buffers, part, self.task.loss)
            behind, _, _ = fl.slopes_at(self.net, back, buffers, part, self.task.loss)
            curvature = fl.subtract(ahead, behind)
            direction = fl.add(direction, curvature, -self.inner_lr / (2 * self.delta))
        value = fl.with_gradient(loss, self.net.parameters(), direction.values())
        entries = {f"net.{name}": value for name, value in buffers.items()}
        return fl.Outcome({self.task.loss_name: value}, entries)


def split_batch(batch: fl.Batch, parts: int, least: int = 1) -> list[fl.Batch]:
    """Divide a batch into parts: sample j goes to part ``j % parts``.

    A part that would get no sample repeats the first part. Real samples of a padded batch come
    first, so the parts have the same samples with and without padding.

    Args:
        batch: At least one sample.
        parts: Number of parts.
        least: Minimum number of samples in a part. If some part would get fewer, every part is the
            whole batch.

    Example:
        >>> batch = fl.Batch(torch.arange(5), torch.zeros(5))
        >>> [part.x.tolist() for part in split_batch(batch, 2)]
        [[0, 2, 4], [1, 3]]
    """
    count = len(batch.y)
    if least > 1 and count < least * parts:
        return [batch] * parts
    batches = []
    for k in range(parts):
        rows = slice(k if k < count else 0, None, parts)
        weight = None if batch.weight is None else batch.weight[rows]
        batches.append(fl.Batch(fl.each(itemgetter(rows), batch.x), batch.y[rows], weight))
    return [_unless_empty(part, batches[0]) for part in batches]


def _unless_empty(part: fl.Batch, first: fl.Batch) -> fl.Batch:
    """Return the part, or the beginning of the first part if the part is only padding."""
    if part.weight is None or first.weight is None:
        return part
    empty = part.weight.sum() == 0
    rows = slice(len(part.y))

    def either(values: list[Tensor]) -> Tensor:
        return torch.where(empty, values[0], values[1])

    return fl.Batch(
        fl.joined(either, [fl.each(itemgetter(rows), first.x), part.x]),
        either([first.y[rows], part.y]),
        either([first.weight[rows], part.weight]),
    )
