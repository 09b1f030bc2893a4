"""The parts of an adapted network: factors of products, and what is trained beside them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lightning_modules.layers import LowRank
from lightning_modules.nets import adapted
from pfl.method import Need, Patterns, constants


class Factors(NamedTuple):
    """Names of the entries of a client's ``net``: all A, all B, and what is trained directly."""

    down: Patterns
    up: Patterns
    others: Patterns


def _has_adapters(net: nn.Module) -> bool:
    """Return ``True`` for a network with adapters, or one that is frozen without, as of rank 0."""
    if constants(net) or any(isinstance(part, LowRank) for part in net.modules()):
        return True
    return any("lora_A" in name.split(".") for name, _ in net.named_parameters())


ADAPTERS = Need(
    "needs a network with low-rank adapters",
    "give {} to lightning_modules.LoRA, or adapt it with peft",
    _has_adapters,
    lambda net: adapted(net, {"rank": 2, "alpha": 4.0}),
)


def factors_of(net: nn.Module) -> Factors:
    """Return the names of the factors of a network's adapters, and of its other entries.

    Args:
        net: A network adapted by :class:`~lightning_modules.nets.LoRA` or by ``peft``. One that is
            frozen without adapters, as of rank zero, has no factors.

    Example:
        >>> from lightning_modules.nets import LoRA, SplitNet
        >>> net = LoRA(SplitNet(nn.Linear(8, 4), nn.Linear(4, 2)), rank=1)
        >>> factors_of(net).down
        ('net.backbone.down',)
    """
    own = {name for name, part in net.named_modules() if isinstance(part, LowRank)}

    def of(factor: str, foreign: str) -> Patterns:
        return tuple(
            f"net.{name}"
            for name, _ in net.named_parameters()
            if foreign in name.split(".")
            or (name.rpartition(".")[0] in own and name.rpartition(".")[2] == factor)
        )

    down, up = of("down", "lora_A"), of("up", "lora_B")
    others = tuple(f"net.{n}" for n in net.state_dict() if f"net.{n}" not in {*down, *up})
    return Factors(down, up, others)


def adapted_layers(factors: Factors) -> Patterns:
    """Return the names of the adapted layers within the network."""
    names = (re.sub(r"\.(down$|lora_A\.).*", "", name) for name in factors.down)
    return tuple(dict.fromkeys(name.removeprefix("net.") for name in names))


def is_down(name: str) -> bool:
    """Return ``True`` if an entry is the factor A of a product."""
    return re.search(r"(\bdown|lora_A\b.*)$", name) is not None


def uniform_rows(shape: Sequence[int], rng: torch.Generator) -> Tensor:
    """Draw a new A: uniform up to one over the root of its number of inputs, as LoRA starts.

    Args:
        shape: (r, D_in), or with further dimensions of inputs.
        rng: The stream; in float32 on the CPU, whatever the device and precision of a run.
    """
    bound: float = math.prod(shape[1:]) ** -0.5
    return (2 * torch.rand([*shape], generator=rng) - 1) * bound
