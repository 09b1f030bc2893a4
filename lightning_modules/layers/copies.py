"""Frozen copies of a module: teachers, anchors, previous models."""

from __future__ import annotations

from torch import Tensor, nn

from lightning_modules.layers.constants import Frozen, as_buffer
from pfl.method import assign, copied


def frozen(module: nn.Module, batch_statistics: bool = False) -> Frozen:
    """Return a deep copy that training does not change: a teacher, an anchor, a previous model.

    The parameters of the copy become buffers. No optimiser sees them and they take no gradient, but
    they are in the state dict, under ``module.``, so that they can stay with a client or be stacked
    over clients. :func:`copy_into` refreshes their values.

    Args:
        module: The module to copy; it is not changed.
        batch_statistics: Let batch norms of the copy use the statistics of each batch, as in train
            mode, and keep no running ones. Otherwise, and if their statistics are constants, they
            use the copied running statistics.

    Example:
        >>> teacher = frozen(nn.Linear(2, 1)).train()
        >>> list(teacher.parameters()), list(teacher.state_dict()), teacher.module.training
        ([], ['module.weight', 'module.bias'], False)
    """
    duplicate = copied(module)
    for child in duplicate.modules():
        for name, _ in list(child.named_parameters(recurse=False)):
            as_buffer(child, name)
        if (
            batch_statistics
            and isinstance(child, nn.modules.batchnorm._BatchNorm)
            and "running_mean" in child.state_dict()
        ):
            child.track_running_stats = False
            child.running_mean = child.running_var = child.num_batches_tracked = None
    return Frozen(duplicate)


def copy_into(frozen_copy: Frozen, module: nn.Module) -> None:
    """Copy the current values of a module into a frozen copy, in place.

    Args:
        frozen_copy: A copy that :func:`frozen` made from ``module`` or a module like it.
        module: The source of the values.

    Raises:
        ValueError: The module lacks an entry of the copy.
    """
    values = module.state_dict()
    names = frozen_copy.module.state_dict().keys()
    if missing := sorted(names - values.keys()):
        raise ValueError(
            f"{type(module).__name__} has no entry {missing[0]!r}, which the frozen "
            f"{type(frozen_copy.module).__name__} has"
        )
    assign(frozen_copy.module, {name: values[name] for name in names})


def frozen_parameters(frozen_copy: Frozen, module: nn.Module) -> list[Tensor]:
    """Return a frozen copy's values of a module's parameters, in the module's order.

    Args:
        frozen_copy: A copy that :func:`frozen` made from ``module`` or a module like it.
        module: The module that has these parameters; the copy has only buffers.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        >>> [tuple(value.shape) for value in frozen_parameters(frozen(net), net)]
        [(3, 2), (3,), (3,), (3,)]
    """
    values = dict(frozen_copy.module.named_buffers())
    return [values[name] for name, _ in module.named_parameters()]
