"""FedOTP: a common and a private text prompt for a frozen vision-language encoder.

Li, Huang, Wang and Shi, "Global and Local Prompts Cooperation via Optimal Transport for Federated
Learning", CVPR 2024, arXiv 2403.00041.

Departs from the authors' code in: each client has its own optimiser, made anew each round (theirs
is one for all clients, whose momentum leaks between them); transports take all their passes, so
that a sample's logits do not depend on others (``stop: batch`` is theirs).
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from lightning_modules import base as fl

# The authors' bound for the mean change of v.
SMALL = 1e-3


class FedOTP(fl.ClientModule):
    """Two learned text prompts, one common and one private, matched with an image's patches.

    The encoder is a constant. Each prompt, with each class's name, gives a text feature; the
    optimal transport T between the patches f_j and the two features t_n of a class, in which
    patches may be left out, gives the logit ``kappa sum_jn T_jn <f_j, t_n>``. T is a constant of
    the gradient. The common prompt is averaged, the private one stays.

    Args:
        net: A :class:`TwoTowers`, frozen in place.
        prompts: A common and a private prompt, or the common one alone, without transport: PromptFL
            (arXiv 2208.11625), whose logits are ``kappa <pooled feature, t>``.
        eps: Strength of the transport's entropy.
        mass: gamma, the share of the patches that is matched; it scales logits.
        transport: Whether patches may be left out; if ``balanced``, all are matched.
        passes: Passes of Sinkhorn's iteration.
        stop: ``batch`` ends it once v moves by less than 0.001 in the mean over a batch.
        options: See :class:`ClientModule`.

    Raises:
        TypeError: The network has no two towers.
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="FedOTP",
        family="Adapters on a frozen network",
        travels="common prompt",
        stays="private prompt",
        apart="optimal transport between an image's patches and two text prompts",
        paper=fl.Paper(
            "Global and Local Prompts Cooperation via Optimal Transport for Federated Learning",
            "Li, Hongxia and Huang, Wei and Wang, Jingya and Shi, Ye",
            "CVPR",
            2024,
            "https://arxiv.org/abs/2403.00041",
        ),
        shown=None,
    )

    shared = ("common",)
    needs = ("outputs", fl.TOWERS)
    net: fl.TwoTowers

    def __init__(
        self,
        net: fl.TwoTowers,
        *,
        prompts: Literal["both", "global"] = "both",
        eps: fl.Positive[float] = 0.1,
        mass: fl.Fraction = 0.8,
        transport: Literal["unbalanced", "balanced"] = "unbalanced",
        passes: fl.AtLeastOne = 100,
        stop: Literal["never", "batch"] = "never",
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        fl.check_needs("FedOTP", self.needs, net)
        fl.make_constant(net, ("*",))
        self.prompts = prompts
        self.stop = stop
        super().__init__(net, **options)
        self.transport: dict[str, Any] = {
            "eps": eps,
            "mass": 1.0 if transport == "balanced" else mass,
            "balanced": transport == "balanced",
            "passes": passes,
            "tolerance": SMALL if stop == "batch" else 0.0,
        }
        self.common = nn.Parameter(0.02 * torch.randn(net.context, net.width))
        if prompts == "both":
            self.own = nn.Parameter(0.02 * torch.randn(net.context, net.width))

    @property
    def vectorizable(self) -> bool:  # type: ignore[override]
        """``True`` unless the iteration's end depends on values."""
        return self.stop == "never"

    @property
    def one_model(self) -> bool:  # type: ignore[override]
        """``True`` without prompts of a client's own."""
        return self.prompts == "global"

    @property
    def global_model(self) -> bool:  # type: ignore[override]
        """``True`` without prompts of a client's own."""
        return self.prompts == "global"

    @property
    def kept(self) -> fl.Patterns:
        """The private prompt."""
        return ("own",) if self.prompts == "both" else ()

    def plan(self) -> fl.Plan:
        """Declare one phase, on features of images that are computed once."""
        return [
            fl.Phase(
                name="local",
                objective=lambda batch: self.supervised(self._logits(batch.x), batch),
                epochs=self.epochs,
                evals=("net",),
                inputs=lambda batch: self._seen(batch.x),
            )
        ]

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return the loss of a batch of images."""
        return self.supervised(self(batch.x), batch)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits."""
        return self._logits(self._seen(x))

    def _seen(self, x: Tensor) -> Tensor:
        """Return (B, M, d) features of an image's patches, or (B, 1, d) of the whole image."""
        pooled, patches = self.net.image(x)
        seen = patches if self.prompts == "both" else pooled[:, None]
        return F.normalize(seen, dim=-1)

    def _logits(self, seen: Tensor) -> Tensor:
        prompts = [self.common, *([self.own] if self.prompts == "both" else [])]
        texts = [self.net.describe(prompt) for prompt in prompts]
        named = F.normalize(torch.stack(texts), dim=-1)
        near = torch.einsum("bmd,ncd->bcmn", seen, named)
        if self.prompts == "global":
            return self.net.scale * near[..., 0, 0]
        matched = transported(near.detach(), **self.transport)
        return self.net.scale * (matched * near).sum((-2, -1))


def transported(
    near: Tensor,
    eps: float,
    mass: float,
    balanced: bool = False,
    passes: int = 100,
    tolerance: float = 0.0,
) -> Tensor:
    """Return the optimal transport between M patches and N prompts, for each image and class.

    Its columns sum to ``mass / N``, its rows to at most 1 / M after enough passes, or to 1 / M if
    it is balanced. Computed with logarithms, as exp(-1 / eps) may be zero.

    Args:
        near: (..., M, N) cosines; the costs are one minus them.
        eps: Strength of the entropy.
        mass: Share of the patches that is matched.
        balanced: Whether rows have their sums exactly.
        passes: Number of passes.
        tolerance: The iteration ends once v changes by less in the mean; 0 never does.
    """
    kernel = (near - 1) / eps
    rows, columns = -math.log(near.shape[-2]), math.log(mass / near.shape[-1])
    v = torch.zeros_like(near[..., 0, :])
    u = torch.zeros_like(near[..., 0])
    for _ in range(passes):
        u = rows - torch.logsumexp(kernel + v[..., None, :], -1)
        u = u if balanced else u.clamp_max(0)
        before, v = v, columns - torch.logsumexp(kernel + u[..., None], -2)
        if tolerance and float((v.exp() - before.exp()).abs().mean()) < tolerance:
            break
    return (u[..., None] + kernel + v[..., None, :]).exp()
