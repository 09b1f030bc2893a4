"""Sample-level private steps (DP-SGD): clipped gradients of each sample, and noise.

Abadi et al., "Deep learning with differential privacy", CCS 2016, Algorithm 1: the gradient of each
sample is scaled to a norm of at most C, over all parameters that the phase trains; the step's
gradient is ``(sum of these + N(0, (sigma C)^2 I)) / (q n)``. Batches are Poisson draws, each sample
with probability q, and q n is their mean size. A sample's gradient is that of the phase's objective
on a batch of one; it counts as zero if it is not finite.

Noise from the system is for real clients, whose server may choose weights such that rounding alone
reveals a sample. The rounding of a gradient depends on the batch size and on the position in the
batch: batches therefore have a fixed size, and positions are secret. Sums are taken in float64 and
rounded with their noise to a grid, as the spacing of floating-point numbers would depend on the sum
without noise (Mironov, "On significance of the least significant bits for differential privacy",
CCS 2012).
"""

from __future__ import annotations

import math
import secrets
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, TypeAlias

import pydantic.dataclasses
import torch
from pydantic import Field
from torch import Tensor
from torch.func import grad, vmap

from pfl.core.devices import widest
from pfl.core.failure import error_line
from pfl.core.noise import Noise
from pfl.core.seeds import derive
from pfl.core.state import Entries, call_with, each, entry, flattened, total, unflattened
from pfl.core.types import Batch, ClientInfo, Drawn, Inputs, Job, Outcome, Phase, State
from pfl.extras.privacy.account import check_drawn
from pfl.extras.privacy.clip import Norm
from pfl.extras.privacy.draws import from_system
from pfl.extras.privacy.terms import check_noise
from pfl.training import batching
from pfl.training.context import Context
from pfl.training.gradients import Gradients, GradientStep, SecretGradients

Steps: TypeAlias = tuple[tuple[int, int], ...]
"""A client's steps in a round by the steps of an epoch, m; a sample's rate is 1 / m."""

# Margin by which the norm of a clipped gradient stays below the clip.
_HAIR = 2.0**-44
# Of the noise's deviation: a cell of the grid has a thousandth of a millionth of float64's numbers.
_GRID = 2.0**-16


def steps_of(context: Context, info: ClientInfo) -> Steps:
    """Return the steps of a client in a round of a plan that keeps samples private."""
    counts = Counter[int]()
    for part in context.plan:
        if isinstance(part, Phase):
            length = batching.length(part, context.entries, info)
            batches = batching.epoch_steps(context, part, info.samples)
            counts[batches] += batching.most_steps(context, part, length, info.samples)
    return tuple(sorted(counts.items()))


@pydantic.dataclasses.dataclass(frozen=True)
class PrivateSamples(GradientStep):
    """Privacy of a client's single samples: the clip and noise of each training step.

    Attributes:
        clip: Largest norm of a sample's gradient, C.
        sigma: Deviation of the noise in units of C.
        system: Whether noise and batches come from the operating system instead of the job's seed:
            the account assumes that a server knows neither a batch's samples nor its draws.

    Raises:
        ValueError: A number is out of range, or the noise is unbounded.
    """

    clip: Norm
    sigma: Annotated[float, Field(ge=0)]
    system: bool = False

    def __post_init__(self) -> None:
        check_noise(self.clip, self.sigma)

    @property
    def secret(self) -> bool:
        """Whether random choices come from the operating system."""
        return self.system

    @property
    def final(self) -> bool:
        """``True``: the noise is accounted for as it was drawn."""
        return True

    def training_info(self, info: ClientInfo) -> ClientInfo:
        """Hide the class counts, which have no noise."""
        return replace(info, label_counts=None)

    def batches(self, job: Job, phase: Phase, epoch: int, samples: int, count: int) -> list[Tensor]:
        """Draw the batches of an epoch, some perhaps empty.

        Each sample is in each batch with probability 1 / ``count``, independently, so that an epoch
        contains it once on average.
        """
        rng = torch.Generator().manual_seed(job.seed_of("poisson", phase.name, epoch))
        # In float64, as the account's probability is.
        draws = torch.rand((count, samples), generator=rng, dtype=torch.float64)
        return [row.nonzero().flatten() for row in draws * count < 1]

    def gradients(
        self, context: Context, phase: Phase, jobs: Sequence[Job], steps: int
    ) -> PrivateSteps:
        """Return the private gradients of clients for a phase."""
        kind = SecretSteps if self.system else PrivateSteps
        return kind(self, context, phase, jobs, steps)

    def sound(self, losses: Mapping[str, float]) -> bool:
        """Return ``True``: a gradient that is not finite counts as zero, and is not told."""
        return True


