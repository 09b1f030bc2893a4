"""Phases that train one part of a split network while the other part is frozen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, cast

from torch import Tensor, nn

from lightning_modules.nets import SplitNet
from pfl import method as fl

Part: TypeAlias = Literal["all", "head", "body"]

TRAINED: dict[Part, fl.Patterns] = {
    "all": ("net.*",),
    "head": ("net.head.*",),
    "body": ("net.backbone.*",),
}
STILL: dict[Part, fl.Patterns] = {"all": (), "head": ("net.backbone",), "body": ("net.head",)}


def part_phase(
    module: fl.ClientModule,
    part: Part,
    epochs: int,
    *,
    name: str | None = None,
    optimizer: fl.OptimizerFactory | None = None,
    objective: Callable[[fl.Batch], fl.Terms] | None = None,
    evals: fl.Patterns = (),
) -> fl.Phase:
    """Train the head, the backbone or all of a network on local data; the other part is frozen.

    If the head alone is trained on cross-entropy, the backbone's features are computed once and
    reused.

    Args:
        module: The client whose ``net`` is trained: a ``SplitNet``, unless all of it is trained.
        part: Part that is trained.
        epochs: Number of epochs.
        name: Name of the phase; that of the part if not given.
        optimizer: As in :class:`~pfl.core.types.Phase`.
        objective: Objective on the whole network; cross-entropy if not given.
        evals: Further submodules to keep in eval mode.
    """
    net = cast(SplitNet, module.net)

    def whole(batch: fl.Batch) -> fl.Terms:
        return module.supervised(net(batch.x), batch)

    def on_features(batch: fl.Batch) -> fl.Terms:
        return module.supervised(net.head(batch.x), batch)

    def features(batch: fl.Batch) -> Tensor:
        z: Tensor = net.backbone(batch.x)
        return z

    cached = part == "head" and objective is None
    return fl.Phase(
        name=part if name is None else name,
        objective=objective or (on_features if cached else whole),
        epochs=epochs,
        trains=TRAINED[part],
        optimizer=optimizer,
        evals=(*STILL[part], *evals),
        inputs=features if cached else None,
    )


def remember(net: nn.Module, copy: str) -> fl.Pass:
    """Return a pass that stores a network's current values in the frozen copy of that name."""

    def values(totals: fl.Totals) -> fl.State:
        return {f"{copy}.module.{name}": value for name, value in net.state_dict().items()}

    return fl.Pass(name="remember", then=values)
