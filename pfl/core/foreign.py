"""Networks that bring a training of their own, which no method would run."""

from __future__ import annotations

from torch import nn

# What Lightning calls on a module that it trains, and a method's own module does instead.
_STEPS = (
    *("training_step", "validation_step", "test_step", "predict_step", "configure_optimizers"),
    *("optimizer_step", "optimizer_zero_grad", "lr_scheduler_step", "configure_gradient_clipping"),
    *("backward", "configure_callbacks", "configure_model", "transfer_batch_to_device"),
    *("prepare_data", "setup", "train_dataloader", "val_dataloader", "test_dataloader"),
    *("predict_dataloader", "on_before_batch_transfer", "on_after_batch_transfer"),
)
_SHOWN = 4


def check_only_network(net: nn.Module, what: str, method: str) -> None:
    """Refuse a module that is not only a network: a LightningModule with steps or hooks of its own.

    It may also be a part of ``net``. A LightningModule that only computes outputs is a network.

    Args:
        net: The network.
        what: The argument of the method that has it.
        method: Name of the method.

    Raises:
        TypeError: There is such a module.
    """
    for part in net.modules():
        if own := _own_steps(part):
            more = f" and {len(own) - _SHOWN} more" if len(own) > _SHOWN else ""
            kind = type(part).__name__
            raise TypeError(
                f"{what} of {method} has the LightningModule {kind} with {', '.join(own[:_SHOWN])}"
                f"{more} of its own, which {method} would never call: give its layers as an "
                "nn.Module or a LightningModule without them, its loss as data.task or data.loss, "
                "and its optimiser as optimizer"
            )


def _own_steps(module: nn.Module) -> list[str]:
    """Return the names of a module's own steps and hooks, if it is a LightningModule."""
    kinds = type(module).__mro__
    # By name, as Lightning comes in two packages whose classes have nothing in common.
    base = next((kind for kind in kinds if kind.__name__ == "LightningModule"), None)
    if base is None:
        return []
    hooks = (name for name in dir(base) if name.startswith("on_") and "checkpoint" not in name)
    return [
        name
        for name in (*_STEPS, *hooks)
        if name in vars(module)
        or getattr(type(module), name, None) is not getattr(base, name, None)
    ]
