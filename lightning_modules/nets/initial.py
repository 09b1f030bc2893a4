"""Initial values derived from those of a network, never from a global random stream."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from lightning_modules.nets.split import last_layers
from pfl.method import assign, constants, fingerprint, scoped, select


def seed_of(net: nn.Module) -> int:
    """Derive a seed from the network's values; it is the same in every process.

    Random values that a method draws in addition to the given network thus follow the seed of the
    run. Values are converted to float32, the type they were drawn in, whatever the precision of the
    run.

    Example:
        >>> seed_of(nn.Linear(2, 2)) == seed_of(nn.Linear(2, 2))
        False
    """
    drawn = {n: v.float() if v.is_floating_point() else v for n, v in net.state_dict().items()}
    return int(fingerprint([drawn]), base=16)


def redraw(net: nn.Module, seed: int) -> None:
    """Draw new initial values for every submodule that has ``reset_parameters``.

    Other submodules keep their values, and so do those whose attribute ``pretrained`` is true, with
    everything inside them. The draws are made on the CPU in float32, so that they depend neither on
    the device nor on the precision.
    """
    # Module.cpu fails on the tensors that stand for a client's weights in a stack.
    entries = [*net.parameters(), *net.buffers()]
    fresh = copy.deepcopy(net, {id(value): _drawable(value) for value in entries})
    pretrained = [child for child in fresh.modules() if getattr(child, "pretrained", False)]
    held = {module for child in pretrained for module in child.modules()}
    with scoped(seed):
        for module in fresh.modules():
            if module not in held and callable(reset := getattr(module, "reset_parameters", None)):
                reset()
    assign(net, fresh.state_dict())


def _drawable(value: Tensor) -> Tensor:
    """Return a copy on the CPU, in float32 if it is a float."""
    dtype = torch.float32 if value.is_floating_point() else value.dtype
    copied = value.detach().to("cpu", dtype, copy=True)
    return nn.Parameter(copied) if isinstance(value, nn.Parameter) else copied


def zero_last_layer(net: nn.Module) -> None:
    """Set the last layer to zero, so that the network predicts zeros until it is trained.

    Raises:
        ValueError: The last linear layer has frozen entries, as an adapted layer does.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> zero_last_layer(net)
        >>> net(torch.ones(1, 2)).tolist()
        [[0.0, 0.0]]
    """
    linears = [module for module in net.modules() if isinstance(module, nn.Linear)]
    if linears and (fixed := constants(linears[-1])):
        raise ValueError(
            f"the last linear layer of {type(net).__name__} cannot be set to zero, as it has "
            f"frozen entries: {', '.join(fixed)} (with LoRA, name the layer in trained)"
        )
    last, _ = last_layers(net, 1)
    entries = select(net.state_dict(), last)
    assign(net, {name: torch.zeros_like(value) for name, value in entries.items()})


def orthogonalise(weight: Tensor) -> None:
    """Replace a (C, D) matrix by the nearest one with orthonormal rows, in place.

    This is the orthogonal factor of the polar decomposition, so nothing is drawn. If C > D, rows
    cannot be orthonormal, and the columns are made so instead. Further dimensions count as D.

    Example:
        >>> weight = torch.randn(3, 5)
        >>> orthogonalise(weight)
        >>> bool(torch.allclose(weight @ weight.mT, torch.eye(3), atol=1e-5))
        True
    """
    with torch.no_grad():
        left, _, right = torch.linalg.svd(weight.flatten(1), full_matrices=False)
        weight.copy_((left @ right).view_as(weight))
