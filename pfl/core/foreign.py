"""LightningModules with a training of their own, and what they and networks have for methods."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn

from pfl.core.failure import ExplainedError
from pfl.core.task import Task

# What Lightning calls on a module that it trains, and nobody calls on a part of a network.
_STEPS = (
    *("training_step", "validation_step", "test_step", "configure_optimizers"),
    *("optimizer_step", "optimizer_zero_grad", "lr_scheduler_step", "configure_gradient_clipping"),
    *("backward", "configure_callbacks", "configure_model", "transfer_batch_to_device"),
    *("prepare_data", "setup", "on_before_batch_transfer", "on_after_batch_transfer"),
)
_LOADERS = tuple(f"{stage}_dataloader" for stage in ("train", "val", "test"))
_SHOWN = 4
# The modules in which the two packages of Lightning define their base class.
_PACKAGES = {
    f"{package}.core.module": package for package in ("lightning.pytorch", "pytorch_lightning")
}


class NeedError(ExplainedError, TypeError):
    """A model or the data lack what a method needs."""


def trains_itself(net: nn.Module) -> bool:
    """Return ``True`` for a LightningModule with a training step of its own.

    Lightning runs its steps, optimisers and hooks; its loss is not the task's.
    """
    base = _base(net)
    own = getattr(type(net), "training_step", None)
    return base is not None and own is not getattr(base, "training_step", None)


def package_of(net: nn.Module) -> str:
    """Return the package of Lightning from which a module comes; it has two.

    Raises:
        NeedError: The module is of neither.
    """
    base = _base(net)
    if base is None or base.__module__ not in _PACKAGES:
        raise NeedError(
            f"{type(net).__name__} is no LightningModule of the packages lightning and "
            "pytorch_lightning, whose loops run its steps"
        )
    return _PACKAGES[base.__module__]


def warn_of_loaders(net: nn.Module) -> None:
    """Warn that a LightningModule which trains itself has loaders of its own, which nobody asks."""
    base = _base(net)
    own = [n for n in _LOADERS if getattr(type(net), n, None) is not getattr(base, n, None)]
    if own:
        warnings.warn(
            f"{type(net).__name__} has a {' and a '.join(own)} of its own, which a federation does "
            "not call: its batches are those of the clients' data, as LoaderData or another data "
            "module gives them",
            stacklevel=2,
        )


def check_network(net: nn.Module, what: str, method: str, whole: bool = True) -> None:
    """Refuse a network with a part that has steps or hooks, which nobody would call.

    Args:
        net: The network, or a LightningModule that trains itself, whose parts are its own affair.
        what: The argument of the method that has it.
        method: Name of the method.
        whole: Whether the network may train itself.

    Raises:
        TypeError: There is such a part, or one in TorchScript that has parameters or buffers.
    """
    for name, part in net.named_modules():
        if isinstance(part, torch.jit.ScriptModule) and [*part.parameters(), *part.buffers()]:
            raise TypeError(
                f"{what} of {method} is in TorchScript{f' at {name!r}' if name else ''}, whose "
                "entries no other tensors can stand in for: give the module from which it was "
                "made, or compile that (torch.compile)"
            )
    if (whole and trains_itself(net)) or next(net.parameters(), None) is None:
        # A frozen copy takes no steps.
        return
    for part in net.modules():
        if own := _own_steps(part):
            more = f" and {len(own) - _SHOWN} more" if len(own) > _SHOWN else ""
            where = "inside another network" if trains_itself(part) else "without a training_step"
            raise TypeError(
                f"{what} of {method} has the LightningModule {type(part).__name__} with "
                f"{', '.join(own[:_SHOWN])}{more} of its own {where}, so that nobody would call "
                f"them: give {method}(net) a LightningModule whose own training_step trains all of "
                "it, or layers without steps"
            )


def _base(module: nn.Module) -> type | None:
    """Return Lightning's base class of a module."""
    # By name, as Lightning comes in two packages whose classes have nothing in common.
    return next((kind for kind in type(module).__mro__ if kind.__name__ == "LightningModule"), None)


def _own_steps(module: nn.Module) -> list[str]:
    """Return the names of a module's own steps and hooks, if it is a LightningModule."""
    if (base := _base(module)) is None:
        return []
    hooks = (name for name in dir(base) if name.startswith("on_") and "checkpoint" not in name)
    return [
        name
        for name in (*_STEPS, *hooks)
        if name in vars(module)
        or getattr(type(module), name, None) is not getattr(base, name, None)
    ]


