"""Networks that are only partly trained: frozen parts and low-rank adaptation.

Frozen entries are not in the network's state (:func:`~lightning_modules.layers.make_constant`):
they do not travel, clients trained as one stack share them, and checkpoints do not contain them.
Patterns match names within the network, such as ``backbone.*``.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import nn

from lightning_modules.layers import LowRankLinear, make_constant
from lightning_modules.nets.split import SplitNet, must_be_split
from pfl.method import Patterns, matches


class FrozenParts(SplitNet):
    """A network with parts that are never trained.

    A frozen batch norm uses its running statistics, which do not change.

    Args:
        net: The network, which is changed in place.
        patterns: Patterns of the entries to freeze, such as ``["backbone.*"]``.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: A pattern matches nothing, or nothing is left to train.

    Example:
        >>> net = FrozenParts(SplitNet(nn.Linear(8, 4), nn.Linear(4, 2)), ["backbone.*"])
        >>> list(net.state_dict())
        ['head.weight', 'head.bias']
    """

    def __init__(self, net: SplitNet, patterns: Sequence[str]) -> None:
        must_be_split(net)
        super().__init__(net.backbone, net.head, net.features, net.num_classes)
        _check(self, patterns=patterns)
        make_constant(self, tuple(patterns))
        if not any(True for _ in self.parameters()):
            raise ValueError(f"patterns={list(patterns)} leaves nothing of the network to train")


class LoRA(SplitNet):
    """A network whose linear layers get a low-rank adaptation, while the rest is frozen.

    See :class:`~lightning_modules.layers.LowRankLinear` for the paper.

    Args:
        net: The network, which is changed in place.
        rank: r, the rank of the adaptation.
        targets: Patterns of the names of the linear layers to adapt.
        trained: Patterns of the entries that are trained directly; layers among them are not
            adapted.

    ``torch.nn.MultiheadAttention`` cannot be adapted: it computes with its weights without calling
    its linear layers, and in eval mode torch's Transformer layers bypass it altogether. A warning
    names such layers if ``targets`` matches them; they are frozen unless ``trained`` matches their
    entries.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: ``targets`` matches no linear layer outside of ``trained``, a pattern of
            ``trained`` matches nothing, or ``rank`` is below one.

    Example:
        >>> net = LoRA(SplitNet(nn.Linear(8, 4), nn.Linear(4, 2)), rank=1)
        >>> list(net.state_dict())
        ['backbone.down', 'backbone.up', 'head.weight', 'head.bias']
    """

    def __init__(
        self,
        net: SplitNet,
        rank: int = 4,
        targets: Sequence[str] = ("*",),
        trained: Sequence[str] = ("head.*",),
    ) -> None:
        must_be_split(net)
        super().__init__(net.backbone, net.head, net.features, net.num_classes)
        _check(self, trained=trained)
        kept = tuple(trained)
        names = [name for name in self.state_dict() if not matches(name, kept)]
        layers = {
            name: layer
            for name, layer in self.named_modules()
            # Exactly this type: subclasses may use their weights differently.
            if type(layer) is nn.Linear and f"{name}.weight" in names
        }
        adapted = {name: layer for name, layer in layers.items() if matches(name, tuple(targets))}
        attentions = _attentions(self, tuple(targets), names)
        why = (
            f"{', '.join(attentions)}: LoRA cannot adapt torch's MultiheadAttention, which "
            "computes with its weights without calling its linear layers. Name its entries in "
            "trained, or use a network whose attention has linear layers, such as ViT"
        )
        if not adapted:
            raise ValueError(
                f"targets={list(targets)} matches no linear layer of the network outside of "
                f"trained={list(trained)}; there are {', '.join(layers) or 'none'}"
                + (f". {why}" if attentions else "")
            )
        if attentions:
            warnings.warn(why, stacklevel=2)
        for name, layer in adapted.items():
            self.set_submodule(name, LowRankLinear(layer, rank))
        make_constant(self, tuple(names))


def _attentions(net: nn.Module, targets: Patterns, names: Sequence[str]) -> list[str]:
    """Return the names of torch's attention layers that are targets and have one of the entries."""
    found = {n: one for n, one in net.named_modules() if isinstance(one, nn.MultiheadAttention)}
    return [
        name
        for name, layer in found.items()
        if any(matches(part, targets) for part in (name, f"{name}.out_proj"))
        and any(f"{name}.{entry}" in names for entry in layer.state_dict())
    ]


def _check(net: nn.Module, **options: Sequence[str]) -> None:
    """Refuse patterns that match no entry.

    Raises:
        ValueError: A pattern matches nothing; the message names it.
    """
    names = list(net.state_dict())
    for option, patterns in options.items():
        for pattern in patterns:
            if not any(matches(name, (pattern,)) for name in names):
                raise ValueError(
                    f"{option} has the pattern {pattern!r}, which matches nothing in the network; "
                    f"its entries are {', '.join(names[:6])}, ..."
                )
