"""kNN-Per: FedAvg, with predictions that each client mixes with votes of its nearest samples.

Marfoq et al., "Personalized Federated Learning through Local Memorization", ICML 2022, arXiv
2111.09360; the authors' released code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from lightning_modules import base as fl
from lightning_modules.losses.numerics import one_hot
from lightning_modules.steps.neighbours import class_votes, hits, memory


class KNNPer(fl.ClientModule):
    """FedAvg, with predictions mixed with votes of the client's nearest training samples.

    Training is that of FedAvg. Before a test a client stores the features z_j of its training
    samples under the received backbone, with their labels. For a test sample the k rows with the
    smallest squared distances d_j vote with weights ``exp(-d_j / (D s))``, and the class shares of
    their votes are mixed with the network's probabilities: ``lambda p_knn + (1 - lambda) p``. The
    network travels both ways, and nothing stays. The global model is the network alone.

    With ``tune``, a client with validation data chooses the lambda with the most correct
    predictions on them, in steps of 0.01, before each test.

    Args:
        net: A ``SplitNet``, whose backbone gives the features (B, D).
        neighbours: k; a client with fewer samples uses all of them.
        share: lambda, the share of the neighbours, unless it is tuned.
        tune: Whether clients choose lambda on their validation data, as in the paper.
        scale: s, the width of the kernel.
        capacity: Q, the number of samples that a client can store. If it has more, it stores Q that
            are evenly spaced in its data; the authors draw them.
        mix: Mix ``probabilities`` as printed, or ``logits`` with the class shares, as in the
            authors' script.
        options: See :class:`ClientModule`.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="kNN-Per",
        family="One model for all, and where to tune it",
        travels="network",
        apart=(
            "before the test, predictions are mixed with those of the client's nearest "
            "training samples"
        ),
        paper=fl.Paper(
            "Personalized Federated Learning through Local Memorization",
            "Marfoq, Othmane and Neglia, Giovanni and Vidal, Richard and Kameni, Laetitia",
            "ICML",
            2022,
            "https://arxiv.org/abs/2111.09360",
        ),
    )

    vectorizable = True
    needs = ("classes", "parts", "outputs")
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        neighbours: fl.AtLeastOne = 10,
        share: fl.Fraction = 0.5,
        tune: bool = False,
        scale: fl.Positive[float] = 1.0,
        capacity: fl.AtLeastOne = 1000,
        mix: Literal["probabilities", "logits"] = "probabilities",
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.neighbours = min(neighbours, capacity)
        self.tune = tune
        self.scale = scale
        self.mix = mix
        self.share = float(share)
        # The client's chosen lambda; -1 before it has chosen one.
        self.chosen = nn.Buffer(torch.tensor(-1.0))
        self.bank = nn.Buffer(torch.zeros(capacity, net.features))
        self.labels = nn.Buffer(torch.zeros(capacity, dtype=torch.int64))
        self.filled = nn.Buffer(torch.zeros(capacity, dtype=torch.bool))

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return k in the authors' range."""
        return (fl.Dimension("neighbours", choices=(1, 3, 5, 7, 10)),)

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return the loss of the network alone."""
        return self.supervised(self.net(batch.x), batch)

    def adapt(self) -> fl.Plan:
        """Declare storing the client's samples, and choosing lambda."""
        memorise = fl.Pass(name="memorise", collect=self._features, then=self._store)
        tune = fl.Pass(name="tune", split="val", statistic=self._hits, then=self._choose)
        return [memorise, tune] if self.tune else [memorise]

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logarithms of the mixed probabilities; logits if no sample is stored."""
        logits, own, votes = self._parts(x)
        share = torch.where(self.chosen < 0, self.share, self.chosen.to(own.dtype))
        mixed = torch.lerp(own, votes, share)
        if self.mix == "probabilities":
            mixed = mixed.clamp_min(torch.finfo(mixed.dtype).tiny).log()
        return torch.where(self.filled.any(), mixed, logits)

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (B, C) logits, and the two predictions to mix: the network's, and the votes."""
        z = self.net.backbone(x)
        logits: Tensor = self.net.head(z)
        labels = one_hot(self.labels, self.net.num_classes, self.bank)
        width = z.shape[-1] * self.scale
        votes = class_votes(z, self.bank, labels, self.filled, self.neighbours, width)
        own = logits if self.mix == "logits" else logits.softmax(-1)
        return logits, own, votes.to(own.dtype)

    def _features(self, batch: fl.Batch) -> fl.State:
        with torch.no_grad():
            return {"z": self.net.backbone(batch.x), "y": batch.y}

    def _store(self, totals: fl.Totals) -> fl.State:
        return memory(totals.rows["z"], totals.rows["y"], self.bank)

    def _hits(self, batch: fl.Batch) -> fl.State:
        with torch.no_grad():
            _, own, votes = self._parts(batch.x)
        return {"hits": hits(own, votes, batch.y, batch.weight)}

    def _choose(self, totals: fl.Totals) -> fl.State:
        return {"chosen": totals.sums["hits"].argmax().to(self.chosen) / 100}
