"""UniVarFL: FedAvg whose clients spread features and keep predictions varied.

"UniVarFL: Uniformity and Variance Regularized Federated Learning for Heterogeneous Data", 2025,
arXiv 2506.08167.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from lightning_modules import base as fl

# Share of the pairs whose features may coincide without a warning.
_COINCIDENT = 0.1
# Squared distance of orthogonal features, in forms with energy 1 / (distance + eps).
_ORTHOGONAL = {"inverse": 1.0, "chord": 2.0}


class UniVarFL(fl.ClientModule):
    """FedAvg whose clients spread their features and keep their predictions varied.

    The objective is ``CE + w_he * L_HE + w_cv * L_CV`` (Eq. 4). L_HE, the hyperspherical energy,
    spreads features over the sphere; L_CV keeps the variance of each class's probability above a
    floor. Both need only the batch, no other model. The whole network travels both ways, and
    nothing stays with the client; one global model is tested.

    The paper's text was available without its formulas, and the released code was not available.
    The equations are reconstructed from the paper's prose. Where the prose is silent, they follow
    the public code of FedUV ("FedUV: Uniformity and Variance for Heterogeneous Federated Learning",
    CVPR 2024), an earlier method with the same two ideas. Every such choice is an argument.

    Args:
        net: A ``SplitNet``; its backbone, projector included, gives the features (B, D) that L_HE
            spreads.
        w_cv: Weight of the classifier-variance term L_CV (Eqs. 1-2). ``None`` means C / 4, which is
            FedUV's 2.5 for C = 10 classes. The paper says that the weight depends on C; its value
            is lost.
        w_he: Weight of the energy term L_HE (Eq. 3). Its value is lost; 0.5 is FedUV's, for the
            ``rbf`` form. For ``inverse`` take 0.1 or less.
        cv_statistic: Statistic that the floor applies to: the variance over the batch of each
            class's probability (``var``, the paper's prose), or its standard deviation (``std``,
            FedUV).
        cv_unbiased: Divide by B - 1, and by C - 1 in the floor (FedUV), instead of by B and C.
        he_form: Energy of a pair of features; see
            :func:`~lightning_modules.losses.hyperspherical_energy`. ``rbf`` is FedUV's, at most
            one a pair. ``inverse`` follows the paper's prose, and needs a network with
            batch norm and a small ``w_he``; LeNet-5 may diverge with it.
        eps: Bounds the energy of coinciding features by 1 / eps, except in ``rbf``; its value is
            lost. The gradient near such features grows as eps^-1.5.
        normalize_for_head: Whether the classifier also gets features of length one.
        lr_schedule: As in :class:`ClientModule`. ``cosine`` is FedUV's; the paper does not say.
        options: See :class:`ClientModule`.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: A weight is negative, or ``eps`` is not positive.
    """

    record = fl.MethodRecord(
        name="UniVarFL",
        family="One model for all, and where to tune it",
        travels="network",
        apart="a hyperspherical energy and a variance floor in the loss",
        paper=fl.Paper(
            (
                "{UniVarFL}: Uniformity and Variance Regularized Federated Learning for "
                "Heterogeneous Data"
            ),
            "Gupta, Sunny and Jangid, Nikita and Sethi, Amit",
            "arXiv",
            2025,
            "https://arxiv.org/abs/2506.08167",
        ),
    )

    vectorizable = True
    one_model = True
    needs = ("classes", "features", "parts", "outputs")
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        w_cv: fl.NotNegative[float] | None = None,
        w_he: fl.NotNegative[float] = 0.5,
        cv_statistic: fl.SpreadStatistic = "var",
        cv_unbiased: bool = False,
        he_form: fl.EnergyForm = "rbf",
        eps: fl.Positive[float] = 1e-3,
        normalize_for_head: bool = False,
        lr_schedule: fl.LRSchedule = "cosine",
        **options: Any,
    ) -> None:
        super().__init__(net, lr_schedule=lr_schedule, **options)
        self.w_cv = net.num_classes / 4 if w_cv is None else w_cv
        self.w_he = w_he
        self.cv_statistic: fl.SpreadStatistic = cv_statistic
        self.cv_unbiased = cv_unbiased
        self.he_form: fl.EnergyForm = he_form
        self.eps = eps
        self.normalize_for_head = normalize_for_head

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return both weights around FedUV's, up to C / 2 for 100 classes; the paper's are lost."""
        return (
            fl.Dimension("w_he", choices=(0.01, 0.05, 0.1, 0.5)),
            fl.Dimension("w_cv", choices=(2.5, 12.5, 25.0, 50.0)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits."""
        return self._classify(self.net.backbone(x))

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return ``ce`` and the weighted ``he`` and ``cv``; terms of weight zero are left out."""
        z = self.net.backbone(batch.x)
        logits = self._classify(z)
        terms = self.supervised(logits, batch)
        if self.w_he:
            energy = fl.hyperspherical_energy(z, batch.weight, self.he_form, self.eps)
            terms["he"] = self.w_he * energy
        if self.w_cv:
            short = fl.classifier_variance(
                logits, batch.weight, self.cv_statistic, self.cv_unbiased
            )
            terms["cv"] = self.w_cv * short
        return terms

    def loss_warning(self, losses: Mapping[str, float]) -> str | None:
        """Return a warning if the energy is as high as if many pairs of features coincided.

        Pairs that coincide have the energy 1 / eps; the others are assumed to be orthogonal.
        """
        if self.he_form not in _ORTHOGONAL:
            return None
        energy = losses.get("local/he", 0.0) / (self.w_he or 1.0)
        apart = 1 / (_ORTHOGONAL[self.he_form] + self.eps)
        if energy - apart < _COINCIDENT * (1 / self.eps - apart):
            return None
        return (
            f"the features of many samples coincide (the energy is {energy:.4g} of at most "
            f"{1 / self.eps:g}), and there it has no gradient that could part them. Take he_form: "
            f"log, a larger eps than {self.eps:g}, a smaller w_he than {self.w_he:g}, or a network "
            "with batch norm"
        )

    def _classify(self, z: Tensor) -> Tensor:
        logits: Tensor = self.net.head(F.normalize(z, dim=-1) if self.normalize_for_head else z)
        return logits
