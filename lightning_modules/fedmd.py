"""FedMD: clients with networks of their own agree on their logits of public samples.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS 2019 workshop,
arXiv 1910.03581; the authors' code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from lightning_modules.base import ClientModule
from lightning_modules.nets import SplitNet
from lightning_modules.nets.split import must_be_split
from pfl.core.checks import at_least_one, not_negative
from pfl.core.space import Dimension
from pfl.core.types import Batch, ClientInfo, Pass, Phase, Plan, State, Terms, Totals


class FedMD(ClientModule):
    """Private networks that imitate the mean of all clients' logits on public data.

    Logits travel, networks stay, and may differ (``PerClient``). In a round a client digests: it
    trains on the public samples (``data.public``) towards the mean logits of the last round. Then
    it revisits its own data, and sends its logits of the public samples. Before its first digest it
    trains on the public labels and on its own data. So the first round of the loop is what the
    paper calls transfer learning, and a run has one round more than the paper counts.

    All public samples serve in each round; the authors draw 5,000 of theirs anew.

    Args:
        net: The network; its outputs are those of public and private classes together.
        public_samples: Number of public samples.
        public_epochs: Epochs of the first training on the public labels.
        private_epochs: Epochs of the first training on the client's data. The authors end both
            early, the second one by the test set.
        digest_epochs: Epochs of a digest.
        digest_batch_size: Samples in a step on public data.
        digest_loss: Distance of logits: their mean absolute difference (the authors), their mean
            squared one (FL-bench), or the Kullback-Leibler divergence of the probabilities.
        epochs: Epochs of a revisit.
        weighting: As in :class:`ClientModule`, for the mean of logits.
        options: See :class:`ClientModule`.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: A number is out of its range.
    """

    shared = ("consensus",)
    kept = ("net.*", "started")
    global_model = False
    vectorizable = True
    net: SplitNet

    def __init__(
        self,
        net: SplitNet,
        *,
        public_samples: int,
        public_epochs: int = 20,
        private_epochs: int = 25,
        digest_epochs: int = 1,
        digest_batch_size: int = 256,
        digest_loss: Literal["mae", "mse", "kl"] = "mae",
        epochs: int = 4,
        weighting: Literal["samples", "uniform"] = "uniform",
        **options: Any,
    ) -> None:
        super().__init__(net, epochs=epochs, weighting=weighting, **options)
        must_be_split(net)
        at_least_one(public_samples=public_samples, digest_batch_size=digest_batch_size)
        not_negative(public_epochs=public_epochs, private_epochs=private_epochs)
        not_negative(digest_epochs=digest_epochs)
        self.first_epochs = {"public": public_epochs, "private": private_epochs}
        self.digest_epochs, self.digest_batch_size = digest_epochs, digest_batch_size
        self.digest_loss = digest_loss
        # NaN until there is a consensus.
        self.consensus = nn.Buffer(torch.full((public_samples, net.num_classes), math.nan))
        self.started = nn.Buffer(torch.tensor(False))

    @classmethod
    def space(cls) -> Sequence[Dimension]:
        """Return the length of a digest."""
        return (Dimension("digest_epochs", choices=(1, 2, 5)),)

    def plan(self) -> Plan:
        """Train at first, or digest; revisit; take the logits."""
        size = self.digest_batch_size
        on_public = partial(Phase, split="public", batch_size=size)
        first = partial(_if_first, self.first_epochs)
        return [
            on_public(name="public", objective=self.losses, epochs=partial(first, "public")),
            Phase(name="private", objective=self.losses, epochs=partial(first, "private")),
            on_public(
                name="digest", objective=self._digest, epochs=partial(_if_known, self.digest_epochs)
            ),
            Phase(name="revisit", objective=self.losses, epochs=partial(_if_known, self.epochs)),
            Pass(name="logits", split="public", collect=self._logits, then=self._sent),
        ]

    def _digest(self, batch: Batch) -> Terms:
        logits, wanted = self(batch.x), self.consensus[batch.index]
        if self.digest_loss == "kl":
            rows = F.kl_div(logits.log_softmax(1), wanted.softmax(1), reduction="none").sum(1)
        else:
            apart = logits - wanted
            rows = (apart.abs() if self.digest_loss == "mae" else apart.square()).mean(1)
        weight = torch.ones_like(rows) if batch.weight is None else batch.weight
        return {self.digest_loss: (rows * weight).sum() / weight.sum()}

    def _logits(self, batch: Batch) -> State:
        return {"logits": self(batch.x), "index": batch.index}

    def _sent(self, totals: Totals) -> State:
        rows = totals.rows["logits"].to(self.consensus)
        consensus = self.consensus.nan_to_num().index_copy(0, totals.rows["index"], rows)
        return {"consensus": consensus, "started": torch.ones_like(self.started)}


def _if_first(lengths: dict[str, int], name: str, entries: State, info: ClientInfo) -> int:
    """Return the length of a first training, of a client that has not trained yet."""
    return 0 if entries["started"] else lengths[name]


def _if_known(length: int, entries: State, info: ClientInfo) -> int:
    """Return a length, of a client that has received a consensus."""
    return length if entries["consensus"].isfinite().all() else 0
