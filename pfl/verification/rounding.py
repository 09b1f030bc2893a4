"""Values moved by one unit in the last place: how far rounding alone carries a run."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pfl.core.seeds import derive
from pfl.core.state import as_real

# Runs from moved weights, whose largest distance is a radius. One is not enough: a unit that
# rounding switches on or off gives a run two possible ends.
DRAWS = 3


def moved(value: Tensor, generator: torch.Generator) -> Tensor:
    """Return each number's neighbour above or below it, as the generator of the CPU decides."""
    if value.is_complex():
        return torch.view_as_complex(moved(as_real(value), generator))
    up = torch.rand(value.shape, generator=generator).to(value.device) < 0.5
    infinite = torch.full_like(value, torch.inf)
    return torch.nextafter(value, torch.where(up, infinite, -infinite))


def move(net: nn.Module, draw: int) -> None:
    """Move each weight of a network to the next number above or below it, as a draw decides.

    What a method adds to its network stays: some of it is drawn with a hash of its bits as the
    seed, and other draws are not rounding.
    """
    generator = torch.Generator().manual_seed(derive(draw, "rounding"))
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(moved(weight, generator))
