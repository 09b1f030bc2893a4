"""Networks that are only partly trained: frozen parts and low-rank adaptation.

Frozen entries are not in the network's state (:func:`~lightning_modules.layers.make_constant`):
they do not travel, clients trained as one stack share them, and checkpoints do not contain them.
Patterns match names within the network, such as ``backbone.*``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Literal

from torch import nn

from lightning_modules.layers import LowRank, low_rank_kind, make_constant
from lightning_modules.nets.split import PerClient, SplitNet, must_be_split
from pfl.method import (
    Fraction,
    NotNegative,
    Patterns,
    Positive,
    at_least_one,
    check_arguments,
    constants,
    copied,
    matches,
)


class LoRA(SplitNet):
    """A network of which layers get a low-rank adaptation, while the rest is frozen.

    See :class:`~lightning_modules.layers.LowRank` for the paper. Layers are ``nn.Linear``,
    ``nn.Conv2d`` of one group, and ``Conv1D`` of transformers.

    Args:
        net: The network, which is changed in place.
        rank: r, the rank of the adaptation; zero adapts nothing, so that ``trained`` is all that is
            trained.
        targets: Patterns of the names of the layers to adapt.
        trained: Patterns of the entries that are trained directly; layers among them are not
            adapted.
        alpha: The product is scaled by ``alpha / r``; ``None`` scales it by one.
        dropout: Probability with which an input of a product is dropped in training.

    ``torch.nn.MultiheadAttention`` cannot be adapted: it computes with its weights without calling
    its linear layers, and in eval mode torch's Transformer layers bypass it altogether. A warning
    names such layers if ``targets`` matches them; they are frozen unless ``trained`` matches their
    entries.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: ``targets`` matches no layer outside of ``trained``, a pattern of ``trained``
            matches nothing, nothing is left to train, or a number is out of range.

    Example:
        >>> net = LoRA(SplitNet(nn.Linear(8, 4), nn.Linear(4, 2)), rank=1)
        >>> list(net.state_dict())
        ['backbone.down', 'backbone.up', 'head.weight', 'head.bias']
    """

    def __init__(
        self,
        net: SplitNet,
        rank: NotNegative[int] = 4,
        targets: Sequence[str] = ("*",),
        trained: Sequence[str] = ("head.*",),
        alpha: Positive[float] | None = None,
        dropout: Fraction = 0.0,
    ) -> None:
        check_arguments(self)
        must_be_split(net)
        super().__init__(net.backbone, net.head, net.features, net.num_classes)
        _adapt(self, rank, targets, trained, alpha, dropout)


class FrozenParts(LoRA):
    """A network with parts that are never trained: :class:`LoRA` of rank zero.

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
        _check(net, patterns=patterns)
        trained = [name for name in net.state_dict() if not matches(name, tuple(patterns))]
        super().__init__(net, rank=0, trained=trained)


class Ranks(PerClient):
    """A network adapted by :class:`LoRA`, with a rank for each client.

    Clients of a rank use one network; a client of rank r has the first r rows of the same A. Only
    methods that do not average the products (FLoRA), or let them stay, take it.

    Args:
        net: The network.
        ranks: The ranks, each at least one.
        by: Assignment of ranks to clients, as in :class:`PerClient`.
        alpha: As in :class:`LoRA`, the same or one for each rank.
        targets: As in :class:`LoRA`.
        trained: As in :class:`LoRA`.
        dropout: As in :class:`LoRA`.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: A number is out of range, there is no rank, or see :class:`LoRA`.
    """

    def __init__(
        self,
        net: SplitNet,
        ranks: Sequence[int],
        by: Literal["cycle", "domain"] | list[int] = "cycle",
        alpha: Positive[float] | Sequence[float] | None = None,
        targets: Sequence[str] = ("*",),
        trained: Sequence[str] = ("head.*",),
        dropout: Fraction = 0.0,
    ) -> None:
        if not ranks:
            raise ValueError("ranks needs at least one rank, got an empty list")
        at_least_one(ranks=min(ranks))
        alphas = [*alpha] if isinstance(alpha, Sequence) else [alpha] * len(ranks)
        if len(alphas) != len(ranks):
            raise ValueError(f"alpha has {len(alphas)} numbers for {len(ranks)} ranks")
        largest = LoRA(net, max(ranks), targets, trained, dropout=dropout)
        nets = [copied(largest) for _ in ranks]
        for one, rank, own in zip(nets, ranks, alphas, strict=True):
            for layer in one.modules():
                if isinstance(layer, LowRank):
                    layer.cut(rank, own)
        super().__init__([*nets], by)


