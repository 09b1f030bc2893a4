"""Phases and tests of a LightningModule with steps of its own, which Lightning's loops run.

Lightning itself calls the module's steps and hooks, takes its optimisers and schedulers, and
reduces what it logs: a phase is one ``Trainer.fit``, a test one ``Trainer.test``. So everything a
module reads of its Trainer is true, and begins anew with each phase. What a method adds is in the
step that the Trainer is given: the loss plus the method's terms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import groupby
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pfl.core.constants import as_given, as_held
from pfl.core.data import ClientSplit
from pfl.core.state import matches, total
from pfl.core.types import Batch, Job, Outcome, Phase, State, Terms
from pfl.training import batching, optimizer_state
from pfl.training.batching import Step
from pfl.training.context import Context, StoppedError
from pfl.training.declaration import MethodError
from pfl.training.lightning_loops import Batches, derived, in_order, make_trainer, overrides, ran
from pfl.training.lightning_loops import reader as reader
from pfl.training.phases import Plain, Tally, prepared, restore_optimizer, rule_of, taken_optimizer


class _SkippedError(Exception):
    """A training step returned nothing, so that the optimiser must not move."""


def of_phase(context: Context, phase: Phase) -> nn.Module | None:
    """Return the module whose own step is the loss of a phase; ``None`` if there is none.

    Raises:
        MethodError: The phase trains several of them.
    """
    trained = [name for name in context.trainable if matches(name, phase.trains)]
    found = [
        net
        for name, net in context.own_nets.items()
        if any(entry.startswith(f"{name}.") for entry in trained)
    ]
    if len(found) > 1:
        raise MethodError(
            f"{type(context.module).__name__} trains {' and '.join(context.own_nets)} together in "
            f"{phase.label}, but {type(found[0]).__name__} brings its own training_step, which "
            "trains one of them: choose another method, or give the layers as an nn.Module"
        )
    return found[0] if found else None


def run_phase(
    context: Context, job: Job, phase: Phase, split: ClientSplit, tally: Tally, net: nn.Module
) -> State:
    """Train a module for one phase by its own steps; return the optimiser state that is kept.

    Raises:
        MethodError: The phase asks for something that only a loss of outputs has.
        StoppedError: The run is ending.
    """
    length = batching.length(phase, context.entries if phase.varies else {}, job.info)
    if len(split) == 0 or not length:
        return {}
    steps = _steps(context, job, phase, length, split, net)
    taken = tally.steps
    if not steps:
        tally.skipped += 1
        return {}
    built = net.state_dict().keys()
    training = _Training(context, job, phase, net, tally, steps)
    with prepared(context, phase) as trained:
        training.fit(split, trained)
    if more := sorted(net.state_dict().keys() - built):
        raise MethodError(
            f"{type(net).__name__} makes the entry {more[0]!r} while it is set up for training, "
            "which would end with each round: make it in __init__ or configure_model"
        )
    tally.skipped += tally.steps == taken
    return training.kept


def _steps(
    context: Context,
    job: Job,
    phase: Phase,
    length: batching.Length,
    split: ClientSplit,
    net: nn.Module,
) -> list[Step]:
    """Return the steps of a phase, and refuse what the module's own step cannot do."""
    rule, who = rule_of(context, job), type(context.module).__name__
    asked = {
        f"{type(rule).__name__} takes gradients of single samples": not isinstance(rule, Plain),
        f"{who} reads inputs of its own in {phase.label}": phase.inputs is not None,
        f"{who} draws noise in {phase.label}": bool(phase.noise),
        f"{who} ends {phase.label} by its losses": phase.until is not None,
    }
    for what, is_asked in asked.items():
        if is_asked:
            raise MethodError(
                f"{what}, but the loss is {type(net).__name__}.training_step, which takes a whole "
                "batch: choose another method or option, or give the layers as an nn.Module"
            )
    return list(rule.steps(context, job, phase, length, len(split)))


