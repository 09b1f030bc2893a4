"""Batch norms of a module, found by their type, and their running statistics."""

from __future__ import annotations

from torch import nn

from pfl.core.types import Patterns, State

_STATISTICS = {"running_mean", "running_var", "num_batches_tracked"}


def batch_norms(module: nn.Module) -> Patterns:
    """Return the names of all batch norms within a module, at any depth.

    Batch norms are recognised by their type, subclasses included, because their names vary:
    ``bn1``, ``norm``, or a number. Layer, group and instance norms do not count.

    Example:
        >>> block = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.LayerNorm(3))
        >>> batch_norms(nn.Sequential(nn.Flatten(), block))
        ('1.1',)
    """
    return tuple(
        name
        for name, child in module.named_modules()
        if isinstance(child, nn.modules.batchnorm._BatchNorm)
    )


def norm_statistics(module: nn.Module) -> State:
    """Return the running statistics of all batch norms within a module, by name.

    The weights of a frozen copy are buffers too, but are not returned.
    """
    norms = batch_norms(module)
    places = ((name, name.rpartition(".")) for name, _ in module.named_buffers())
    found = {name for name, (home, _, leaf) in places if home in norms and leaf in _STATISTICS}
    return {name: value for name, value in module.named_buffers() if name in found}