class PrivateSteps(Gradients):
    """The private gradients of some clients in one phase, step by step.

    Args:
        level: Clip and noise.
        context: The module and its data.
        phase: The phase.
        jobs: Jobs of the clients; their seeds determine the noise.
        steps: Largest number of steps.
    """

    def __init__(
        self,
        level: PrivateSamples,
        context: Context,
        phase: Phase,
        jobs: Sequence[Job],
        steps: int,
    ) -> None:
        trained = context.train_only(phase.trains)
        sizes = [job.info.samples for job in jobs]
        self._module, self._phase, self._bound = context.module, phase, level.clip
        self._level = level
        # Without noise the clip may be infinite.
        self._deviation = level.sigma * level.clip if level.sigma else 0.0
        self._dtypes = {name: value.dtype for name, value in trained.items()}
        self._shapes = {name: tuple(value.shape) for name, value in trained.items()}
        device = context.fabric.device
        keys = [derive(job.seed, "privacy", phase.name) for job in jobs]
        self._noise = Noise(self._shapes, keys, steps, device)
        means = [size / batching.epoch_steps(context, phase, size) for size in sizes]
        self._means = torch.tensor(means, dtype=widest(device)).to(device)
        self._batches = [batching.epoch_steps(context, phase, size) for size in sizes]
        # Of each client: the sum of squares of all noise that was added, and in how many steps.
        self._squares = torch.zeros(len(jobs), dtype=self._means.dtype, device=device)
        self._noisy = torch.zeros(len(jobs), dtype=torch.int64, device=device)
        # Each sample has its own dropout mask.
        self._randomness = "different" if context.drawing else "error"

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
            return self._of_one(self.sums(batch), number)

    def _of_one(self, sums: Entries, number: int) -> tuple[Outcome, State, State]:
        stacked = self.finish({key: value[None] for key, value in sums.items()}, number)
        means = unflattened({key: value[0] for key, value in stacked.items()})
        return Outcome(means["terms"]), means["gradients"], means["logged"]

    def sums(self, batch: Batch) -> Entries:
        """Return sums of the clipped gradients, terms and logged numbers of a batch's samples.

        It may be called under ``vmap`` over stacked clients.

        Args:
            batch: The batch; weights are one for samples and zero for padding, by default one.
        """
        module = self._module
        values = {name: entry(module, name) for name in self._shapes}

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
            wide = self._means.dtype
            # In float64, as squares of small float32 numbers underflow.
            norms = [
                torch.linalg.vector_norm(g.flatten(1), dim=1, dtype=wide)
                for g in gradients.values()
            ]
            norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)
            # Padding and samples without a finite norm contribute nothing.
            counted = norm.isfinite()
            if batch.weight is not None:
                counted = counted & (batch.weight > 0)
            # The clip is the norm's lower bound, so that the factor is at most one.
            factors = (self._bound / norm.clamp(min=self._bound)).where(counted, 0)
            if math.isinf(self._bound):
                factors = counted.to(wide)
            counts = torch.ones_like(norm) if batch.weight is None else batch.weight
            sums = Entries()
            for name, g in gradients.items():
                dtype = self._summed(g.dtype)
                kept = counted.view(-1, *[1] * (g.dim() - 1))
                g = g.where(kept, 0).to(dtype)
                sums["gradients", name] = torch.tensordot(factors.to(dtype), g, 1)
            for key, value in parts.items():
                sums[key] = (counts.to(value) * value.where(counts > 0, 0)).sum()
            return sums

    def finish(self, sums: Entries, number: int) -> Entries:
        """Return the gradients, terms and logged numbers of a step of the first clients.

        Args:
            sums: Results of :meth:`sums`, stacked along a leading axis of clients.
            number: The step.
        """
        finished = Entries()
        clients = len(next(iter(sums.values())))
        draws = self._draws(number, clients)
        for (part, name), value in sums.items():
            means = self._means[:clients].view(-1, *[1] * (value.dim() - 1))
            if part == "gradients":
                noise = self._deviation * draws[name].to(value.dtype)
                self._squares[:clients] += noise.to(means.dtype).square().flatten(1).sum(1)
                value = self._released(value + noise).to(self._dtypes[name])
            finished[part, name] = value / means.to(value.dtype)
        self._noisy[:clients] += 1
        return finished

    def drawn(self, row: int, steps: int) -> Sequence[Drawn]:
        """Return the noise of a client's steps.

        Raises:
            ValueError: Less noise was added than is accounted for.
        """
        if not steps:
            return ()
        numbers = sum(math.prod(shape) for shape in self._shapes.values())
        noisy = int(self._noisy[row])
        if noisy < steps:
            raise ValueError(f"Privacy: of {steps} steps of a client, {noisy} have noise")
        check_drawn(float(self._squares[row]), noisy * numbers, self._deviation)
        level = self._level
        return [Drawn(self._batches[row], steps, level.clip, level.sigma)]

    def _draws(self, number: int, clients: int) -> State:
        """Return (clients, *shape) standard normal draws of a step, by name."""
        return self._noise.of_step(number, clients)

    def _summed(self, dtype: torch.dtype) -> torch.dtype:
        """Return the type in which gradients of a type are summed."""
        return dtype

    def _released(self, value: Tensor) -> Tensor:
        """Return a sum with its noise as it may be seen."""
        return value


