"""Pretrained networks of transformers and timm, with a new linear layer as their head."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor, nn

from lightning_modules.nets.blocks import ImageShape
from lightning_modules.nets.split import SplitNet
from lightning_modules.nets.timm import Timm
from pfl.method import Inputs, one_of

Pool: TypeAlias = Literal["mean", "first", "last", "pooler"]


class Pretrained(SplitNet):
    """A pretrained network of transformers or timm, and a new linear layer as its head.

    Nothing is downloaded unless told, no code of a repository is run, and weights are read from
    safetensors alone (those of timm also from what ``torch.load`` reads with
    ``weights_only=True``). Freeze it with :class:`LoRA`, whose rank may be zero.

    Args:
        num_classes: C, or the number of outputs in another task.
        name: ``hf:`` and a name or folder of transformers, such as ``hf:bert-base-uncased``; or a
            name of timm.
        weights: The local folder of ``hf:`` names, as ``save_pretrained`` writes it, or else the
            one that transformers has downloaded before; for names of timm as in :class:`Timm`.
        pool: How a transformer's (B, L, D) outputs become (B, D): the ``mean`` over tokens that are
            no padding, the ``first`` or the ``last`` of them, or the model's own ``pooler``. A
            network of timm pools by ``options``, such as ``{global_pool: token}``.
        input_shape: (channels, height, width) of images, for names of timm.
        options: Further arguments of ``timm.create_model``.
        download: Whether transformers may download what is not there.

    Raises:
        ImportError: The library is not installed.
        ValueError: The network cannot be built, or does not give features.
        OSError: There are no such weights.
    """

    def __init__(
        self,
        num_classes: int,
        name: str,
        weights: str | None = None,
        pool: Pool = "mean",
        input_shape: ImageShape = (3, 224, 224),
        options: Mapping[str, Any] | None = None,
        download: bool = False,
    ) -> None:
        one_of("pool", pool, ("mean", "first", "last", "pooler"))
        if name.startswith("hf:"):
            given = name.removeprefix("hf:")
            if weights is not None and not Path(weights).is_dir():
                raise FileNotFoundError(f"there is no folder {weights} with the weights of {given}")
            backbone = Pooled(_model(weights or given, download), pool)
            super().__init__(backbone, nn.Linear(backbone.size, num_classes))
        else:
            made = Timm(num_classes, name, input_shape, weights, options)
            super().__init__(made.backbone, made.head)


class Pooled(nn.Module):
    """A model of transformers whose outputs are pooled.

    Attributes:
        size: D.

    Args:
        model: The model.
        pool: See :class:`Pretrained`.
    """

    def __init__(self, model: nn.Module, pool: Pool) -> None:
        super().__init__()
        config = cast(Any, model).config
        sizes = getattr(config, "hidden_sizes", None)
        self.size = int(sizes[-1] if sizes else config.hidden_size)
        self.model, self.pool = model, pool
        self.input = str(cast(Any, model).main_input_name)
        self.padding: int | None = getattr(config, "pad_token_id", None)
        # Keep these weights if clients draw their own initial values.
        self.pretrained = True

    def forward(self, x: Inputs) -> Tensor:
        """Return (B, D) features of tokens or pixels, alone or by the model's own names."""
        given = {self.input: x} if isinstance(x, Tensor) else dict(x)
        tokens = given.get("input_ids")
        if tokens is not None and "attention_mask" not in given and self.padding is not None:
            given["attention_mask"] = (tokens != self.padding).long()
        found = self.model(**given)
        if self.pool == "pooler":
            return cast(Tensor, found.pooler_output).flatten(1)
        hidden: Tensor = found.last_hidden_state
        if hidden.dim() > 3:
            hidden = hidden.flatten(2).mT  # Pixels of a convolution are its tokens.
        mask = given.get("attention_mask")
        kept = torch.ones_like(hidden[..., 0]) if mask is None else mask.to(hidden.dtype)
        if self.pool == "first":
            return hidden[:, 0]
        if self.pool == "last":
            places = torch.arange(hidden.shape[1], device=hidden.device)
            last = (places * kept).argmax(1)
            return hidden.take_along_dim(last[:, None, None], 1)[:, 0]
        return (hidden * kept[..., None]).sum(1) / kept.sum(1, keepdim=True).clamp_min(1)


def _model(name: str, download: bool) -> nn.Module:
    """Return a model of transformers with its weights.

    Raises:
        ImportError: transformers is not installed.
        OSError: There are no weights in safetensors.
        ValueError: The folder is of no model that transformers itself has.
    """
    try:
        transformers = import_module("transformers")
    except ImportError as error:
        raise ImportError(
            "names with hf: need transformers: pip install 'pfl-lightning[transformers]'"
        ) from error
    try:
        model: nn.Module = transformers.AutoModel.from_pretrained(
            name,
            local_files_only=not download,
            trust_remote_code=False,
            use_safetensors=True,
            # A configuration may name kernels to be fetched and run.
            attn_implementation="sdpa",
        )
    except OSError as error:
        told = "" if download else " (download: true fetches them)"
        raise OSError(f"there are no weights in safetensors for {name}{told}: {error}") from error
    if getattr(cast(Any, model).config, "is_encoder_decoder", False):
        model = cast(Any, model).get_encoder()
    return model
