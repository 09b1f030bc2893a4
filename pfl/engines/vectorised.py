"""Clients side by side on one device, as one stacked model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

import lightning as L
import torch
from torch import nn

from pfl.core.types import ClientInfo, Job, Phase, Result, Scores
from pfl.engines import stack_round
from pfl.engines.base import Engine
from pfl.engines.guard import disagreement
from pfl.engines.memory import capacity
from pfl.engines.sequential import SequentialEngine
from pfl.engines.stack_optimizer import ELEMENTWISE
from pfl.training.context import Context
from pfl.training.optimizer_state import of_all_phases
from pfl.training.phases import make_optimizer, prepare, release

AnswerT = TypeVar("AnswerT", Result, Scores)

HOOKS = (
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_zero_grad",
    "optimizer_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
    "optimizer_step",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_train_end",
)
"""Steps of the training loop that are not taken for one client at a time."""


class VectorisedEngine(Engine):
    """Stacks the clients' weights and trains them in one go, to the sequential engine's numbers.

    They agree up to the rounding of sums; every run checks that on a small play of its own
    (``pfl.engines.guard``). What cannot be stacked runs sequentially, and the engine says why.

    Args:
        clients: How many go together at most; ``None`` takes as many as fit in half of the memory
            that is free when a run begins, each as large as the largest
            (``pfl.engines.memory``).
        dropout: Stack networks with dropout as well. All draw from one stream then: other numbers
            than the sequential engine's, equal to them in distribution only, and the same again for
            the same ``clients``, which have to be given.

    Raises:
        ValueError: ``clients`` is below one, or missing where ``dropout`` asks for it.
    """

    def __init__(self, clients: int | None = None, dropout: bool = False) -> None:
        if clients is not None and clients < 1:
            raise ValueError(f"clients must be at least 1, got {clients}")
        if dropout and clients is None:
            raise ValueError(
                "dropout=True needs a number of clients: who goes together decides what they draw, "
                "and without it that depends on the memory at hand; got clients=None"
            )
        self.clients = clients
        self.dropout = dropout
        self._sequential = SequentialEngine()

    def setup(self, context: Context) -> str:
        """Find out whether the method can be stacked."""
        self._context = context
        self._sequential.setup(context)
        self.obstacle = obstacle(context, self.dropout) or disagreement(context)
        if self.obstacle:
            return f"sequential, not vectorised: {self.obstacle}"
        self._size = self.clients or capacity(context)
        if self.clients is None and self._size >= context.data.num_clients:
            return "vectorised: all clients in one go"
        why = "" if self.clients else ", which fill half of the free memory"
        return f"vectorised: {self._size} clients in one go{why}"

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Run each client's round."""
        if self.obstacle:
            return self._sequential.train(jobs)
        return self._run(stack_round.train, jobs)

    def test(self, jobs: Sequence[Job]) -> Iterator[Scores]:
        """Test each job's model on its splits."""
        if self.obstacle:
            return self._sequential.test(jobs)
        return self._run(stack_round.test, jobs)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _run(
        self, verb: Callable[[Context, Sequence[Job]], list[AnswerT]], jobs: Sequence[Job]
    ) -> Iterator[AnswerT]:
        """Answers in the order of the jobs; clients that go together are of about equal size."""
        answers: dict[int, AnswerT] = {}
        for alike in _alike(self._context, jobs):
            for start in range(0, len(alike), self._size):
                chunk = alike[start : start + self._size]
                found = verb(self._context, [jobs[index] for index in chunk])
                answers.update(zip(chunk, found, strict=True))
        for index in range(len(jobs)):
            yield answers[index]


def _alike(context: Context, jobs: Sequence[Job]) -> list[list[int]]:
    """Group the indices of jobs that can go together, largest clients first."""
    groups: dict[Hashable, list[int]] = {}
    for index in sorted(range(len(jobs)), key=lambda i: -jobs[i].info.samples):
        job = jobs[index]
        rate = context.module.lr_factor(job.info)
        kept = frozenset(of_all_phases(job.kept))
        key = (job.model, job.broadcast is None, job.splits, rate, kept)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def obstacle(context: Context, dropout: bool = False) -> str | None:
    """Say why clients of this method and network cannot be stacked; ``None`` if they can.

    Args:
        context: With the method and network.
        dropout: As in :class:`VectorisedEngine`.
    """
    module = context.module
    name = type(module).__name__
    if not module.vectorizable:
        return f"{name} has steps of its own for each client"
    if context.stochastic and not dropout:
        return "dropout draws from torch's default stream, client by client"
    if any(isinstance(child, nn.RReLU) for child in module.modules()):
        return "RReLU cannot draw for several clients at once"
    if context.scaler is not None:
        return f"the loss scale of {context.fabric.strategy.precision.precision} is a client's own"
    parts = (*context.plan, *context.adapt)
    if any(isinstance(part, Phase) and part.until is not None for part in parts):
        return f"{name} ends a phase by the losses of each client"
    if hook := _overridden(module):
        return f"{name} overrides {hook}"
    if _shares_weights(context):
        return "the network shares weights between layers"
    if _counts_batches(context):
        return "a batch norm without momentum counts its batches, client by client"
    return _optimizers(context)


def _overridden(module: L.LightningModule) -> str | None:
    """Find a hook of the training loop that a method changed."""
    order = type(module).__mro__
    base = order[order.index(L.LightningModule) - 1]
    return next((h for h in HOOKS if getattr(type(module), h) is not getattr(base, h)), None)


def _shares_weights(context: Context) -> bool:
    places = [value.data_ptr() for value in context.entries.values() if value.numel()]
    return len(set(places)) < len(places)


def _counts_batches(context: Context) -> bool:
    """Tell whether a batch norm reads its counter, as one without momentum does.

    A teacher in eval mode, or without running statistics, does not.
    """
    running = [name for name, without in context.batch_norms.items() if not without]
    norms = (context.module.get_submodule(name) for name in running)
    return any(getattr(norm, "momentum", None) is None for norm in norms)


def _optimizers(context: Context) -> str | None:
    """Find an optimiser that does not act elementwise, or keeps state that cannot be stacked."""
    module, info = context.module, ClientInfo.of(context.data, 0)
    for part in (*context.plan, *context.adapt):
        if not isinstance(part, Phase):
            continue
        optimizer = make_optimizer(module, part, info, prepare(context, part))
        release(context)
        kind = type(optimizer)
        if kind not in ELEMENTWISE:
            return f"{kind.__name__} is not known to act on each weight by itself"
        if module.persist_optimizer and kind is not torch.optim.SGD:
            return f"{kind.__name__} counts steps, and its state is kept from round to round"
    return None
