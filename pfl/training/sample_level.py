"""Steps that keep single samples private (DP-SGD): clipped gradients of each sample, and noise.

Abadi et al., "Deep learning with differential privacy", CCS 2016, Algorithm 1: the gradient of each
sample is scaled to a norm of at most C, over all parameters that the phase trains; the step's
gradient is ``(sum of these + N(0, (sigma C)^2 I)) / (q n)``. Batches are Poisson draws, each sample
with probability q, and q n is their mean size. A sample's gradient is that of the phase's own
objective on a batch of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor
from torch.func import grad, vmap

from pfl.core.devices import widest
from pfl.core.seeds import derive
from pfl.core.state import Entries, call_with, each, entry, flattened, total, unflattened
from pfl.core.types import Batch, ClientInfo, Inputs, Job, Outcome, Phase, State
from pfl.passage.draws import from_system
from pfl.training import batching
from pfl.training.context import Context
from pfl.training.noise import Noise

Steps: TypeAlias = tuple[tuple[int, int], ...]
"""A client's steps in a round by the steps of an epoch, m: each has a sample with rate 1 / m."""


def steps_of(context: Context, info: ClientInfo) -> Steps:
    """Return the steps that a client takes in a round of a plan that keeps samples private."""
    counts = Counter[int]()
    for part in context.plan:
        if isinstance(part, Phase):
            length = batching.length(part, context.entries, info)
            batches = batching.epoch_steps(context, part, info.samples)
            counts[batches] += batching.most_steps(context, part, length, info.samples)
    return tuple(sorted(counts.items()))


class PrivateSteps:
    """The private gradients of some clients in one phase, step by step.

    Args:
        context: The module and its data.
        phase: The phase.
        jobs: Of the clients, with the same ``sample_level``; their seeds determine the noise.
        sizes: Number of training samples of each.
        trained: The parameters that the phase trains.
        steps: How many steps there are, at most.
    """

    def __init__(
        self,
        context: Context,
        phase: Phase,
        jobs: Sequence[Job],
        sizes: Sequence[int],
        trained: Mapping[str, Tensor],
        steps: int,
    ) -> None:
        level = jobs[0].sample_level
        assert level is not None
        self._module, self._phase, self._clip = context.module, phase, level.clip
        # Without noise the clip may be infinite.
        self._deviation = level.sigma * level.clip if level.sigma else 0.0
        self._system = level.system
        self._shapes = {name: tuple(value.shape) for name, value in trained.items()}
        device = context.fabric.device
        keys = [derive(job.seed, "privacy", phase.name) for job in jobs]
        self._noise = Noise(self._shapes, keys, steps, device)
        means = [size / batching.epoch_steps(context, phase, size) for size in sizes]
        self._means = torch.tensor(means, dtype=widest(device)).to(device)
        self._names = tuple(trained)
        # Each sample draws its own dropout.
        self._randomness = "different" if context.stochastic else "error"

    def alone(self, batch: Batch, number: int, empty: bool) -> tuple[Outcome, State, State]:
        """Return the terms, gradients and logged numbers of one client's step.

        Args:
            batch: The step's batch, of at least one sample.
            number: The step.
            empty: Whether no sample of the batch counts.
        """
        if empty:
            batch = batch._replace(weight=torch.zeros(len(batch.y), device=batch.y.device))
        with torch.no_grad():
            sums = self.sums(batch)
            stacked = self.finish({key: value[None] for key, value in sums.items()}, number)
        means = unflattened({key: value[0] for key, value in stacked.items()})
        return Outcome(means["terms"]), means["gradients"], means["logged"]

    def sums(self, batch: Batch) -> Entries:
        """Return sums over a batch: of the samples' clipped gradients, terms and logged numbers.

        It may be called under ``vmap``, of stacked clients.

        Args:
            batch: Its weights are one for a sample, zero for padding; without weights, all are one.
        """
        module = self._module
        values = {name: entry(module, name) for name in self._names}

        def of_sample(x: Inputs, y: Tensor) -> tuple[State, Entries]:
            single = Batch(each(lambda value: value[None], x), y[None], None, batch.noise)

            def objective(trained: State) -> tuple[Tensor, Entries]:
                outcome = call_with(module, trained, self._phase.objective, single)
                terms = outcome.terms if isinstance(outcome, Outcome) else outcome
                return total(terms), flattened({"terms": terms, "logged": module.take_logged()})

            gradients, parts = grad(objective, has_aux=True)(values)
            return gradients, parts

        gradients, parts = vmap(of_sample, randomness=self._randomness)(batch.x, batch.y)
        # Autocast would sum in half precision.
        with torch.autocast(self._means.device.type, enabled=False):
            squares = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0)
            factors = (self._clip / squares.sqrt()).clamp(max=1)
            if batch.weight is not None:
                # Not a product: a sample that does not count may have no finite gradient.
                factors = factors.where(batch.weight > 0, 0)
            counts = torch.ones_like(factors) if batch.weight is None else batch.weight
            sums = {("gradients", n): torch.tensordot(factors, g, 1) for n, g in gradients.items()}
            return {**sums, **{key: (counts.to(v) * v).sum() for key, v in parts.items()}}

    def finish(self, sums: Entries, number: int) -> Entries:
        """Return the gradients, terms and logged numbers of a step of the first clients.

        Args:
            sums: Of :meth:`sums`, each with a leading axis of clients.
            number: The step.
        """
        finished = Entries()
        clients = len(next(iter(sums.values())))
        draws = self._draws(number, clients)
        for (part, name), value in sums.items():
            if part == "gradients":
                value = value + self._deviation * draws[name].to(value.dtype)
            means = self._means[:clients].to(value.dtype)
            finished[part, name] = value / means.view(-1, *[1] * (value.dim() - 1))
        return finished

    def _draws(self, number: int, clients: int) -> State:
        """Return (clients, *shape) standard normal draws of a step, by name."""
        if not self._system:
            return self._noise.of_step(number, clients)
        device, dtype = self._means.device, torch.get_default_dtype()
        return {
            name: from_system(clients * prod(shape), device, dtype).view(clients, *shape)
            for name, shape in self._shapes.items()
        }
