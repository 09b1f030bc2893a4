"""The base of all networks, split into backbone and head, and MOON's projection head."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import Tensor, nn

from lightning_modules.layers import VariationalLinear
from pfl.method import AtLeastOne, Patterns, Variants, at_least_one, check_arguments


class SplitNet(nn.Module):
    """A backbone, which maps inputs to features, and a head, which maps features to logits.

    Args:
        backbone: (B, ...) -> (B, D) features.
        head: (B, D) -> (B, C) logits.
        features: D; taken from the first linear layer of the head if not given.
        num_classes: C; taken from the last linear layer of the head if not given.

    Raises:
        ValueError: The head has no linear layer from which to take D or C, or C is not positive.

    Example:
        >>> net = SplitNet(nn.Flatten(), nn.Linear(12, 5))
        >>> net.features, net.num_classes, net(Tensor(2, 3, 2, 2)).shape
        (12, 5, torch.Size([2, 5]))
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        features: int | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        linears = [m for m in head.modules() if isinstance(m, (nn.Linear, VariationalLinear))]
        if not linears and (features is None or num_classes is None):
            raise ValueError(
                f"the head {type(head).__name__} has no linear layer from which to take the "
                "numbers of features and classes; give both as features=... and num_classes=..."
            )
        self.backbone = backbone
        self.head = head
        self.features = linears[0].in_features if features is None else features
        self.num_classes = linears[-1].out_features if num_classes is None else num_classes
        at_least_one(num_classes=self.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits."""
        logits: Tensor = self.head(self.backbone(x))
        return logits


class PerClient(Variants, SplitNet):
    """Networks that differ between clients: each client uses one of them.

    Methods take it as their network. A client trains, keeps and exports its own network only.
    Shared entries must have the same names and shapes in all networks, as a head does if all
    backbones have the same number of features. Scores are also averaged by network.

    In a configuration, each network draws its own initial values from the run's seed.

    Args:
        nets: The networks, at least one.
        by: Assignment of k networks to clients: ``cycle`` gives client i number i mod k, ``domain``
            gives all clients of a domain the same one, in the order of domains; a list has the
            number of each client's network.

    Raises:
        ValueError: There is no network, or the list has a number without a network.

    Example:
        >>> nets = [SplitNet(nn.Linear(4, size), nn.Linear(size, 2)) for size in (3, 5)]
        >>> PerClient(nets).features, PerClient(nets[::-1]).features
        (3, 5)
    """

    def __init__(
        self, nets: list[nn.Module], by: Literal["cycle", "domain"] | list[int] = "cycle"
    ) -> None:
        super().__init__(nets, by)


def must_be_split(net: nn.Module) -> None:
    """Refuse a network without the two parts of a :class:`SplitNet`.

    Raises:
        TypeError: The network has no backbone or no head.
    """
    for part in ("backbone", "head"):
        if not hasattr(net, part):
            raise TypeError(
                f"net must have a backbone and a head, as SplitNet(backbone, head) has, but a "
                f"{type(net).__name__} has no {part}"
            )


def must_have_linear_head(net: nn.Module, method: str) -> None:
    """Refuse a network whose head is not one linear layer.

    Args:
        net: The network.
        method: The name of the method that needs it.

    Raises:
        TypeError: The network has another head, or none.
    """
    head = getattr(net, "head", None)
    if not isinstance(head, nn.Linear):
        raise TypeError(
            f"{method} needs a lightning_modules.nets.SplitNet whose head is one torch.nn.Linear, "
            f"got {type(net).__name__} with the head {type(head).__name__}"
        )


def last_layers(net: nn.Module, count: int, prefix: str = "") -> tuple[Patterns, Patterns]:
    """Return patterns of the last ``count`` layers, and of the layers before them.

    A layer is a submodule with its own entries in the state dict; layers are in order of
    definition.

    Raises:
        ValueError: The network has fewer layers, or ``count`` is negative.

    Example:
        >>> last_layers(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4)), 1)
        (('2.*',), ('0.*',))
    """
    homes = {name.rpartition(".")[0] for name in net.state_dict()}
    layers = [name for name, _ in net.named_modules() if name in homes]
    if not 0 <= count <= len(layers):
        raise ValueError(f"the network has {len(layers)} layers, but {count} were requested")
    patterns = [f"{prefix}{name}.*" if name else f"{prefix}*" for name in layers]
    split = len(patterns) - count
    return tuple(patterns[split:]), tuple(patterns[:split])


class Projected(SplitNet):
    """A network with MOON's projection head between its backbone and a new classifier.

    Li et al., "Model-Contrastive Federated Learning", CVPR 2021: linear D -> D, ReLU, linear D ->
    ``width``. Both the classifier and the contrastive term read the projection.

    Args:
        net: The network whose backbone is used.
        width: Size of the projection.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: ``width`` is below one.

    Example:
        >>> Projected(SplitNet(nn.Flatten(), nn.Linear(12, 10)), width=64).features
        64
    """

    def __init__(self, net: SplitNet, width: AtLeastOne = 256) -> None:
        check_arguments(self)
        must_be_split(net)
        size = net.features
        projection = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, width))
        super().__init__(
            nn.Sequential(OrderedDict(encoder=net.backbone, projector=projection)),
            nn.Linear(width, net.num_classes),
        )
