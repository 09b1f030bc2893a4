"""Networks of the timm library."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_modules.nets.blocks import ImageShape
from lightning_modules.nets.split import SplitNet

# Arguments of ``timm.create_model`` that name weights.
_WEIGHTS = {"pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path"}


class Timm(SplitNet):
    """A network of the timm library, with a new linear layer as its head.

    Needs ``pip install 'pfl-lightning[timm]'``. Nothing is downloaded: pretrained weights are read
    from a file.

    Args:
        num_classes: C, or the number of outputs in another task.
        name: Name of the network, as listed by ``timm.list_models()``.
        input_shape: (channels, height, width).
        weights: File of the weights, ``.safetensors`` or a file that ``torch.load`` reads with
            ``weights_only=True``. Weights of the classifier are ignored. ``None`` uses random
            weights.
        options: Further arguments of ``timm.create_model``, such as ``{img_size: 32}``.

    Raises:
        ImportError: timm is not installed.
        ValueError: timm cannot build the network, the network cannot take such images, or the
            weights belong to another network.
        OSError: The weights cannot be read.
    """

    def __init__(
        self,
        num_classes: int,
        name: str,
        input_shape: ImageShape = (3, 224, 224),
        weights: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        given = {"num_classes": 0, "in_chans": input_shape[0], **(options or {})}
        backbone = _backbone(name, given)
        if weights is not None:
            _load(backbone, Path(weights), name)
        super().__init__(backbone, nn.Linear(_features(backbone, name, input_shape), num_classes))


def _backbone(name: str, options: Mapping[str, Any]) -> nn.Module:
    # These would make timm itself download weights or unpickle a file.
    if taken := _WEIGHTS & options.keys():
        raise ValueError(f"give the file of the weights as weights, not {min(taken)} in options")
    try:
        timm = import_module("timm")
    except ImportError as error:
        raise ImportError(
            "the network Timm needs the timm library: pip install 'pfl-lightning[timm]'"
        ) from error
    if ":" in name:
        raise ValueError(f"{name!r} is a download location; give the name of a timm network")
    try:
        net: nn.Module = timm.create_model(name, pretrained=False, **options)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"timm cannot build {name!r} with {dict(options)}: {error}") from error
    return net


@torch.no_grad()
def _features(net: nn.Module, name: str, shape: ImageShape) -> int:
    """Return D, found by computing the features of two blank images."""
    try:
        features = net.eval()(torch.zeros(2, *shape))
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"{name} cannot take images of shape {tuple(shape)} (channels, height, width): {error}"
        ) from error
    finally:
        net.train()
    if features.dim() != 2:
        raise ValueError(f"{name} returns features of shape {tuple(features.shape[1:])}, not (D,)")
    return int(features.shape[1])


def _load(net: nn.Module, file: Path, name: str) -> None:
    """Load pretrained weights, except the classifier's."""
    weights = _read(file)
    classifier = getattr(net, "pretrained_cfg", {}).get("classifier") or ()
    heads = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    given = {n: v for n, v in weights.items() if not n.startswith(tuple(f"{h}." for h in heads))}
    try:
        net.load_state_dict(given)
    except RuntimeError as error:
        raise ValueError(f"the weights in {file} do not fit {name}: {error}") from error
    # Keep these weights if clients draw their own initial values.
    net.pretrained = True  # type: ignore[assignment]


def _read(file: Path) -> Mapping[str, Tensor]:
    if not file.is_file():
        raise FileNotFoundError(f"there is no weights file {file}")
    try:
        if file.suffix == ".safetensors":
            weights = import_module("safetensors.torch").load_file(file)
        else:
            weights = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise OSError(f"{file} cannot be read as a weights file: {error}") from error
    if not (isinstance(weights, Mapping) and all(isinstance(v, Tensor) for v in weights.values())):
        raise OSError(f"{file} is not a state dict, which maps names to tensors")
    return weights
