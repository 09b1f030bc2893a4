"""A supervised learner: a LightningModule with a network, an optimiser and a task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer

from pfl.core.foreign import check_network
from pfl.core.state import clone, constants, total
from pfl.core.task import Task
from pfl.core.types import Batch, OptimizerFactory, State, Terms
from pfl.imports.trust import Trust

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on


class OwnLoss(Protocol):
    """The current step of a network that trains itself, as an engine runs it."""

    def loss(self, net: nn.Module) -> Terms:
        """Return the network's own loss of the current batch."""


class Learner(L.LightningModule):
    """A network that is trained on a task, by a plain Trainer or by an engine.

    Args:
        net: The network, with outputs of shape (B, D).
        optimizer: Builds the optimiser from the parameters to train.
        task: What is predicted.

    Raises:
        TypeError: The network is not a module, or a part of it has steps that nobody would call, or
            the optimiser is not a function.
    """

    # The plain arguments that rebuild the module, if it was loaded from an export.
    _recipe: Mapping[str, Any] | None = None
    # What the current step logs, while an engine takes steps.
    _logged: State | None = None
    # The step of a network that trains itself, while an engine takes it.
    own_steps: OwnLoss | None = None

    def __init__(self, net: nn.Module, optimizer: OptimizerFactory, task: Task) -> None:
        super().__init__()
        if not isinstance(net, nn.Module):
            raise TypeError(f"net must be a network, such as MLP(10, (1, 8, 8)), got {net!r}")
        if isinstance(net, Learner):
            raise TypeError(f"net must be a network, but {type(net).__name__} is a method")
        check_network(net, "net", type(self).__name__)
        if not callable(optimizer):
            raise TypeError(
                "optimizer must be a function that builds one from the parameters, such as "
                f"partial(torch.optim.SGD, lr=0.1), got {type(optimizer).__name__}"
            )
        self.net = net
        self.optimizer = optimizer
        self.task = task

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits of the model that is tested."""
        logits: Tensor = self.net(x)
        return logits

    def losses(self, batch: Batch) -> Terms:
        """Return the named terms of the objective; their sum is minimised."""
        if self.own_steps is not None:
            return self.own_steps.loss(self.net)
        return self.supervised(self(batch.x), batch)

    def objective(self, net: nn.Module, batch: Batch) -> Terms:
        """Return a network's loss of a batch by name: its own, or the task's of its outputs."""
        if self.own_steps is not None:
            return self.own_steps.loss(net)
        return self.supervised(net(batch.x), batch)

    @property
    def tested_net(self) -> nn.Module:
        """The network that is tested, if it trains itself."""
        return self.net

    def supervised(self, outputs: Tensor, batch: Batch) -> Terms:
        """Return the task's loss of (B, D) outputs under its name, ``ce`` in classification."""
        return {self.task.loss_name: self.task.loss(outputs, batch.y, batch.weight)}

    # Steps of a plain Trainer.

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:  # noqa: ANN401
        """Take a step under a plain Trainer: return the objective as ``"loss"``, and its terms.

        A federation minimises the objectives of a plan instead, so it refuses a method that
        overrides this one.
        """
        terms = self.losses(Batch(*batch))
        return {"loss": total(terms), **{name: term.detach() for name, term in terms.items()}}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log loss and accuracy under a plain Trainer."""
        self._log_scores(Batch(*batch), "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log loss and accuracy under a plain Trainer."""
        self._log_scores(Batch(*batch), "test")

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ANN401
        """Return predictions under a plain Trainer: probabilities, or values in regression.

        Args:
            batch: (B, ...) inputs, or a tuple whose first item they are.
            batch_idx: Not used.
        """
        x = batch[0] if isinstance(batch, tuple | list) else batch
        return self.task.predictions(self(x))

    def _log_scores(self, batch: Batch, split: str) -> None:
        names = self.task.scores_better
        found = self.task.scores(self(batch.x), batch.y).float()
        # A score that is undefined for a batch is left out, unless all are.
        kept = found.isfinite() | ~found.isfinite().any()
        scores = {f"{split}/{n}": v for n, v, k in zip(names, found, kept, strict=True) if k}
        self.log_dict(scores, prog_bar=True, batch_size=len(batch.y))

    # The optimiser.

    def configure_optimizers(self) -> Optimizer:
        """Return the optimiser over all parameters that currently require a gradient."""
        return self.optimizer(p for p in self.parameters() if p.requires_grad)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip gradients by norm in a federation, and as configured under a Trainer."""
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

    # Logging.

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
            # Filled on the device: a copy from the host would have to be waited for.
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
        logged = self._logged
        if not logged:
            return {}
        self._logged = {}
        return logged

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
        download_weights: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Load a module from a file of ``pfl export`` or of a Trainer, as Lightning does.

        Every object that the file names is checked before it is built.

        Args:
            checkpoint_path: The file.
            map_location: As in ``torch.load``.
            hparams_file: Not read; give arguments of the class by name.
            strict: Whether the entries of the file must be exactly those of the module.
            weights_only: As in ``torch.load``.
            trust: Dotted paths of further modules, classes and functions that the file may name.
            download_weights: Whether networks of torchvision may download pretrained weights.
            **kwargs: Arguments of the class, which replace those in the checkpoint.

        Raises:
            TrustError: The file names an object that is not trusted or has the wrong type.
            DamagedError: The file was changed after it was written.
            TypeError: ``hparams_file`` is given.
            OSError: The file cannot be read.
        """
        if hparams_file is not None:
            raise TypeError(
                f"hparams_file {hparams_file} is not read: give the arguments by name, as "
                f"{cls.__name__}.load_from_checkpoint(file, epochs=5)"
            )
        from pfl.core import export  # only here: few commands read such files

        export.check(checkpoint_path, cls, Trust(trust, download_weights), kwargs)
        module: Self = super().load_from_checkpoint(
            checkpoint_path, map_location, None, strict, weights_only, **kwargs
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
        saved = checkpoint.get("constants", {})
        for name, value in constants(self).items():
            if name in saved:
                value.copy_(saved[name])


def one_optimizer(module: L.LightningModule, made: object) -> Optimizer:
    """Return the optimiser that a module made, which must be a single one.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(made, Optimizer):
        raise TypeError(
            f"{type(module).__name__}.configure_optimizers returned {type(made).__name__}; a "
            "client's phase needs exactly one torch Optimizer (learning rates that change over "
            "rounds belong in lr_factor)"
        )
    closure = inspect.signature(made.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{type(made).__name__} asks for the loss several times in a step, and a client's "
            "phase has a single one: give an optimizer such as torch.optim.SGD or Adam"
        )
    return made
