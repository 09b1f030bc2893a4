"""The interface of a client that loop and engines use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer

from pfl.core.server import Server
from pfl.core.state import clone, constants, total
from pfl.core.task import Task
from pfl.core.trust import check_export
from pfl.core.types import (
    Batch,
    Broadcast,
    ClientInfo,
    EvaluationPoint,
    Patterns,
    Plan,
    State,
    Terms,
    Upload,
)


class Client(L.LightningModule, ABC):
    """A LightningModule that plays any client of a federation, one at a time.

    Its state dict is the client's state: before each job it is reset to the initial values and
    those that the client keeps. ``lightning_modules.base.ClientModule`` is what methods subclass,
    and says what each verb does unless a method says otherwise.

    Attributes:
        net: The network.
        vectorizable: Whether objectives and statistics run under ``torch.func.vmap``.
        persist_optimizer: Whether the optimiser's state stays with the client.
        draws_noise: Whether a phase asks for noise, so that numbers depend on its generator.
        task: What is predicted.
        buffer_policy: What becomes of batch-norm statistics of the part that travels.
    """

    vectorizable: bool
    persist_optimizer: bool
    draws_noise: bool = False
    buffer_policy: str
    task: Task
    net: nn.Module
    # How to build the module, in plain values, if it came from an export.
    _recipe: Mapping[str, Any] | None = None
    # What the step at hand logs, while an engine takes steps.
    _logged: State | None = None

    # Read-only: a method answers with a class attribute, or with a property where options decide.

    @property
    @abstractmethod
    def shared(self) -> Patterns:
        """Patterns of the state-dict names that travel."""

    @property
    @abstractmethod
    def kept(self) -> Patterns:
        """Patterns of the names that stay with the client."""

    @property
    @abstractmethod
    def extra(self) -> tuple[str, ...]:
        """Names of what :meth:`upload` sends besides weights."""

    @property
    @abstractmethod
    def needs_classes(self) -> bool:
        """``True`` if the method works with classes, and cannot serve other tasks."""

    @property
    @abstractmethod
    def evaluate_at(self) -> EvaluationPoint:
        """The moment at which personalised models are tested, unless the run says otherwise."""

    @property
    @abstractmethod
    def uses_rounds(self) -> bool:
        """``True`` if numbers depend on the planned rounds T (``ClientInfo.rounds``).

        Such a run cannot be resumed with more rounds than it was planned with.
        """

    @property
    @abstractmethod
    def groups(self) -> tuple[str, ...]:
        """Labels of the groups by which scores are averaged too; empty if there are none."""

    @abstractmethod
    def group(self, info: ClientInfo) -> int:
        """Return a client's group, by its place in :attr:`groups`; the same all run long."""

    @abstractmethod
    def receive(self, broadcast: Broadcast, info: ClientInfo) -> None:
        """Take in what the server sent."""

    @abstractmethod
    def plan(self) -> Plan:
        """Declare the client's round after :meth:`receive`, for every client alike.

        Asked once for each copy of the module, with entries that have no values.
        """

    @abstractmethod
    def lr_factor(self, info: ClientInfo) -> float:
        """Return the factor on every learning rate of this round."""

    @abstractmethod
    def upload(self, info: ClientInfo) -> Upload:
        """Return the message to the server, in tensors of its own; change nothing."""

    @abstractmethod
    def personalise(self, broadcast: Broadcast | None, info: ClientInfo) -> None:
        """Become the client's personalised model.

        Args:
            broadcast: What the server sent; ``None`` right after training, for the model as
                training left it.
            info: The client and the round.
        """

    @abstractmethod
    def adapt(self) -> Plan:
        """Declare what to run on a copy between :meth:`personalise` and the test."""

    @abstractmethod
    def load_global(self, broadcast: Broadcast) -> None:
        """Become the server's global model."""

    @abstractmethod
    def server(self) -> Server[Any]:
        """Return the server's part of the method."""

    @abstractmethod
    def losses(self, batch: Batch) -> Terms:
        """Return the named terms of the objective; their sum is minimised."""

    @abstractmethod
    def supervised(self, outputs: Tensor, batch: Batch) -> Terms:
        """Return the task's loss of (B, D) outputs, under its name."""

    @abstractmethod
    def configure_optimizers(self) -> Optimizer:
        """Return the optimiser over all parameters that are to be trained at the moment."""

    @abstractmethod
    def shared_names(self) -> tuple[str, ...]:
        """Return the names of the state-dict entries that travel."""

    @abstractmethod
    def kept_names(self, info: ClientInfo | None = None) -> tuple[str, ...]:
        """Return the names of the entries that stay with a client, or without ``info`` with any."""

    @abstractmethod
    def has_global_model(self) -> bool:
        """Return ``True`` if :meth:`load_global` gives a complete model."""

    def describe(self) -> Mapping[str, Tensor]:
        """Return scalars that tell of the model at hand, by name, for analyses; here none."""
        return {}

    @abstractmethod
    def personal_is_global(self) -> bool:
        """Return ``True`` if every client's personalised model is the server's global one."""

    # From and to files.

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | Path | IO[Any],
        map_location: Any = None,  # noqa: ANN401
        hparams_file: str | Path | None = None,
        strict: bool | None = None,
        weights_only: bool | None = True,
        trust: Sequence[str] = (),
        **kwargs: Any,
    ) -> Self:
        """Return the module in a file of ``pfl export`` or of a Trainer, as Lightning does.

        Whatever the file names is checked first.

        Args:
            checkpoint_path: The file.
            map_location: As ``torch.load`` takes it.
            hparams_file: Arguments of the class in a YAML file, in place of those in the file.
            strict: Whether the entries of the file must be those of the module.
            weights_only: As ``torch.load`` takes it.
            trust: Dotted paths of further modules and classes that the file may name.
            **kwargs: Arguments of the class, in place of those in the file.

        Raises:
            TrustError: The file names something else, or an object of another type than declared.
            DamagedError: The file is not what was once written.
            OSError: It cannot be read.
        """
        check_export(checkpoint_path, cls, trust, kwargs)
        module: Self = super().load_from_checkpoint(
            checkpoint_path, map_location, hparams_file, strict, weights_only, **kwargs
        )
        return module

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what no state dict holds: frozen parts of a network, and how to build an export."""
        checkpoint["constants"] = clone(constants(self))
        if self._recipe is not None:
            # A Trainer writes arguments without the objects among them, such as the network.
            for name in ("hparams_name", "hparams_type"):
                checkpoint.pop(name, None)
            checkpoint["hyper_parameters"] = dict(self._recipe)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take over what :meth:`on_save_checkpoint` added."""
        arguments = checkpoint.get("hyper_parameters", {})
        if "_instantiator" in arguments:
            self._recipe = arguments
        given = checkpoint.get("constants", {})
        for name, value in constants(self).items():
            if name in given:
                value.copy_(given[name])

    # A step, of the federation or of a plain Trainer.

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:  # noqa: ANN401
        """Return the objective under ``"loss"``, and its terms: a step under a plain Trainer.

        A federation minimises the objectives of :meth:`plan`, and so refuses a method that
        overrides this.
        """
        terms = self.losses(Batch(*batch))
        return {"loss": total(terms), **{name: term.detach() for name, term in terms.items()}}

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ANN401
        """Return predictions under a plain Trainer: probabilities, or values in regression.

        Args:
            batch: (B, ...) inputs, or a tuple of which they come first.
            batch_idx: Not used.
        """
        x = batch[0] if isinstance(batch, tuple | list) else batch
        return self.task.predictions(self(x))

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:  # noqa: ANN401
        """Log a number, under a Trainer as Lightning does.

        In a federation a training step may log, whatever the engine. Each client's mean over the
        steps that logged the name is recorded as ``log/<name>``: in ``clients.csv``, and as the
        mean over clients in ``metrics.csv``. It changes nothing else. What is a mean over the
        batch takes ``batch.weight``, as loss terms do.

        Args:
            name: Of the number.
            value: A number, or a tensor with one element.
            *args: For a Trainer; a federation does not look at them.
            **options: Likewise.

        Raises:
            ValueError: In a federation, the value is no single number.
        """
        if self._logged is None:
            super().log(name, value, *args, **options)
            return
        number = value.detach() if isinstance(value, Tensor) else value
        if not isinstance(number, Tensor | int | float) or torch.as_tensor(number).numel() != 1:
            raise ValueError(f"self.log({name!r}, ...) takes one number, got {value!r}")
        dtype = torch.get_default_dtype()
        self._logged[name] = torch.as_tensor(number, dtype=dtype, device=self.device).reshape(())

    def log_dict(self, dictionary: Any, *args: Any, **options: Any) -> None:  # noqa: ANN401
        """Log several numbers; see :meth:`log`."""
        if self._logged is None:
            super().log_dict(dictionary, *args, **options)
            return
        for name, value in dictionary.items():
            self.log(name, value)

    def collect_logged(self, on: bool) -> None:
        """Begin to collect what steps log, or end it: for engines."""
        self._logged = {} if on else None

    def take_logged(self) -> State:
        """Return what was logged since the last call: for engines."""
        found = self._logged
        if not found:
            return {}
        self._logged = {}
        return found

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by norm inside a federation, as the Trainer says under a Trainer."""
        if self.fabric is None:
            super().configure_gradient_clipping(
                optimizer, gradient_clip_val, gradient_clip_algorithm
            )
        else:
            # A non-finite norm is no error here: a loss scaler skips such a step.
            self.fabric.clip_gradients(
                self, optimizer, max_norm=gradient_clip_val, error_if_nonfinite=False
            )

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Optimizer | LightningOptimizer,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Take one step; a federation has run the backward pass already and gives no closure."""
        if optimizer_closure is None:
            optimizer.step()
        else:
            optimizer.step(closure=optimizer_closure)
