"""The interface of a client, as the loop and the engines use it."""

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
    """A LightningModule that plays every client of a federation, one at a time.

    Its state dict is the client's state: before each job it is reset to the initial values and the
    client's kept values. Methods subclass ``lightning_modules.base.ClientModule``, which defines
    the default behaviour of each verb.

    Attributes:
        net: The network.
        vectorizable: Whether objectives and statistics run under ``torch.func.vmap``.
        persist_optimizer: Whether a client keeps the optimiser's state from round to round.
        draws_noise: Whether a phase draws noise, so that results depend on its generator.
        task: The kind of prediction.
        buffer_policy: How batch-norm statistics of the shared part are treated.
    """

    vectorizable: bool
    persist_optimizer: bool
    draws_noise: bool = False
    buffer_policy: str
    task: Task
    net: nn.Module
    # The arguments that build the module, in plain values, if it came from an export.
    _recipe: Mapping[str, Any] | None = None
    # What the current step logs, while an engine takes steps.
    _logged: State | None = None

    # Read-only: a method defines a class attribute, or a property if its options decide.

    @property
    @abstractmethod
    def shared(self) -> Patterns:
        """Patterns of the state-dict entries that are shared with the server."""

    @property
    @abstractmethod
    def kept(self) -> Patterns:
        """Patterns of the state-dict entries that stay with the client."""

    @property
    @abstractmethod
    def extra(self) -> tuple[str, ...]:
        """Names of what :meth:`upload` sends besides weights."""

    @property
    @abstractmethod
    def needs_classes(self) -> bool:
        """``True`` if the method needs classes, and so works for classification only."""

    @property
    @abstractmethod
    def evaluate_at(self) -> EvaluationPoint:
        """The point at which personalised models are tested, unless the run sets another."""

    @property
    @abstractmethod
    def uses_rounds(self) -> bool:
        """``True`` if results depend on the planned number of rounds T (``ClientInfo.rounds``).

        Such a run cannot be resumed with more rounds than were planned.
        """

    @property
    @abstractmethod
    def groups(self) -> tuple[str, ...]:
        """Labels of groups of clients, over which scores are averaged too; empty for none."""

    @abstractmethod
    def group(self, info: ClientInfo) -> int:
        """Return the index in :attr:`groups` of a client's group, which never changes in a run."""

    @abstractmethod
    def receive(self, broadcast: Broadcast, info: ClientInfo) -> None:
        """Load what the server sent."""

    @abstractmethod
    def plan(self) -> Plan:
        """Declare the client's round after :meth:`receive`; it is the same for every client.

        Called once for each copy of the module, whose entries have no values then.
        """

    @abstractmethod
    def lr_factor(self, info: ClientInfo) -> float:
        """Return the factor on every learning rate of this round."""

    @abstractmethod
    def upload(self, info: ClientInfo) -> Upload:
        """Return the message to the server, with copies of the tensors; change nothing."""

    @abstractmethod
    def personalise(self, broadcast: Broadcast | None, info: ClientInfo) -> None:
        """Become the client's personalised model.

        Args:
            broadcast: What the server sent; ``None`` right after training, which keeps the model
                as training left it.
            info: The client and the round.
        """

    @abstractmethod
    def adapt(self) -> Plan:
        """Declare what to run between :meth:`personalise` and the test, on a copy."""

    @abstractmethod
    def load_global(self, broadcast: Broadcast) -> None:
        """Become the server's global model."""

    @abstractmethod
    def server(self) -> Server[Any]:
        """Return the server of the method."""

    @abstractmethod
    def losses(self, batch: Batch) -> Terms:
        """Return the named terms of the objective; their sum is minimised."""

    @abstractmethod
    def supervised(self, outputs: Tensor, batch: Batch) -> Terms:
        """Return the task's loss of (B, D) outputs, under its name."""

    @abstractmethod
    def configure_optimizers(self) -> Optimizer:
        """Return the optimiser over all parameters that are trained in the current phase."""

    @abstractmethod
    def shared_names(self) -> tuple[str, ...]:
        """Return the names of the state-dict entries that are shared with the server."""

    @abstractmethod
    def kept_names(self, info: ClientInfo | None = None) -> tuple[str, ...]:
        """Return the names of the entries that a client keeps; without ``info``, that any keeps."""

    @abstractmethod
    def has_global_model(self) -> bool:
        """Return ``True`` if :meth:`load_global` gives a complete model."""

    def describe(self) -> Mapping[str, Tensor]:
        """Return named scalars that describe the current model, for analyses; by default none."""
        return {}

    @abstractmethod
    def personal_is_global(self) -> bool:
        """Return ``True`` if every client's personalised model is the server's global one."""

    # Reading and writing files.

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
        """Load a module from a file of ``pfl export`` or of a Trainer, as Lightning does.

        Every object that the file names is checked before it is built.

        Args:
            checkpoint_path: The file.
            map_location: As in ``torch.load``.
            hparams_file: A YAML file with arguments of the class, which replace those in the
                checkpoint.
            strict: Whether the entries of the file must be exactly those of the module.
            weights_only: As in ``torch.load``.
            trust: Dotted paths of further modules and classes that the file may name.
            **kwargs: Arguments of the class, which replace those in the checkpoint.

        Raises:
            TrustError: The file names an object that is not trusted or has the wrong type.
            DamagedError: The file was changed after it was written.
            OSError: The file cannot be read.
        """
        check_export(checkpoint_path, cls, trust, kwargs)
        module: Self = super().load_from_checkpoint(
            checkpoint_path, map_location, hparams_file, strict, weights_only, **kwargs
        )
        return module

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what the state dict lacks: frozen parts of a network, and an export's arguments."""
        checkpoint["constants"] = clone(constants(self))
        if self._recipe is not None:
            # A Trainer saves the arguments without objects such as the network.
            for name in ("hparams_name", "hparams_type"):
                checkpoint.pop(name, None)
            checkpoint["hyper_parameters"] = dict(self._recipe)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Load what :meth:`on_save_checkpoint` added."""
        arguments = checkpoint.get("hyper_parameters", {})
        if "_instantiator" in arguments:
            self._recipe = arguments
        given = checkpoint.get("constants", {})
        for name, value in constants(self).items():
            if name in given:
                value.copy_(given[name])

    # A training step, in a federation or under a plain Trainer.

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:  # noqa: ANN401
        """Take a step under a plain Trainer: return the objective as ``"loss"``, and its terms.

        A federation minimises the objectives of :meth:`plan` instead, so it refuses a method that
        overrides this one.
        """
        terms = self.losses(Batch(*batch))
        return {"loss": total(terms), **{name: term.detach() for name, term in terms.items()}}

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ANN401
        """Return predictions under a plain Trainer: probabilities, or values in regression.

        Args:
            batch: (B, ...) inputs, or a tuple whose first item they are.
            batch_idx: Not used.
        """
        x = batch[0] if isinstance(batch, tuple | list) else batch
        return self.task.predictions(self(x))

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:  # noqa: ANN401
        """Log a number; under a Trainer, exactly as Lightning does.

        In a federation, a training step may log under any engine. A client's mean over the steps
        that logged the name is recorded as ``log/<name>`` in ``clients.csv``, and the mean over
        clients in ``metrics.csv``. Logging changes nothing else. A mean over the batch must use
        ``batch.weight``, as loss terms do.

        Args:
            name: Name of the number.
            value: A number, or a tensor with one element.
            *args: As in Lightning; a federation ignores them.
            **options: As in Lightning; a federation ignores them.

        Raises:
            ValueError: In a federation, if the value is not a single number.
        """
        if self._logged is None:
            super().log(name, value, *args, **options)
            return
        dtype, device = torch.get_default_dtype(), self.device
        if isinstance(value, Tensor) and value.numel() == 1:
            self._logged[name] = value.detach().to(device, dtype).reshape(())
        elif isinstance(value, int | float):
            # Filled there, as a copy to a GPU would be waited for.
            self._logged[name] = torch.full((), value, dtype=dtype, device=device)
        else:
            raise ValueError(f"self.log({name!r}, ...) takes one number, got {value!r}")

    def log_dict(self, dictionary: Any, *args: Any, **options: Any) -> None:  # noqa: ANN401
        """Log several numbers; see :meth:`log`."""
        if self._logged is None:
            super().log_dict(dictionary, *args, **options)
            return
        for name, value in dictionary.items():
            self.log(name, value)

    def collect_logged(self, on: bool) -> None:
        """Start or stop collecting what steps log; called by engines."""
        self._logged = {} if on else None

    def take_logged(self) -> State:
        """Return what was logged since the last call; called by engines."""
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
        """Clip gradients by norm in a federation; under a Trainer, as the Trainer is set."""
        if self.fabric is None:
            super().configure_gradient_clipping(
                optimizer, gradient_clip_val, gradient_clip_algorithm
            )
        else:
            # A non-finite norm is not an error here: a loss scaler skips such a step.
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
        """Take one step; a federation has already run the backward pass and passes no closure."""
        if optimizer_closure is None:
            optimizer.step()
        else:
            optimizer.step(closure=optimizer_closure)