class _Training:
    """One ``Trainer.fit``: a callback of its Trainer, and its step.

    Attributes:
        kept: The optimiser state that the client keeps.
    """

    def __init__(
        self,
        context: Context,
        job: Job,
        phase: Phase,
        net: nn.Module,
        tally: Tally,
        steps: Sequence[Step],
    ) -> None:
        self.context, self.job, self.phase, self.tally = context, job, phase, tally
        self.steps, self.net, self.kept = steps, cast(Any, net), State()
        self._own: Callable[..., Any] = self.net.training_step
        self._own_backward: Callable[..., Any] = self.net.manual_backward
        self._call: Callable[[], Any] = self._own
        self._batch, self._output = Batch(None, torch.empty(0)), cast(Any, None)
        self._outcome: Outcome | None = None
        self._adding, self._number = False, 0
        self._trained: Mapping[str, nn.Parameter] = {}

    def __deepcopy__(self, memo: object) -> _Training:
        # Callbacks copy the module, to average its weights; a copy takes no steps.
        return self

    def fit(self, split: ClientSplit, trained: Mapping[str, nn.Parameter]) -> None:
        """Run Lightning's training loop."""
        context, module, phase, net = self.context, self.context.module, self.phase, self.net
        self._trained = trained
        epochs = [[s.positions for s in own] for _, own in groupby(self.steps, lambda s: s.epoch)]
        rng = None
        if split.augmented:
            rng = torch.Generator().manual_seed(self.job.seed_of("augment", phase.name))
        trainer = make_trainer(
            net,
            context.fabric,
            callbacks=[derived("Callback", self, net)],
            logger=derived("loggers.Logger", _Numbers(self.tally), net),
            log_every_n_steps=1,
            max_epochs=len(epochs),
            gradient_clip_val=context.gradient_clip_val,
        )
        read = reader(context.fabric, split, rng)
        loaders = [Batches(read, epochs, lambda: trainer.current_epoch, split)]
        held = context.data.split(self.job.info.client, "val")
        if phase.split == "train" and len(held) and overrides(net, "validation_step"):
            loaders.append(in_order(context.data, context.fabric, held))
        replaced: dict[str, Callable[..., Any]] = {
            "training_step": self._step(),
            "manual_backward": self._backward,
        }
        chosen = phase.optimizer or (None if module.net_optimizes else module.optimizer)
        if chosen is not None:
            if not net.automatic_optimization:
                raise MethodError(
                    f"{type(net).__name__} steps its optimisers itself (automatic_optimization is "
                    "False), so that no other one can be given: leave out optimizer"
                )
            replaced["configure_optimizers"] = lambda: chosen(trained.values())
        module.own_steps = self
        try:
            with _replaced(net, replaced):
                ran(trainer.fit, net, context.data, context.fabric, *loaders)
        finally:
            module.own_steps = None

    def loss(self, net: nn.Module) -> Terms:
        """Return the module's own loss of the current batch by its name.

        It is empty under manual optimisation, where the step itself has minimised it.

        Raises:
            MethodError: It is another module than the one that is trained.
        """
        if net is not self.net:
            raise MethodError(
                f"{type(self.context.module).__name__} asks for the loss of another "
                f"{type(net).__name__} than the one that is trained in {self.phase.label}"
            )
        if self._adding:
            return {}
        with as_given(net):
            self._output = self._call()
        if not self.net.automatic_optimization:
            return {}
        if (found := _loss_in(self._output)) is None:
            raise _SkippedError
        return {"loss": found}

    def _step(self) -> Callable[..., Any]:
        """Return the step that the Trainer calls: the module's own loss, and the method's terms."""

        @functools.wraps(self._own)
        def training_step(*given: Any, **named: Any) -> Any:  # noqa: ANN401
            self._call, self._outcome = functools.partial(self._own, *given, **named), None
            self._batch = self._batch._replace(x=[*given, *named.values()][0])
            try:
                # A method compares this network with others, which have their constants as such.
                with as_held(self.net):
                    outcome = self.phase.objective(self._batch)
            except _SkippedError:
                return None
            whole, output = _whole(outcome), self._output
            if self.net.automatic_optimization:
                self._outcome, loss = whole, total(whole.terms)
                return {**output, "loss": loss} if isinstance(output, Mapping) else loss
            found = _loss_in(output)
            shown = {} if found is None else {"loss": found.detach()}
            self._outcome = whole._replace(terms=shown | whole.terms)
            return output

        return training_step

    def _backward(self, loss: Tensor, *others: Any, **options: Any) -> None:
        """Differentiate one of several losses, unless this phase trains nothing in it."""
        if loss.requires_grad:
            self._own_backward(loss, *others, **options)

    # Hooks of the Trainer.

    def on_train_start(self, trainer: Any, net: Any) -> None:  # noqa: ANN401
        """Set the learning rates of the round, and load what optimisers keep."""
        module = self.context.module
        factor = module.lr_factor(self.job.info)
        if factor != 1 and trainer.lr_scheduler_configs:
            raise MethodError(
                f"lr_decay and lr_schedule change the learning rate of {type(module).__name__} "
                f"from round to round, but {type(net).__name__} has schedulers of its own: leave "
                "out one of them"
            )
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * factor
            if module.persist_optimizer:
                kept = optimizer_state.read(self.phase.name, self.job.kept)
                restore_optimizer(optimizer, self._of(optimizer), kept)

    def on_train_batch_start(self, *_: Any) -> None:
        """End the phase if the run is ending."""
        if self.context.stop.is_set():
            raise StoppedError

    def on_before_optimizer_step(self, trainer: Any, net: Any, optimizer: Optimizer) -> None:  # noqa: ANN401
        """Add the method's terms to the gradients of a manual step; count learning rates."""
        if not net.automatic_optimization:
            self._add_terms(self._of(optimizer))
        names, rates = {id(one): name for name, one in self._trained.items()}, self.tally.rates
        for group in optimizer.param_groups:
            for name in filter(None, (names.get(id(one)) for one in group["params"])):
                rates[name] = rates.get(name, 0.0) + float(group["lr"])

    def on_train_batch_end(self, *_: Any) -> None:
        """Count the step."""
        step, self._number = self.steps[self._number], self._number + 1
        logged = self.context.module.take_logged()
        if self._outcome is not None:
            self.tally.add(self.phase.name, self._outcome, logged, step.samples)
            self.context.write(self._outcome.entries)

    def on_train_end(self, trainer: Any, *_: Any) -> None:  # noqa: ANN401
        """Take what optimisers keep."""
        if self.context.module.persist_optimizer:
            for optimizer in trainer.optimizers:
                state = taken_optimizer(optimizer, self._of(optimizer))
                self.kept |= optimizer_state.written(self.phase.name, state)

    def _of(self, optimizer: Optimizer) -> dict[str, nn.Parameter]:
        """Return the trained parameters of an optimiser, by name."""
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        return {name: one for name, one in self._trained.items() if id(one) in own}

    def _add_terms(self, trained: Mapping[str, nn.Parameter]) -> None:
        self._adding = True
        try:
            with torch.enable_grad(), as_held(self.net):
                terms = _whole(self.phase.objective(self._batch)).terms
        finally:
            self._adding = False
        free = [one for one in trained.values() if one.requires_grad]
        if not free or not terms or not (added := total(terms)).requires_grad:
            return
        slopes = torch.autograd.grad(added, free, allow_unused=True)
        for parameter, slope in zip(free, slopes, strict=True):
            if slope is not None:
                parameter.grad = slope if parameter.grad is None else parameter.grad + slope