class SecretSteps(PrivateSteps, SecretGradients):
    """Private gradients with noise from the system, for an untrusted server.

    Arguments as in :class:`PrivateSteps`.
    """

    def __init__(
        self,
        level: PrivateSamples,
        context: Context,
        phase: Phase,
        jobs: Sequence[Job],
        steps: int,
    ) -> None:
        super().__init__(level, context, phase, jobs, steps)
        # So that rounding never exceeds the clip.
        self._bound = level.clip * (1 - _HAIR)
        # A power of two, so that rounding to the grid is exact.
        self._grid = 2.0 ** math.floor(math.log2(_GRID * self._deviation)) if level.sigma else 0.0
        # One batch in ten million is larger, and is then split in two.
        mean = float(self._means[0])
        self._slots = max(1, min(jobs[0].info.samples, math.ceil(mean + 6 * math.sqrt(mean))))
        self._places = torch.Generator().manual_seed(secrets.randbits(63))

    def hidden(
        self, read: Callable[[Tensor], Batch], positions: Tensor, number: int, empty: bool
    ) -> tuple[Outcome, State, State]:
        """Return the same as :meth:`alone`, whatever the samples are.

        Args:
            read: Function from positions to samples.
            positions: Positions of the step's batch, at least one.
            number: The step.
            empty: Whether no sample of the batch counts.
        """
        found = list[Entries]()
        slots = torch.randperm(self._slots, generator=self._places)
        with torch.no_grad():
            for some in torch.split(positions, self._slots):
                try:
                    found.append(self.sums(self._in_slots(read(some), slots, empty)))
                except Exception as error:
                    # A sample's failure must stay secret; if all fail, the check before the run
                    # fails.
                    warnings.warn(
                        f"a sample without a gradient counts as zero: {error_line(error)}",
                        stacklevel=4,
                    )
                    found += self._each(read, some, slots, empty)
            device, wide = self._means.device, self._means.dtype
            zeros = {n: torch.zeros(s, dtype=wide, device=device) for n, s in self._shapes.items()}
            summed = flattened({"gradients": zeros})
            for sums in found or [flattened({"terms": {"failed": torch.zeros((), device=device)}})]:
                for key, value in sums.items():
                    summed[key] = summed[key] + value if key in summed else value
            return self._of_one(summed, number)

    def _each(
        self, read: Callable[[Tensor], Batch], positions: Tensor, slots: Tensor, empty: bool
    ) -> Iterator[Entries]:
        """Yield the sums of each sample that has any, computed among the others."""
        for position, slot in zip(positions[:, None], slots[:, None], strict=False):
            # Discard what the failed pass has logged.
            self._module.take_logged()
            with suppress(Exception):
                yield self.sums(self._in_slots(read(position), slot, empty))

    def _in_slots(self, batch: Batch, slots: Tensor, empty: bool) -> Batch:
        """Return a batch of fixed size with samples in the given slots and zeros elsewhere."""
        count = len(batch.y)
        slots = slots[:count].to(batch.y.device)

        def placed(value: Tensor) -> Tensor:
            return value.new_zeros(self._slots, *value.shape[1:]).index_copy_(0, slots, value)

        weight = placed(torch.full((count,), float(not empty), device=batch.y.device))
        whole = Batch(each(placed, batch.x), placed(batch.y), weight, batch.noise)
        return batching.map_inputs(self._phase, whole)

    def _draws(self, number: int, clients: int) -> State:
        device, dtype = self._means.device, self._means.dtype
        return {
            name: from_system(clients * math.prod(shape), device, dtype).view(clients, *shape)
            for name, shape in self._shapes.items()
        }

    def _summed(self, dtype: torch.dtype) -> torch.dtype:
        return self._means.dtype

    def _released(self, value: Tensor) -> Tensor:
        return (value / self._grid).round() * self._grid if self._grid else value
