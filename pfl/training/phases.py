"""One phase of a client's training, step by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pfl.core.batch_norms import without
from pfl.core.client import ClientModule
from pfl.core.data import ClientSplit
from pfl.core.learner import one_optimizer
from pfl.core.noise import Noise
from pfl.core.seeds import generator
from pfl.core.state import Entries, clone, flattened, total
from pfl.core.types import Batch, ClientInfo, Drawn, Job, Outcome, Phase, State, Totals
from pfl.training import batching, optimizer_state
from pfl.training.context import Context, StoppedError
from pfl.training.declaration import MethodError
from pfl.training.gradients import GradientRule, Gradients, carried
from pfl.training.optimizer_state import OptimizerState


@dataclass
class Means:
    """Means of named numbers over the steps that provided them.

    Attributes:
        sums: Sum of each number, by name.
        counts: Number of summands, by name.
    """

    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, name: str, value: Tensor) -> None:
        """Add the value of one step."""
        self.sums[name] = self.sums[name] + value if name in self.sums else value
        self.counts[name] += 1

    def values(self) -> dict[str, float]:
        """Return the means (one synchronisation)."""
        if not self.sums:
            return {}
        sums = torch.stack([*self.sums.values()]).tolist()
        return {k: v / self.counts[k] for k, v in zip(self.sums, sums, strict=True)}


@dataclass
class Tally:
    """The sums over the phases of one job.

    Attributes:
        terms: Means of the loss terms, by ``"<phase>/<term>"``.
        logged: Means of the numbers that steps logged, by name.
        steps: Number of optimiser steps.
        samples: Number of samples seen.
        skipped: Number of phases with samples and epochs, but without a usable batch.
        rows: Rows that objectives collected since the last pass, one tensor for each step.
        rates: As in :class:`pfl.core.types.Totals`.
        drawn: The noise of steps; see :class:`pfl.core.types.Drawn`.
    """

    terms: Means = field(default_factory=Means)
    logged: Means = field(default_factory=Means)
    steps: int = 0
    samples: int = 0
    skipped: int = 0
    rows: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    rates: dict[str, float] = field(default_factory=dict)
    drawn: list[Drawn] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        """``True`` if the client had data to train on but could not take a single step."""
        return self.steps == 0 and self.skipped > 0

    def add(self, phase: str, outcome: Outcome, logged: State, samples: int) -> None:
        """Count one step."""
        if outcome.rows:
            self.collect(outcome.rows)
        for name, term in outcome.terms.items():
            self.terms.add(f"{phase}/{name}", term.detach())
        for name, value in logged.items():
            self.logged.add(name, value)
        self.steps += 1
        self.samples += samples

    def collect(self, rows: State) -> None:
        """Store the rows of one batch."""
        for name, value in rows.items():
            self.rows[name].append(value.detach())

    def totals(self, sums: State) -> Totals:
        """Return the totals that a pass receives, and discard the rows."""
        rows = {name: torch.cat(values) for name, values in self.rows.items()}
        self.rows.clear()
        return Totals(sums, rows, self.steps, self.samples, self.rates)


def run_phase(context: Context, job: Job, phase: Phase, split: ClientSplit, tally: Tally) -> State:
    """Train for one phase; return the optimiser state if the module keeps it.

    Raises:
        StoppedError: The run is ending.
    """
    length = batching.length(phase, context.entries if phase.varies else {}, job.info)
    if len(split) == 0 or not length:
        return {}
    module, fabric, rule = context.module, context.fabric, rule_of(context, job)
    most = batching.most_steps(context, phase, length, len(split))
    noise = Noise.of(phase, [job], most, fabric.device) if phase.noise else None
    with fabric.autocast():
        held = None if rule.secret else batching.hold(context, phase, length, split)
    feed = batching.Feed(job, phase, split, held, noise)
    with prepared(context, phase) as trained:
        optimizer = make_optimizer(module, phase, job.info, trained)
        if module.persist_optimizer:
            restore_optimizer(optimizer, trained, optimizer_state.read(phase.name, job.kept))
        gradients = rule.gradients(context, phase, [job], most)
        steps = _Steps(context, phase, feed, gradients, optimizer, trained)
        last_losses: list[float] = []
        taken = tally.steps
        module.on_train_start()
        for number, step in enumerate(rule.steps(context, job, phase, length, len(split))):
            if context.stop.is_set():
                raise StoppedError
            if step.index == 0:
                module.on_train_epoch_start()
            loss = steps.take(number, step, tally)
            if step.last:
                module.on_train_epoch_end()
                if phase.until is not None:
                    last_losses.append(loss.item())
                    if phase.until(last_losses):
                        break
        module.on_train_end()
        tally.drawn += gradients.drawn(0, tally.steps - taken)
    tally.skipped += tally.steps == taken
    if not module.persist_optimizer:
        return {}
    return optimizer_state.written(phase.name, taken_optimizer(optimizer, trained))


class _Steps:
    """The optimiser steps of one client in a phase, with Lightning's hooks around each.

    Args:
        context: The client's network.
        phase: The phase.
        feed: Its batches.
        gradients: Its gradients.
        optimizer: The optimiser of ``trained``.
        trained: The parameters that the phase trains.
    """

    def __init__(
        self,
        context: Context,
        phase: Phase,
        feed: batching.Feed,
        gradients: Gradients,
        optimizer: Optimizer,
        trained: Mapping[str, nn.Parameter],
    ) -> None:
        self._context, self._phase = context, phase
        self._feed, self._gradients = feed, gradients
        self._optimizer, self._trained = optimizer, trained
        # The wrapper is needed only for the loss scaler, and costs as much as a small step.
        self._wrapped = optimizer
        if context.scaler is not None:
            self._wrapped = cast(Optimizer, context.fabric.setup_optimizers(optimizer))

    def take(self, number: int, step: batching.Step, tally: Tally) -> Tensor:
        """Take a step, count it, and return its loss."""
        context, module, gradients = self._context, self._context.module, self._gradients
        with context.fabric.autocast():
            batch = gradients.shown(self._feed, number, step)
            module.on_train_batch_start(batch, step.index)
            outcome, given, logged = gradients.of_step(self._feed, batch, number, step)
            loss = total(outcome.terms)
        module.on_before_zero_grad(self._optimizer)
        module.optimizer_zero_grad(step.epoch, step.index, self._optimizer)
        module.on_before_backward(loss)
        gradients.backward(loss, self._trained, given)
        module.on_after_backward()
        module.on_before_optimizer_step(self._optimizer)
        if context.gradient_clip_val is not None:
            module.configure_gradient_clipping(self._wrapped, context.gradient_clip_val, "norm")
        module.optimizer_step(step.epoch, step.index, self._wrapped)
        if outcome.entries:
            context.write(outcome.entries)
        module.on_train_batch_end({"loss": loss.detach()}, batch, step.index)
        tally.add(self._phase.name, outcome, logged | module.take_logged(), step.samples)
        return loss


@dataclass(frozen=True)
class Plain(GradientRule):
    """The ordinary rule: batches in the order of the job's seed, gradients by a backward pass."""

    context: Context

    def batches(self, job: Job, phase: Phase, epoch: int, samples: int, count: int) -> list[Tensor]:
        """Return the positions of an epoch's batches, in the order of the job's seed.

        A batch of one sample is left out if a batch norm needs statistics of the batch.

        Raises:
            BatchError: The batch size is one, so that every batch would be left out.
        """
        size, order = batching.batch_size(self.context, phase, samples), torch.arange(samples)
        if phase.share < 1:
            count = max(int(phase.share * samples + 1e-9), min(size, samples))
            rng = generator(job.seed, "share", phase.name)
            order = torch.randperm(samples, generator=rng)[:count]
        if self.context.data.shuffle and not phase.full_batch:
            rng = generator(job.seed, "order", phase.name, epoch)
            order = order[torch.randperm(len(order), generator=rng)]
        batches = list(torch.split(order, size))
        short = len(batches[-1])
        lonely = short == 1 and self.context.couples_samples(phase.evals)
        if lonely and size == 1 and not phase.full_batch:
            raise batching.BatchError(
                f"the batches of phase {phase.name!r} have one sample each, but batch norm needs "
                f"at least two: set batch_size to 2 or more, or {without(self.context.module)}"
            )
        drop_last = self.context.data.drop_last if phase.drop_last is None else phase.drop_last
        if lonely or (len(batches) > 1 and short < size and drop_last):
            batches.pop()
        return batches

    def gradients(
        self, context: Context, phase: Phase, jobs: Sequence[Job], steps: int
    ) -> PlainGradients:
        """Return the gradients of the phase's objective."""
        return PlainGradients(context, phase)