class _Numbers:
    """A logger of Lightning's that enters the numbers which steps log into a client's tally."""

    name, version = "pfl", 0
    save_dir = root_dir = log_dir = None

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    @property
    def experiment(self) -> Any:  # noqa: ANN401
        """Something that takes pictures and texts, and keeps none."""
        return import_module("lightning.fabric.loggers.logger")._DummyExperiment()

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Enter numbers."""
        for name, value in metrics.items():
            if name != "epoch":
                self._tally.logged.add(name, torch.tensor(value, dtype=torch.float64))

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Do nothing: the run's configuration has them."""


def _whole(outcome: Terms | Outcome) -> Outcome:
    return outcome if isinstance(outcome, Outcome) else Outcome(outcome)


def _loss_in(output: Any) -> Tensor | None:  # noqa: ANN401
    """Return the loss that a training step returned, alone or among others."""
    found = output.get("loss") if isinstance(output, Mapping) else output
    return found if isinstance(found, Tensor) else None


@contextmanager
def _replaced(net: nn.Module, replacements: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace methods of one module in this scope."""
    before = {name: vars(net)[name] for name in replacements if name in vars(net)}
    vars(net).update(replacements)
    try:
        yield
    finally:
        for name in replacements:
            vars(net).pop(name, None)
        vars(net).update(before)
