"""pFedFDA: a generative classifier as the head, blended from global and local Gaussians.

"Personalized Federated Learning via Feature Distribution Adaptation", NeurIPS 2024; the authors'
released code.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from lightning_modules import base as fl
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


class PFedFDA(fl.ClientModule):
    """A Gaussian classifier of features, blended for each client from global and local estimates.

    Each class is a Gaussian with its own mean and a covariance common to all classes, and these
    give a linear classifier; there is no trained head. A participant trains the backbone under the
    classifier of the global Gaussians and its own class shares. It then estimates its own
    Gaussians, blends them with the global ones by coefficients that cross-validation chooses, and
    uploads the result. Before each test a client does the same with the features of the received
    backbone. Backbone, class means and covariance travel both ways; only the blending coefficients
    stay. The global model assumes equal class probabilities.

    Args:
        net: A ``SplitNet``; its head is not used.
        eps: Fraction of the isotropic part in the covariance, and the number added to class shares.
        stats: Estimate from the features of all training batches, while the backbone changes
            (``running``, released code), or in one pass over the data after training
            (``fresh_pass``).
        cov_reg: Matrix added to a covariance; see
            :func:`~lightning_modules.steps.gaussians.estimate`.
        options: See :class:`ClientModule`.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: ``eps`` is out of range, or a choice is unknown.
    """

    record = fl.MethodRecord(
        name="pFedFDA",
        family="Prototypes and distributions",
        travels="backbone, class Gaussians",
        stays="mixing coefficients",
        apart="a generative classifier as head",
        paper=fl.Paper(
            "Personalized Federated Learning via Feature Distribution Adaptation",
            "McLaughlin, Connor J. and Su, Lili",
            "NeurIPS",
            2024,
            "https://arxiv.org/abs/2411.00329",
        ),
    )

    shared = ("net.backbone.*", "means", "covariance")
    kept = ("coefficients",)
    global_model = True
    vectorizable = True
    needs = ("classes", "parts", "outputs")
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        eps: Annotated[float, fl.Range("(0, 1)")] = 1e-4,
        stats: Literal["running", "fresh_pass"] = "running",
        cov_reg: CovarianceRegulariser = "official",
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.eps = eps
        self.stats = stats
        self.cov_reg: CovarianceRegulariser = cov_reg
        classes, size = net.num_classes, net.features
        with fl.scoped(fl.derive(fl.seed_of(net), "pfedfda")):
            self.means = nn.Buffer(torch.rand(classes, size))
        self.covariance = nn.Buffer(pack(torch.eye(size)))
        self.coefficients = nn.Buffer(torch.full((2,), 0.5))
        self.prior = nn.Buffer(torch.full((classes,), 1 / classes))
        self.weight = nn.Buffer(torch.zeros(classes, size))
        self.bias = nn.Buffer(torch.zeros(classes))
        self._set_classifier()

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load backbone and Gaussians; the classifier uses the client's class shares."""
        super().receive(broadcast, info)
        shares = info.class_counts.to(self.prior) / max(1, info.samples) + self.eps
        self.prior.copy_(shares / shares.sum())
        self._set_classifier()

    def load_global(self, broadcast: fl.Broadcast) -> None:
        """Load backbone and Gaussians, with all classes equally likely."""
        super().load_global(broadcast)
        self.prior.fill_(1 / len(self.prior))
        self._set_classifier()

    def plan(self) -> fl.Plan:
        """Declare training the backbone, then fitting the Gaussians."""
        running = self.stats == "running"
        local = fl.Phase(
            name="local",
            objective=self._collecting if running else self.losses,
            epochs=self.epochs,
            trains=("net.backbone.*",),
        )
        fit = fl.Pass(name="gaussians", then=self._fit, collect=None if running else self._features)
        return [local, fit]

    def adapt(self) -> fl.Plan:
        """Declare fitting the Gaussians to features of the received backbone."""
        return [fl.Pass(name="gaussians", collect=self._features, then=self._fit)]

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits."""
        return F.linear(self.net.backbone(x), self.weight, self.bias)

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return the cross-entropy under the fixed classifier."""
        return self._collecting(batch).terms

    def _collecting(self, batch: fl.Batch) -> fl.Outcome:
        """Return the same loss, and the features and labels for the fit that follows."""
        z = self.net.backbone(batch.x)
        logits = F.linear(z, self.weight, self.bias)
        return fl.Outcome(self.supervised(logits, batch), rows={"z": z, "y": batch.y})

    def _features(self, batch: fl.Batch) -> fl.State:
        with torch.no_grad():
            return {"z": self.net.backbone(batch.x), "y": batch.y}

    def _fit(self, totals: fl.Totals) -> fl.State:
        """Return the blended Gaussians of the collected features, and their classifier."""
        if not totals.rows:
            return {}
        z = wide(totals.rows["z"])
        if not z.isfinite().all():
            # The loop detects this by the loss; here the global Gaussians stay unchanged.
            return {}
        y = totals.rows["y"].to(z.device)
        common, prior = self._gaussians(), wide(self.prior)
        coefficients = choose_coefficients(z, y, common, prior, self.eps, self.cov_reg)
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