@dataclass(frozen=True)
class PlainGradients(Gradients):
    """The gradients of a phase's objective, by a backward pass."""

    tracks = True
    context: Context
    phase: Phase

    def alone(self, batch: Batch, number: int, empty: bool) -> tuple[Outcome, State, State]:
        """Return the outcome of the objective."""
        return run_objective(self.phase, batch), {}, {}

    def sums(self, batch: Batch) -> Entries:
        """Return the outcome of the objective, and what it logged."""
        outcome = run_objective(self.phase, batch)
        # One dictionary passes vmap faster than several.
        return flattened({**outcome._asdict(), "logged": self.context.module.take_logged()})

    def finish(self, sums: Entries, number: int) -> Entries:
        """Return the outcomes as they are."""
        return sums

    def backward(self, loss: Tensor, trained: Mapping[str, Tensor], given: State) -> None:
        """Differentiate a loss."""
        self.context.fabric.backward(loss)


def rule_of(context: Context, job: Job) -> GradientRule:
    """Return the rule by which a job draws batches and takes gradients."""
    return (carried(job.steps) if job.steps else None) or Plain(context)


def run_objective(phase: Phase, batch: Batch) -> Outcome:
    """Return the outcome of the phase's objective, which may return only its terms.

    Raises:
        MethodError: It returns something else, such as a loss without a name.
    """
    outcome = phase.objective(batch)
    whole = outcome if isinstance(outcome, Outcome) else Outcome(outcome)
    terms: object = whole.terms
    if not (
        isinstance(terms, Mapping)
        and terms
        and all(isinstance(one, Tensor) and one.numel() == 1 for one in terms.values())
    ):
        raise MethodError(
            f"the objective of phase {phase.name!r} returns {_in_words(whole.terms)}: return loss "
            "terms by name, each a tensor of one number ({'ce': loss}), or an Outcome"
        )
    return whole


