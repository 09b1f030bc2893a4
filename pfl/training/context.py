"""The context of an engine: the module that plays the clients, and all around it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from lightning.fabric import Fabric
from torch import nn

from pfl.core.client import Client
from pfl.core.seeds import derive, scoped
from pfl.core.state import clone, copy_all, matches
from pfl.core.types import FederatedData, Job, Patterns, Plan, State
from pfl.training.declaration import MethodError, declared
from pfl.training.metrics import Scorer

DROPOUTS = (nn.modules.dropout._DropoutNd, nn.RReLU)


class StoppedError(Exception):
    """A job was left half done because the run is ending."""


class Context:
    """The module that plays every client in turn, and what it works with.

    Attributes:
        module: On its device; its state belongs to the job at hand.
        data: The federation's data, on the same device.
        scorer: Scores a model by its outputs.
        fabric: Device and precision.
        gradient_clip_val: Largest norm of a step's gradient; ``None`` does not clip.
        stop: Once it is set, training ends before its next step with :class:`StoppedError`.
        template: The state every job starts from, before kept values and broadcast.
        entries: The module's own tensors, by their names in its state dict.
        trainable: Names of the parameters that the user wants trained at all.
        stochastic: Whether layers draw from torch's default stream.
        batch_norms: Names of the batch norms that take statistics from the batch while the module
            is trained, and whether they have no others, so that they do it in eval mode too.
        plan: What the module declares for training.
        adapt: What it declares for the time before a test.

    Args:
        module: Is moved to the device and converted to the precision.
        data: On the device already.
        fabric: Device and precision.
        gradient_clip_val: See above.
        stop: An event that several contexts share; ``None`` makes one.
        template: Of another context or a checkpoint; ``None`` takes the module's present values.
        trainable: Of another context; ``None`` goes by the module's ``requires_grad``.

    Raises:
        MethodError: A plan is no declaration, the module overrides ``training_step``, or it does
            not serve the data's task.
    """

    def __init__(
        self,
        module: Client,
        data: FederatedData,
        fabric: Fabric,
        gradient_clip_val: float | None = None,
        *,
        stop: threading.Event | None = None,
        template: State | None = None,
        trainable: set[str] | None = None,
    ) -> None:
        kind = type(module)
        if kind.training_step is not Client.training_step:
            raise MethodError(
                f"{kind.__name__} overrides training_step, which a federation does not call: "
                "override losses, which it and a plain Trainer minimise"
            )
        if module.needs_classes and not data.task.has_classes:
            raise MethodError(
                f"{kind.__name__} works with the classes of samples, which the task "
                f"{type(data.task).__name__} does not have"
            )
        if module.task != data.task:
            raise MethodError(
                f"{kind.__name__} was made for the task {module.task}, the data are for "
                f"{data.task}: give the method task={data.task}"
            )
        # Converts to the precision's type and moves; the wrapper that it returns is not needed, as
        # the training loop enters the precision's context by itself.
        fabric.setup_module(module)
        module.fabric = fabric
        module.train()
        self.module = module
        self.data = data
        self.scorer = Scorer(data.task, data.outputs, data.metrics)
        self.fabric = fabric
        self.gradient_clip_val = gradient_clip_val
        self.stop = threading.Event() if stop is None else stop
        self.entries: State = module.state_dict()
        self.template = clone(self.entries) if template is None else template
        wanted = {name for name, p in module.named_parameters() if p.requires_grad}
        self.trainable = wanted if trainable is None else trainable
        self.stochastic = any(isinstance(child, DROPOUTS) for child in module.modules())
        self.batch_norms = {
            name: child.running_mean is None
            for name, child in module.named_modules()
            if isinstance(child, nn.modules.batchnorm._BatchNorm)
            # A frozen copy stays in eval mode.
            and (child.training or child.running_mean is None)
        }
        self.plan: Plan = declared(module, "plan")
        self.adapt: Plan = declared(module, "adapt")
        self._modules = dict(module.named_modules())
        self._parameters = dict(module.named_parameters())
        self._trained: dict[Patterns, frozenset[str]] = {}
        self._modes: dict[Patterns | None, list[bool]] = {}
        self.scaler = getattr(fabric.strategy.precision, "scaler", None)
        self._scaler_start = self.scaler.state_dict() if self.scaler is not None else {}

    def load(self, kept: Mapping[str, torch.Tensor]) -> None:
        """Reset the module to the template with the kept values in place."""
        values = [kept.get(name, value) for name, value in self.template.items()]
        copy_all([self.entries[name] for name in self.template], values)
        if self._scaler_start:
            # The loss scale of one client must not depend on who ran before.
            self.fabric.strategy.precision.load_state_dict(self._scaler_start)

    def write(self, values: Mapping[str, torch.Tensor]) -> None:
        """Set entries of the module.

        Raises:
            MethodError: It has no entry of such a name.
        """
        with torch.no_grad():
            for name, value in values.items():
                self.entry(self.entries, name).copy_(value)

    def entry(self, state: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
        """Return an entry that a method wants to set.

        Raises:
            MethodError: There is none of this name.
        """
        if name not in state:
            raise MethodError(
                f"{type(self.module).__name__} sets the entry {name!r}, which its state dict does "
                "not have: register a buffer of that name"
            )
        return state[name]

    def set_mode(self, evals: Patterns | None) -> None:
        """Put the module into eval mode (``None``), or into train mode but for some submodules.

        To set the modes of all submodules takes longer than to see that they are right already.
        """
        if [child.training for child in self._modules.values()] == self._modes.get(evals):
            return
        self.module.train(evals is not None)
        for name, child in self._modules.items():
            if evals and matches(name, evals):
                child.eval()
        self._modes[evals] = [child.training for child in self._modules.values()]

    def train_only(self, patterns: Patterns) -> dict[str, nn.Parameter]:
        """Let gradients reach the trainable parameters that fit, and no others; returns them."""
        if patterns not in self._trained:
            fitting = (name for name in self.trainable if matches(name, patterns))
            self._trained[patterns] = frozenset(fitting)
        wanted, found = self._trained[patterns], dict[str, nn.Parameter]()
        for name, parameter in self._parameters.items():
            if parameter.requires_grad != (name in wanted):
                parameter.requires_grad_(name in wanted)
            if name in wanted:
                found[name] = parameter
        return found

    def couples_samples(self, evals: Patterns = ()) -> bool:
        """Tell whether samples of a training batch act upon each other, through a batch norm.

        Args:
            evals: Patterns of the names of submodules in eval mode, as in
                :class:`~pfl.core.types.Phase`.
        """
        return any(always or not _within(name, evals) for name, always in self.batch_norms.items())

    def isolated(self, job: Job) -> AbstractContextManager[None]:
        """Dropout can only draw from the default stream: lend it one of the client's own.

        Clients that train side by side in one stack borrow that of the first.
        """
        if not self.stochastic:
            return nullcontext()
        return scoped(derive(job.seed, "dropout"), self.module.device)


def _within(name: str, patterns: Patterns) -> bool:
    """Tell whether a submodule, or one that it is part of, fits one of the patterns."""
    parts = name.split(".")
    return any(matches(".".join(parts[: end + 1]), patterns) for end in range(len(parts)))
