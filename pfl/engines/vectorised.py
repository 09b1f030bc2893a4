"""Clients in parallel on one device, as one stacked model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from pfl.core.checks import at_least_one
from pfl.core.data import info_of
from pfl.core.devices import on_host
from pfl.core.failure import during
from pfl.core.learner import Learner
from pfl.core.types import Job, Phase, Result, Scores
from pfl.engines.guard import disagreement
from pfl.engines.sequential import SequentialEngine
from pfl.engines.stack import round as stack_round
from pfl.engines.stack.capacity import capacity
from pfl.engines.stack.optimizer import ELEMENTWISE
from pfl.training.context import Context
from pfl.training.contexts import Contexts
from pfl.training.optimizer_state import of_all_phases
from pfl.training.phases import make_optimizer, prepared

AnswerT = TypeVar("AnswerT", Result, Scores)

AHEAD = 8
"""Stacks whose jobs are sorted by size together."""

HOOKS = (
    *("on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_before_zero_grad"),
    *("optimizer_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step"),
    *("configure_gradient_clipping", "optimizer_step", "on_train_batch_end"),
    *("on_train_epoch_end", "on_train_end"),
)
"""Hooks of the training loop that a stack does not call for each client."""


class VectorisedEngine(SequentialEngine):
    """Stacks the clients' weights and trains all clients of a stack at once.

    Its numbers equal the sequential engine's but for the last bits of sums; every run checks this
    on a small example (``pfl.engines.guard``). A method or network that cannot be stacked is run
    sequentially, with the reason in the header.

    Args:
        clients: Largest number of clients in a stack; ``None`` uses as many clients of the largest
            size as fit into half of the memory that is free when the run starts
            (``pfl.engines.stack.capacity``).
        tested: Largest number of clients in a stack that is tested without training before it,
            which needs less memory; ``None`` is as in training.

    Raises:
        ValueError: ``clients`` or ``tested`` is below one.
    """

    def __init__(self, clients: int | None = None, tested: int | None = None) -> None:
        at_least_one(clients=clients, tested=tested)
        self.clients = clients
        self.tested = tested

    def setup(self, contexts: Contexts) -> str:
        """Determine whether the method can be stacked."""
        super().setup(contexts)
        alike = contexts.architectures
        reasons = (
            unsupported_reason(one) or disagreement(one)
            for number, one in enumerate(contexts.each())
            if alike[number] == number
        )
        self.unsupported = next(filter(None, reasons), None)
        if self.unsupported:
            return f"sequential, not vectorised: {self.unsupported}"
        self._size = self.clients or capacity(contexts.first)
        if self._size >= contexts.data.num_clients:
            return "vectorised: all clients in one stack"
        why = "" if self.clients else ", which fill half of the free memory"
        return f"vectorised: up to {self._size} clients in one stack{why}"

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Run each client's round."""
        if self.unsupported or any(job.work is not None for job in jobs):
            return super().train(jobs)
        return self._run(stack_round.train, jobs, self._size)

    def test(self, jobs: Sequence[Job]) -> Iterator[Scores]:
        """Test each job's model on its splits."""
        if self.unsupported:
            return super().test(jobs)
        tested = None if self._contexts.first.adapt else self.tested
        return self._run(stack_round.test, jobs, tested or self._size)

    def _run(
        self,
        verb: Callable[[Context, Sequence[Job]], list[AnswerT]],
        jobs: Sequence[Job],
        size: int,
    ) -> Iterator[AnswerT]:
        """Yield answers in the order of the jobs; the clients of a stack have similar sizes."""
        # Of many jobs, those of a few stacks at a time, as the others' answers would wait.
        for first in range(0, len(jobs), AHEAD * size):
            some, answers = jobs[first : first + AHEAD * size], dict[int, AnswerT]()
            for alike in _alike(self._contexts, some):
                for start in range(0, len(alike), size):
                    chunk = alike[start : start + size]
                    context = self._contexts.of(some[chunk[0]].info.client)
                    together = [self._of_stack(context, some[index]) for index in chunk]
                    with during("", together):
                        results = verb(context, together)
                    answers.update(zip(chunk, results, strict=True))
            for index in range(len(some)):
                yield answers.pop(index)

    def _of_stack(self, context: Context, job: Job) -> Job:
        """Return a job for the network of a context, whose initial values may not be its own."""
        own = self._contexts.declared(job.info.client)
        return job if own is context else replace(job, kept={**own.template, **job.kept})


