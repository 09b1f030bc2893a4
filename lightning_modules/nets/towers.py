"""Encoders of images and texts, for methods that learn prompts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pfl.method import AtLeastOne, Need, check_arguments


class TwoTowers(nn.Module, ABC):
    """An encoder of images and an encoder of texts, whose features have one space.

    A class is described by tokens: a start, ``context`` places for a prompt, its name, an end, and
    zeros. A subclass defines :meth:`image`, :meth:`embed` and :meth:`text`.

    Attributes:
        context: m, the number of a prompt's vectors.
        width: d_t, their size.
        scale: kappa, the constant factor of cosines in logits.

    Args:
        names: The tokens of each class's name, and of a full stop, if texts have one.
        context: m.
        width: d_t.
        start: The token at the start of a text.
        end: The token at its end.
        scale: kappa.

    Raises:
        ValueError: There is no class, or a name has no token.
    """

    def __init__(
        self,
        names: Sequence[Sequence[int]],
        context: AtLeastOne,
        width: AtLeastOne,
        start: int,
        end: int,
        scale: float = 100.0,
    ) -> None:
        super().__init__()
        check_arguments(self)
        if not names or not all(names):
            raise ValueError(f"names needs the tokens of each class, got {[*names]}")
        self.context, self.width, self.scale = context, width, scale
        length = context + 2 + max(map(len, names))
        texts = torch.zeros(len(names), length, dtype=torch.int64)
        for row, name in zip(texts, names, strict=True):
            tokens = [start, *[0] * context, *name, end]
            row[: len(tokens)] = torch.tensor(tokens)
        self.texts = nn.Buffer(texts, persistent=False)
        ends = torch.tensor([1 + context + len(name) for name in names])
        self.ends = nn.Buffer(ends, persistent=False)

    @abstractmethod
    def image(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, d) features of images, and (B, M, d) features of their patches."""

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """Return (..., d_t) embeddings of tokens, without positions."""

    @abstractmethod
    def text(self, vectors: Tensor, ends: Tensor) -> Tensor:
        """Return (K, d) features of K texts, taken at their ends.

        Args:
            vectors: (K, L, d_t) embeddings.
            ends: (K,) places of the end tokens.
        """

    def describe(self, prompt: Tensor) -> Tensor:
        """Return the (C, d) features of all classes, described with a (m, d_t) prompt."""
        vectors = self.embed(self.texts)
        prompts = prompt.expand(len(vectors), *prompt.shape)
        parts = [vectors[:, :1], prompts, vectors[:, 1 + self.context :]]
        return self.text(torch.cat(parts, 1), self.ends)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits of classes whose prompts are the zero token's embeddings."""
        pooled, _ = self.image(x)
        names = self.text(self.embed(self.texts), self.ends)
        cosines = nn.functional.normalize(pooled, dim=-1) @ nn.functional.normalize(names, dim=-1).T
        return self.scale * cosines


class ToyTowers(TwoTowers):
    """Small random towers for checks: a few patches, and one causal block on short texts.

    An image has four patches of six features, which are linear functions of a network's outputs;
    the three classes have names of one or two tokens.

    Args:
        net: (B, ...) -> (B, 3) outputs.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__([[4, 1], [5, 6, 1], [7, 1]], 3, 8, start=2, end=3, scale=5.0)
        self.net, self.lift = net, nn.Linear(3, 4 * 6)
        self.tokens, self.places = nn.Embedding(12, 8), nn.Embedding(8, 8)
        self.mixes, self.out = nn.Linear(8, 24), nn.Linear(8, 6)

    def image(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean of the patches, and the patches."""
        patches = self.lift(self.net(x)).view(len(x), 4, 6)
        return patches.mean(1), patches

    def embed(self, tokens: Tensor) -> Tensor:
        """Return embeddings of tokens."""
        found: Tensor = self.tokens(tokens)
        return found

    def text(self, vectors: Tensor, ends: Tensor) -> Tensor:
        """Return features at the end tokens, after a causal attention with one head."""
        h = vectors + self.places.weight[: vectors.shape[1]]
        q, k, v = self.mixes(h).chunk(3, -1)
        later = h.new_full((h.shape[1], h.shape[1]), -torch.inf).triu(1)
        h = h + ((q @ k.mT) / 8**0.5 + later).softmax(-1) @ v
        features: Tensor = self.out(h[torch.arange(len(h), device=h.device), ends])
        return features


def _has_towers(net: nn.Module) -> bool:
    return isinstance(net, TwoTowers)


TOWERS = Need(
    "needs an encoder of images and texts",
    "give a lightning_modules.nets.TwoTowers in place of {}",
    _has_towers,
    ToyTowers,
)


class CLIP(TwoTowers):
    """A CLIP of the transformers library, from a local folder.

    Needs ``pip install 'pfl-lightning[transformers]'``. Nothing is downloaded, and weights are read
    from safetensors alone.

    Args:
        names: Tokens of each class's name and a full stop, as the folder's tokeniser gives them
            without start and end.
        folder: A folder with ``config.json`` and weights, as ``save_pretrained`` writes it. Without
            one, weights are random.
        context: m, the number of a prompt's vectors.
        config: Arguments of transformers' ``CLIPConfig``, with random weights.

    Raises:
        ImportError: transformers is not installed.
        OSError: There are no weights in safetensors in the folder.
    """

    def __init__(
        self,
        names: Sequence[Sequence[int]],
        folder: str | None = None,
        context: AtLeastOne = 16,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            library = import_module("transformers")
        except ImportError as error:
            raise ImportError(
                "the network CLIP needs the transformers library: "
                "pip install 'pfl-lightning[transformers]'"
            ) from error
        if folder is None:
            clip = library.CLIPModel(library.CLIPConfig(**(config or {})))
        else:
            clip = library.CLIPModel.from_pretrained(
                Path(folder), local_files_only=True, use_safetensors=True
            )
        own = clip.config.text_config
        super().__init__(
            names,
            context,
            own.hidden_size,
            own.bos_token_id,
            own.eos_token_id,
            float(clip.logit_scale.detach().exp()),
        )
        self.clip = clip.eval()

    def image(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features of images and of their patches, normalised and projected alike."""
        vision = self.clip.vision_model
        tokens = vision.encoder(inputs_embeds=vision.pre_layrnorm(vision.embeddings(x)))
        found = self.clip.visual_projection(vision.post_layernorm(tokens.last_hidden_state))
        return found[:, 0], found[:, 1:]

    def embed(self, tokens: Tensor) -> Tensor:
        """Return embeddings of tokens."""
        found: Tensor = self.clip.text_model.embeddings.token_embedding(tokens)
        return found

    def text(self, vectors: Tensor, ends: Tensor) -> Tensor:
        """Return features at the end tokens, after positions, causal blocks, norm, projection."""
        tower = self.clip.text_model
        length = vectors.shape[1]
        places = tower.embeddings.position_embedding.weight[:length]
        later = torch.full((length, length), -torch.inf, device=vectors.device).triu(1)
        found = tower.encoder(
            inputs_embeds=vectors + places,
            attention_mask=later.to(vectors.dtype)[None, None],
            is_causal=True,
        )
        last = tower.final_layer_norm(found.last_hidden_state)
        at = last[torch.arange(len(last), device=last.device), ends]
        projected: Tensor = self.clip.text_projection(at)
        return projected
