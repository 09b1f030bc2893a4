"""pFedFDA: the head is a generative classifier, and clients blend global and own Gaussians.

"Personalized Federated Learning via Feature Distribution Adaptation", NeurIPS 2024; the authors'
released code. Body, class means and the common covariance of features travel; there is no trained
head.

Departs from the released code: coefficients are searched on a grid and then by SciPy's bounded
L-BFGS; whether a class has enough samples is asked of the class, not of all samples; the
covariance is not projected, as it is positive definite by construction.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_modules.base import ClientModule
from lightning_modules.losses import cross_entropy
from lightning_modules.nets import SplitNet
from lightning_modules.nets.initial import seed_of
from lightning_modules.steps.gaussians import (
    CovarianceRegulariser,
    Gaussians,
    blend,
    choose_coefficients,
    discriminant,
    estimate,
    pack,
    unpack,
    wide,
)
from pfl.core.checks import within
from pfl.core.seeds import derive, scoped
from pfl.core.types import (
    Batch,
    Broadcast,
    ClientInfo,
    Outcome,
    Pass,
    Phase,
    Plan,
    State,
    Terms,
    Totals,
)


class PFedFDA(ClientModule):
    """The body and the Gaussians of its features travel.

    The body is trained under the classifier that the global Gaussians and the client's class shares
    make. Then the client's own Gaussians are estimated, blended with the global ones by
    coefficients that cross-validation chooses, and sent. Every test does the same with features of
    the received body. The global model takes all classes as equally likely.

    Args:
        net: Its head is not used.
        eps: Share of the isotropic part in the covariance, and what is added to class shares.
        stats: Estimate from the features of all batches of training, while the body moves (released
            code), or in one walk over the data after it.
        cov_reg: What is added to a covariance; see
            :func:`~lightning_modules.steps.gaussians.estimate`.
        single_beta: One coefficient for means and covariance.
        local_beta: No blending, coefficients of 1.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: ``eps`` is out of its range, or a word unknown.
    """

    shared = ("net.backbone.*", "means", "covariance")
    kept = ("coefficients",)
    global_model = True
    vectorizable = True
    needs_classes = True
    net: SplitNet
    means: Tensor
    covariance: Tensor
    coefficients: Tensor
    prior: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        net: SplitNet,
        *,
        eps: float = 1e-4,
        stats: Literal["running", "fresh_pass"] = "running",
        cov_reg: CovarianceRegulariser = "official",
        single_beta: bool = False,
        local_beta: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(net, **options)
        within("(0, 1)", eps=eps)
        self.eps = eps
        self.stats = stats
        self.cov_reg: CovarianceRegulariser = cov_reg
        self.single_beta = single_beta
        self.local_beta = local_beta
        classes, size = net.num_classes, net.features
        with scoped(derive(seed_of(net), "pfedfda")):
            self.register_buffer("means", torch.rand(classes, size))
        self.register_buffer("covariance", pack(torch.eye(size)))
        self.register_buffer("coefficients", torch.full((2,), 0.5))
        self.register_buffer("prior", torch.full((classes,), 1 / classes))
        self.register_buffer("weight", torch.zeros(classes, size))
        self.register_buffer("bias", torch.zeros(classes))
        self._set_classifier()

    def receive(self, broadcast: Broadcast, info: ClientInfo) -> None:
        """Take in body and Gaussians; the head follows with the client's class shares."""
        super().receive(broadcast, info)
        shares = info.class_counts.to(self.prior) / max(1, info.samples) + self.eps
        self.prior.copy_(shares / shares.sum())
        self._set_classifier()

    def load_global(self, broadcast: Broadcast) -> None:
        """Load body and Gaussians, with all classes equally likely."""
        super().load_global(broadcast)
        self.prior.fill_(1 / len(self.prior))
        self._set_classifier()

    def plan(self) -> Plan:
        """Declare training of the body, then the fit of the Gaussians."""
        running = self.stats == "running"
        local = Phase(
            name="local",
            objective=self._collecting if running else self.losses,
            epochs=self.epochs,
            trains=("net.backbone.*",),
        )
        fit = Pass(name="gaussians", then=self._fit, collect=None if running else self._features)
        return [local, fit]

    def adapt(self) -> Plan:
        """Declare the fit of the Gaussians to the received body."""
        return [Pass(name="gaussians", collect=self._features, then=self._fit)]

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits."""
        return F.linear(self.net.backbone(x), self.weight, self.bias)

    def losses(self, batch: Batch) -> Terms:
        """Return the cross-entropy under the constant classifier."""
        return self._collecting(batch).terms

    def _collecting(self, batch: Batch) -> Outcome:
        """Return the same loss, with features and labels for the fit that follows."""
        z = self.net.backbone(batch.x)
        logits = F.linear(z, self.weight, self.bias)
        terms = {"ce": cross_entropy(logits, batch.y, batch.weight)}
        return Outcome(terms, rows={"z": z, "y": batch.y})

    def _features(self, batch: Batch) -> State:
        with torch.no_grad():
            return {"z": self.net.backbone(batch.x), "y": batch.y}

    def _fit(self, totals: Totals) -> State:
        """Return the blended Gaussians of some features, and their classifier."""
        if not totals.rows:
            return {}
        z = wide(totals.rows["z"])
        if not z.isfinite().all():
            # The loss tells the loop; here the Gaussians of others are all there is to go by.
            return {}
        y = totals.rows["y"].to(z.device)
        common, prior = self._gaussians(), wide(self.prior)
        coefficients = z.new_ones(2)
        if not self.local_beta:
            coefficients = choose_coefficients(
                z, y, common, prior, self.eps, self.cov_reg, self.single_beta
            )
        blended = blend(estimate(z, y, common, self.cov_reg), common, coefficients)
        weight, bias = discriminant(blended, prior, self.eps)
        return {
            "means": blended.means,
            "covariance": pack(blended.covariance),
            "coefficients": coefficients,
            "weight": weight,
            "bias": bias,
        }

    def _gaussians(self) -> Gaussians:
        return Gaussians(wide(self.means), unpack(wide(self.covariance)))

    def _set_classifier(self) -> None:
        weight, bias = discriminant(self._gaussians(), wide(self.prior), self.eps)
        self.weight.copy_(weight)
        self.bias.copy_(bias)
