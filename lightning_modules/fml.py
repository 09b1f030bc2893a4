"""FML: FedAvg's network and a private one on each client learn from each other's predictions.

Shen et al., "Federated Mutual Learning", 2020, arXiv 2006.16765.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn

from lightning_modules import base as fl


class FML(fl.ClientModule):
    """FedAvg, plus a private network for each client; both learn from labels and from each other.

    ``net`` (w, the authors' meme) and ``personal`` (v) take steps together, from the same batch:
    ``L_v = alpha CE(v) + (1 - alpha) KL(P(w) || P(v))`` and ``L_w = beta CE(w) + (1 - beta) KL(P(v)
    || P(w))``, where the teacher of each is constant. The network w travels both ways; v stays and
    is the model that is tested.

    Args:
        net: The network w.
        private: The network v, of any kind, with its own initial values; ``None`` is a copy of
            ``net``. With another network there is no global model, and newcomers start with its
            initial values; otherwise with the received network.
        alpha: Share of the labels in the loss of v.
        beta: Share of the labels in the loss of w.
        detach: Whether teachers are constant. Otherwise each network also follows the other's
            divergence, as in PFLlib.
        kl: Whether the divergence is a mean over the ``batch``, or also over the classes
            (``element``, as in PFLlib).
        weighting: Weights in the average of w; ``uniform`` is the authors'.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: ``alpha`` or ``beta`` lies outside [0, 1].
    """

    record = fl.MethodRecord(
        name="FML",
        family="A separate network for each client or group",
        travels="network",
        stays="private network",
        apart="the common and a private network teach each other",
        paper=fl.Paper(
            "Federated Mutual Learning",
            (
                "Shen, Tao and Zhang, Jie and Jia, Xinkang and Zhang, Fengda and Huang, Gang "
                "and Zhou, Pan and Kuang, Kun and Wu, Fei and Wu, Chao"
            ),
            "arXiv",
            2020,
            "https://arxiv.org/abs/2006.16765",
        ),
    )

    kept = ("personal.*",)
    objects = (*fl.ClientModule.objects, "private")
    needs = ("classes", "outputs")
    vectorizable = True

    def __init__(
        self,
        net: nn.Module,
        *,
        private: nn.Module | None = None,
        alpha: fl.Fraction = 0.5,
        beta: fl.Fraction = 0.5,
        detach: bool = True,
        kl: Literal["batch", "element"] = "batch",
        weighting: Literal["samples", "uniform"] = "uniform",
        **options: Any,
    ) -> None:
        super().__init__(net, weighting=weighting, **options)
        self.alpha, self.beta, self.detach, self.kl = alpha, beta, detach, kl
        self.personal = fl.copied(net) if private is None else private
        if not self.hparams["travel_frozen"]:
            fl.hold_frozen(self.personal)
        self.global_model = None if private is None else False

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return both shares of the labels."""
        return tuple(fl.Dimension(name, choices=(0.1, 0.5, 0.9)) for name in ("alpha", "beta"))

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits of the private network."""
        logits: Tensor = self.personal(x)
        return logits

    def plan(self) -> fl.Plan:
        """Declare one phase, in which both networks step together."""
        return [fl.Phase(name="local", objective=self.losses, epochs=self.epochs)]

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return both networks' ``ce`` and divergences, weighted."""
        v, w = self.personal(batch.x), self.net(batch.x)
        # Without detaching, each divergence has gradients in both networks.
        teacher_v, teacher_w = (v.detach(), w.detach()) if self.detach else (v, w)
        scale = 1 / w.shape[-1] if self.kl == "element" else 1.0
        (of_v,), (of_w,) = (self.supervised(logits, batch).values() for logits in (v, w))
        to_v, to_w = (
            fl.kl_divergence(v, teacher_w, batch.weight),
            fl.kl_divergence(w, teacher_v, batch.weight),
        )
        return {
            "personal": self.alpha * of_v,
            "teach_personal": (1 - self.alpha) * scale * to_v,
            "global": self.beta * of_w,
            "teach_global": (1 - self.beta) * scale * to_w,
        }

    def server(self) -> fl.Server[fl.ServerState]:
        """Return a server that averages; newcomers copy the received network if it fits."""
        copied = ("net.", "personal.") if self.global_model is None else None
        return fl.Server(self.weighting, inherits=copied)

    def load_global(self, broadcast: fl.Broadcast) -> None:
        """Load the global model into both networks."""
        super().load_global(broadcast)
        fl.assign(self.personal, self.net.state_dict())
