"""Freeze: FedAvg on the backbone, under one random head that is never trained.

A baseline of UniVarFL (2025, arXiv 2506.08167) without a paper or released code of its own: the
training of FedBABU (Oh et al., ICLR 2022, arXiv 2106.06042) without its personalisation.
"""

from __future__ import annotations

import warnings
from typing import Literal

from torch import nn
from typing_extensions import Unpack

from lightning_modules import base as fl


class Freeze(fl.ClientModule):
    """FedAvg on the backbone, under one random head that all clients share and never train.

    The backbone travels both ways. Nothing stays with the client: the head is the same constant
    everywhere. It is left out of the optimiser and of the average, so that momentum and weight
    decay cannot move it (in FL-bench's FedBABU weight decay shrinks it, because only its gradient
    is set to zero).

    Args:
        net: A ``SplitNet``. Its head keeps its initial weights, subject to the next two arguments.
        head_init: ``default`` keeps the initial weights; ``orthogonal`` replaces them by the
            nearest weights with orthonormal rows. It is not known which one UniVarFL used.
        head_bias: Keep the initial biases; otherwise they are zero (advised with ``orthogonal``).
        options: See :class:`ClientModule`.

    Raises:
        TypeError: ``net`` has no backbone or no head.
    """

    record = fl.MethodRecord(
        name="Freeze",
        family="A part of the network stays with the client",
        travels="backbone",
        apart="the head keeps its random initial values",
    )

    global_model = True
    vectorizable = True
    needs = ("parts",)
    one_model = True

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        head_init: Literal["default", "orthogonal"] = "default",
        head_bias: bool = True,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        for layer in (child for child in net.head.modules() if isinstance(child, nn.Linear)):
            if head_init == "orthogonal":
                _make_orthogonal(layer)
            if not head_bias and layer.bias is not None:
                nn.init.zeros_(layer.bias)

    @property
    def shared(self) -> fl.Patterns:
        """All but the head."""
        return fl.halves_of(self.net).body

    def plan(self) -> fl.Plan:
        """Declare one phase that trains the backbone."""
        return [fl.part_phase(self, "body", self.epochs)]


def _make_orthogonal(layer: nn.Linear) -> None:
    if layer.out_features > layer.in_features:
        warnings.warn(
            f"a head of {layer.out_features} outputs on {layer.in_features} features cannot have "
            "orthonormal rows; its columns are made orthonormal instead",
            stacklevel=3,
        )
    fl.orthogonalise(layer.weight)