def _alike(contexts: Contexts, jobs: Sequence[Job]) -> list[list[int]]:
    """Group the indices of jobs that can share a stack, largest clients first."""
    groups: dict[Hashable, list[int]] = {}
    for index in sorted(range(len(jobs)), key=lambda i: -jobs[i].info.samples):
        job = jobs[index]
        rate = contexts.module.lr_factor(job.info)
        kept = frozenset(of_all_phases(job.kept))
        network = contexts.architectures[contexts.number_of(job.info.client)]
        key = (network, job.model, job.broadcast is None, job.splits, rate, kept)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def unsupported_reason(context: Context) -> str | None:
    """Return why clients of this method and network cannot be stacked; ``None`` if they can."""
    kinds = (_of_method, _of_run, _of_hooks, _of_network, _of_optimizers)
    return next((reason for kind in kinds for reason in kind(context)), None)


def _of_method(context: Context) -> Iterator[str]:
    """Yield how a method, or a network with its own steps, differs from a function of batches."""
    module = context.module
    if context.own_nets:
        yield f"{type(module.net).__name__} takes its own steps"
    if not module.vectorizable:
        yield f"{type(module).__name__} is not vectorizable"


def _of_run(context: Context) -> Iterator[str]:
    """Yield what a stack cannot do with the task, the device and the precision of the run."""
    if not context.data.task.separable:
        yield f"the loss of {context.data.task} is of a whole batch, and a stack pads batches"
    attends = (isinstance(layer, nn.MultiheadAttention) for layer in context.drawing)
    if not on_host(context.module.device) and any(attends):
        yield "attention with dropout draws in one operation, client by client"
    if context.scaler is not None:
        yield f"each client has its own {context.fabric.strategy.precision.precision} loss scale"


def _of_hooks(context: Context) -> Iterator[str]:
    """Yield what is called between the steps of a client."""
    kind = type(context.module)
    if any(phase.until is not None for phase in _phases(context)):
        yield f"{kind.__name__} ends a phase depending on each client's losses"
    for hook in HOOKS:
        if getattr(kind, hook) is not getattr(Learner, hook):
            yield f"{kind.__name__} overrides {hook}"


def _of_network(context: Context) -> Iterator[str]:
    """Yield what the entries of the network forbid."""
    places = [value.data_ptr() for value in context.entries.values() if value.numel()]
    if len(set(places)) < len(places):
        yield "the network shares weights between layers"
    if _counts_batches(context):
        yield "a batch norm without momentum counts its batches, client by client"


def _counts_batches(context: Context) -> bool:
    """Return ``True`` if a batch norm uses its counter of batches, as one without momentum does.

    Batch norms in eval mode or without running statistics do not.
    """
    running = [name for name, without in context.batch_norms.items() if not without]
    norms = (context.module.get_submodule(name) for name in running)
    return any(getattr(norm, "momentum", None) is None for norm in norms)


def _of_optimizers(context: Context) -> Iterator[str]:
    """Yield why optimisers of the plan cannot be stacked."""
    module, info = context.module, info_of(context.data, 0)
    for phase in _phases(context):
        with prepared(context, phase) as trained:
            if not trained:  # It takes no step, as the context would have refused it otherwise.
                continue
            made = make_optimizer(module, phase, info, trained)
            rule = type(made)
        if rule not in ELEMENTWISE:
            yield f"{rule.__name__} is not known to update each weight independently"
        if made._optimizer_step_pre_hooks or made._optimizer_step_post_hooks:
            yield f"{rule.__name__} has a hook, which sees the parameters of one client"
        if module.persist_optimizer and rule is not torch.optim.SGD:
            yield f"{rule.__name__} counts steps, and its state is kept from round to round"


def _phases(context: Context) -> Iterator[Phase]:
    """Yield the phases of training and adaptation."""
    return (part for part in (*context.plan, *context.adapt) if isinstance(part, Phase))