def adapted(net: nn.Module, config: object = None) -> nn.Module:
    """Return any network with adapters, while the rest of it is frozen.

    Args:
        net: A network, changed in place; or a model of ``peft``, returned as it is.
        config: The options of :class:`LoRA` as a dictionary, where ``trained`` is the head of a
            network that has one; or a ``PeftConfig``, which adapts the backbone of a network that
            has one. ``None`` for a model of ``peft``.

    Raises:
        TypeError: ``config`` is neither, or missing.
        ImportError: peft is not installed.
        ValueError: See :class:`LoRA`.

    Example:
        >>> net = adapted(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), {"rank": 2, "targets": ["0"]})
        >>> list(net.state_dict())
        ['0.down', '0.up']
    """
    if config is None:
        if constants(net) or any(not value.requires_grad for value in net.parameters()):
            return net
        raise TypeError(
            f"adapted({type(net).__name__}) needs a config, as nothing of the network is frozen: "
            'give options of LoRA, such as {"rank": 4}, or a PeftConfig'
        )
    if isinstance(config, Mapping):
        head = hasattr(net, "backbone") and hasattr(net, "head")
        known = {"rank": 4, "targets": ("*",), "trained": ("head.*",) if head else ()}
        _adapt(net, **{**known, "alpha": None, "dropout": 0.0, **config})
        return net
    try:
        peft = import_module("peft")
    except ImportError as error:
        raise ImportError(
            "a config that is no dictionary is one of peft: pip install 'pfl-lightning[peft]'"
        ) from error
    if not isinstance(config, peft.PeftConfig):
        raise TypeError(
            f"config must be a dictionary of LoRA's options or a PeftConfig, got {config!r}"
        )
    if hasattr(net, "backbone") and hasattr(net, "head"):
        net.backbone = peft.get_peft_model(net.backbone, config)
        return net
    made: nn.Module = peft.get_peft_model(net, config)
    return made


def _adapt(
    net: nn.Module,
    rank: int,
    targets: Sequence[str],
    trained: Sequence[str],
    alpha: float | None,
    dropout: float,
) -> None:
    """Adapt the layers that match, and make the rest constant, in place."""
    _check(net, trained=trained)
    names = [name for name in net.state_dict() if not matches(name, tuple(trained))]
    for name in _layers(net, targets, trained, names) if rank else ():
        layer = net.get_submodule(name)
        kind = low_rank_kind(layer)
        assert kind is not None
        net.set_submodule(name, kind(layer, rank, alpha, dropout))
    make_constant(net, tuple(names))
    if not any(True for _ in net.parameters()):
        raise ValueError(
            f"rank={rank} and trained={list(trained)} leave nothing of the network to train"
        )


def _layers(
    net: nn.Module, targets: Sequence[str], trained: Sequence[str], names: Sequence[str]
) -> Sequence[str]:
    """Return the names of the layers to adapt; warn of those that match and cannot be.

    Raises:
        ValueError: There is none, or one of them has two names.
    """
    layers = [n for n, one in net.named_modules() if low_rank_kind(one) and f"{n}.weight" in names]
    found = [name for name in layers if matches(name, tuple(targets))]
    _check_single(net, found)
    attentions = _attentions(net, tuple(targets), names)
    why = (
        f"{', '.join(attentions)}: LoRA cannot adapt torch's MultiheadAttention, which "
        "computes with its weights without calling its linear layers. Name its entries in "
        "trained, or use a network whose attention has linear layers, such as ViT"
    )
    if not found:
        raise ValueError(
            f"targets={list(targets)} matches no layer of the network outside of "
            f"trained={list(trained)}; there are {', '.join(layers) or 'none'}"
            + (f". {why}" if attentions else "")
        )
    if attentions:
        warnings.warn(why, stacklevel=4)
    return found


def _check_single(net: nn.Module, names: Sequence[str]) -> None:
    """Refuse a layer that has another name too, under which it would not be adapted.

    Raises:
        ValueError: There is such a layer.
    """
    first = dict[nn.Module, str]()
    for name, part in net.named_modules(remove_duplicate=False):
        if first.setdefault(part, name) != name and first[part] in names:
            raise ValueError(
                f"{first[part]!r} and {name!r} are one layer, of which only the first would be "
                "adapted: give each place a layer of its own, or name other targets"
            )


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