@dataclass(frozen=True, repr=False)
class OwnSteps(Task):
    """The task of a LightningModule with steps of its own: only it knows loss and scores.

    Args:
        of: Name of the module.
    """

    of: str = "the LightningModule"

    loss_name = "loss"
    scores_better: ClassVar[Mapping[str, bool]] = {}

    def _refuse(self) -> NoReturn:
        raise NeedError(
            f"the loss of {self.of} is its own training_step, but it is asked for the task's loss "
            "of outputs: a method calls self.objective(net, batch), or declares needs = "
            '("outputs",)'
        )

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Refuse: only the module computes losses."""
        self._refuse()

    def loss(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Refuse: only the module computes losses."""
        self._refuse()

    def scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Refuse: only the module computes scores."""
        self._refuse()

    def predictions(self, outputs: Tensor) -> Tensor:
        """Refuse: only the module knows what its outputs are."""
        self._refuse()

    def metric_arguments(self, outputs: int) -> dict[str, Any]:
        """Return none."""
        return {}


def _has_all(net: nn.Module) -> bool:
    return True


def _gives_outputs(net: nn.Module) -> bool:
    return not trains_itself(net)


def _has_parts(net: nn.Module) -> bool:
    return all(isinstance(getattr(net, name, None), nn.Module) for name in ("backbone", "head"))


def _has_features(net: nn.Module) -> bool:
    found = getattr(net, "features", None)
    # Layers of this name take inputs, and not a batch.
    own = callable(found) and not isinstance(found, nn.Module)
    return own if trains_itself(net) else _has_parts(net)


@dataclass(frozen=True)
class Need:
    """Something that a method needs of its model or of the data, beyond the loss of a batch.

    Attributes:
        why: What the method does with it, after its name.
        add: How to provide it, where ``{}`` is what lacks it.
        has: Returns whether a network has it; what data lack is found by their task.
        made: Makes a network that has it from one with a backbone and a head, which may become a
            part of it; on such networks promises are checked. ``None`` if every one with a backbone
            and a head has it.
    """

    why: str
    add: str
    has: Callable[[nn.Module], bool] = _has_all
    made: Callable[[nn.Module], nn.Module] | None = None


NEEDS: Mapping[str, Need] = {
    "features": Need(
        "compares features",
        "give {} a method features(batch), or take a SplitNet",
        _has_features,
    ),
    "parts": Need(
        "needs a network's head and backbone apart",
        "give {} two parts named backbone and head, as a lightning_modules.nets.SplitNet has, or "
        "take a method that counts last layers (personal_layers)",
        _has_parts,
    ),
    "outputs": Need(
        "computes its own loss of a network's outputs",
        "give the layers of {} as an nn.Module, whose loss is data.task or data.loss",
        _gives_outputs,
    ),
    "sample_losses": Need(
        "needs losses of single samples",
        "{} has none; take a network and a task that have, or another method",
        _gives_outputs,
    ),
    "classes": Need(
        "needs samples with classes", "choose data whose task has classes, in place of {}"
    ),
}


def check_needs(method: str, needs: Sequence[str | Need], net: nn.Module) -> None:
    """Refuse a network that lacks what a method needs of it.

    Args:
        method: Name of the method.
        needs: Names of :data:`NEEDS`, or needs of the method's own.
        net: The network.

    Raises:
        NeedError: Something is missing; the message says what, and how to provide it.
    """
    missing = [need for need in needs if not known(need).has(net)]
    refuse(method, missing, type(net).__name__)


def known(need: str | Need) -> Need:
    """Return a need, which may be one of :data:`NEEDS` by its name."""
    return NEEDS[need] if isinstance(need, str) else need


def refuse(method: str, missing: Sequence[str | Need], given: str) -> None:
    """Refuse what lacks some of :data:`NEEDS`, or some other need; do nothing if none is missing.

    Raises:
        NeedError: Something is missing.
    """
    if missing:
        told = (f"{need.why}: {need.add.format(given)}" for need in map(known, missing))
        raise NeedError(f"{method} {'; it also '.join(told)}")