def _in_words(terms: object) -> str:
    """Describe what was returned as loss terms: shapes of tensors, types of other values."""
    if not isinstance(terms, Mapping):
        return f"a {type(terms).__name__}"
    shapes = (
        f"{name!r}: {list(one.shape) if isinstance(one, Tensor) else type(one).__name__}"
        for name, one in terms.items()
    )
    return f"{{{', '.join(shapes)}}}"


@contextmanager
def prepared(context: Context, phase: Phase) -> Iterator[dict[str, nn.Parameter]]:
    """Set modes, gradients and logging for a phase; yield the parameters that it trains.

    Afterwards, also after an error, all but the modes is restored, so the module can be reused.

    Raises:
        MethodError: A trained parameter was replaced.
    """
    context.set_mode(phase.evals)
    try:
        context.module.collect_logged(True)
        trained = context.train_only(phase.trains)
        yield trained
        present = context.train_only(phase.trains)
        for name, parameter in trained.items():
            if present.get(name) is not parameter:
                raise MethodError(
                    f"{type(context.module).__name__} or its network replaces the parameter "
                    f"{name!r} while it is trained: write into it in place"
                )
    finally:
        context.module.collect_logged(False)
        for parameter in context.train_only(("*",)).values():
            parameter.grad = None


def make_optimizer(
    module: ClientModule, phase: Phase, info: ClientInfo, trained: Mapping[str, nn.Parameter]
) -> Optimizer:
    """Make a new optimiser for a phase, with the learning rates of the round.

    Raises:
        TypeError: See :func:`pfl.core.learner.one_optimizer`.
    """
    own = phase.optimizer
    made = module.configure_optimizers() if own is None else own(trained.values())
    optimizer = one_optimizer(module, made)
    factor = module.lr_factor(info)
    for group in optimizer.param_groups:
        group["lr"] *= factor
    return optimizer


def restore_optimizer(
    optimizer: Optimizer, trained: Mapping[str, Tensor], kept: OptimizerState
) -> None:
    """Start from copies of kept states, with their step counters on the right device."""
    on_device = any(g.get("capturable") or g.get("fused") for g in optimizer.param_groups)
    for name in trained.keys() & kept.keys():
        restored = clone(kept[name])
        if "step" in restored and not on_device:
            # Otherwise each step would wait for the device to read it.
            restored["step"] = restored["step"].cpu()
        optimizer.state[trained[name]] = restored


def taken_optimizer(optimizer: Optimizer, trained: Mapping[str, nn.Parameter]) -> OptimizerState:
    """Return copies of an optimiser's state for each parameter."""
    return {
        name: {
            key: torch.as_tensor(value).detach().clone()
            for key, value in optimizer.state[parameter].items()
            if value is not None
        }
        for name, parameter in trained.items()
    }
