"""Phases that train one part of a split network while the other part is frozen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias, cast

from torch import Tensor, nn

from lightning_modules.nets import SplitNet, last_layers
from pfl import method as fl

Part: TypeAlias = Literal["all", "head", "body"]


class Halves(NamedTuple):
    """Patterns of the entries of a client's ``net``: of its head, and of all others."""

    head: fl.Patterns
    body: fl.Patterns


def halves_of(net: nn.Module, personal_layers: int | None = None) -> Halves:
    """Return the patterns of a network's head and of all else.

    Args:
        net: The network. One that trains itself may have other parts beside its backbone, such as
            a critic.
        personal_layers: Number of last layers that are the head; ``None`` is the network's head.

    Raises:
        ValueError: The network has fewer layers.

    Example:
        >>> halves_of(SplitNet(nn.Linear(2, 3), nn.Linear(3, 4)))
        Halves(head=('net.head.*',), body=('net.backbone.*',))
    """
    if personal_layers is not None:
        return Halves(*last_layers(net, personal_layers, prefix="net."))
    if not fl.trains_itself(net):
        return Halves(("net.head.*",), ("net.backbone.*",))
    names = (name.partition(".") for name in net.state_dict() if not name.startswith("head."))
    found = (f"net.{first}.*" if dot else f"net.{first}" for first, dot, _ in names)
    return Halves(("net.head.*",), tuple(dict.fromkeys(found)))


def part_phase(
    module: fl.ClientModule,
    part: Part,
    epochs: float,
    *,
    name: str | None = None,
    optimizer: fl.OptimizerFactory | None = None,
    objective: Callable[[fl.Batch], fl.Terms] | None = None,
    evals: fl.Patterns = (),
    halves: Halves | None = None,
) -> fl.Phase:
    """Train the head, the backbone or all of a network on local data; the other part is frozen.

    If the head alone is trained on cross-entropy, the backbone's features are computed once and
    reused; a network that trains itself computes them at each step.

    Args:
        module: The client whose ``net`` is trained: a ``SplitNet``, unless all of it is trained.
        part: Part that is trained.
        epochs: Number of epochs.
        name: Name of the phase; that of the part if not given.
        optimizer: As in :class:`~pfl.core.types.Phase`.
        objective: Objective on the whole network; cross-entropy if not given.
        evals: Further submodules to keep in eval mode.
        halves: Head and body, if they are not the network's own.
    """
    net = cast(SplitNet, module.net)

    def whole(batch: fl.Batch) -> fl.Terms:
        return module.objective(net, batch)

    def on_features(batch: fl.Batch) -> fl.Terms:
        return module.supervised(net.head(batch.x), batch)

    def features(batch: fl.Batch) -> Tensor:
        z: Tensor = net.backbone(batch.x)
        return z

    own = halves is None and not fl.trains_itself(net)
    head, body = halves or halves_of(net)
    trained = {"all": ("net.*",), "head": head, "body": body}[part]
    still = {"all": (), "head": body, "body": head}[part]
    cached = part == "head" and objective is None and own
    return fl.Phase(
        name=part if name is None else name,
        objective=objective or (on_features if cached else whole),
        epochs=epochs,
        trains=trained,
        optimizer=optimizer,
        evals=(*(one.removesuffix(".*") for one in still), *evals),
        inputs=features if cached else None,
    )


def remember(net: nn.Module, copy: str) -> fl.Pass:
    """Return a pass that stores a network's current values in the frozen copy of that name."""

    def values(totals: fl.Totals) -> fl.State:
        return {f"{copy}.module.{name}": value for name, value in net.state_dict().items()}

    return fl.Pass(name="remember", then=values)
