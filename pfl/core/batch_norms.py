"""Batch norms of a module, found by their type, and their running statistics."""

from __future__ import annotations

import inspect

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


def without(net: nn.Module) -> str:
    """Return how a network is built without batch norms, in words, by its own options."""
    options = {
        name
        for part in net.modules()
        if type(part).__module__.partition(".")[0] != "torch"
        for name in inspect.signature(type(part)).parameters
    }
    if "norm" in options:
        return "use group norm (net.norm: group)"
    if "batch_norm" in options:
        return "leave it out (net.batch_norm: false)"
    return "give the network group norms (torch.nn.GroupNorm), or none"


def read_counters(module: nn.Module) -> frozenset[str]:
    """Return the counters of batches that batch norms read: those of norms without momentum.

    Such a norm averages over all batches that it has seen. Any other only counts them.
    """
    return frozenset(
        f"{name}.num_batches_tracked"
        for name in batch_norms(module)
        if getattr(norm := module.get_submodule(name), "momentum", None) is None
        and getattr(norm, "num_batches_tracked", None) is not None
    )


def norm_statistics(module: nn.Module) -> State:
    """Return the running statistics of all batch norms within a module, by name.

    The weights of a frozen copy are buffers too, but are not returned.
    """
    norms = batch_norms(module)
    places = ((name, name.rpartition(".")) for name, _ in module.named_buffers())
    found = {name for name, (home, _, leaf) in places if home in norms and leaf in _STATISTICS}
    return {name: value for name, value in module.named_buffers() if name in found}
