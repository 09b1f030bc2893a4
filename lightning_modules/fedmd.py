"""FedMD: clients with different networks distil the mean of their logits on public samples.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS 2019 workshop,
arXiv 1910.03581; the authors' code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_modules import base as fl


class FedMD(fl.ClientModule):
    """Private networks that are distilled from the mean of all clients' logits on public data.

    Logits travel; networks stay, and may differ (``PerClient``). In a round a client first digests:
    it trains on the public samples (``data.public``) towards the mean logits of the last round.
    Then it revisits its own data, and sends its logits of the public samples. Before its first
    digest it trains on the public labels and on its own data. The first round of the loop is thus
    the paper's transfer learning, and a run has one round more than in the paper.

    Args:
        net: The network; its outputs are those of public and private classes together.
        public_samples: Number of public samples.
        align_samples: Number of public samples whose logits travel; the server draws them anew in
            each round in proportion to classes (the authors: 5,000). ``None`` uses all.
        public_epochs: Epochs of the first training on the public labels.
        private_epochs: Epochs of the first training on the client's data. The authors end both
            early, the second one by the test set.
        digest_epochs: Epochs of a digest.
        digest_batch_size: Samples in a step on public data.
        digest_loss: Mean absolute difference of the logits (``mae``, the authors), mean squared
            difference (``mse``, FL-bench), or KL divergence of the probabilities (``kl``).
        epochs: Epochs of a revisit.
        weighting: As in :class:`ClientModule`, for the mean of logits.
        options: See :class:`ClientModule`.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="FedMD",
        family="A separate network for each client or group",
        travels="logits of public data",
        stays="network of its own",
        apart="imitates the mean of all clients' logits of public samples",
        paper=fl.Paper(
            "{FedMD}: Heterogenous Federated Learning via Model Distillation",
            "Li, Daliang and Wang, Junpu",
            "NeurIPS Workshop",
            2019,
            "https://arxiv.org/abs/1910.03581",
        ),
        shown=None,
    )

    shared = ("consensus",)
    kept = ("net.*", "started")
    global_model = False
    vectorizable = True
    needs: tuple[str | fl.Need, ...] = ("parts", "outputs")
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        public_samples: fl.AtLeastOne,
        align_samples: int | None = None,
        public_epochs: fl.NotNegative[int] = 20,
        private_epochs: fl.NotNegative[int] = 25,
        digest_epochs: fl.NotNegative[int] = 1,
        digest_batch_size: fl.AtLeastOne = 256,
        digest_loss: Literal["mae", "mse", "kl"] = "mae",
        epochs: float = 4,
        weighting: Literal["samples", "uniform"] = "uniform",
        **options: Any,
    ) -> None:
        super().__init__(net, epochs=epochs, weighting=weighting, **options)
        fl.within(f"[1, {public_samples}]", align_samples=align_samples)
        self.first_epochs = {"public": public_epochs, "private": private_epochs}
        self.digest_epochs, self.digest_batch_size = digest_epochs, digest_batch_size
        self.digest_loss = digest_loss
        self.align_samples, count = align_samples, align_samples or public_samples
        # NaN before the first consensus.
        self.consensus = nn.Buffer(torch.full((count, net.num_classes), math.nan))
        if align_samples is not None:
            self.needs = (*self.needs, "classes")
            # The public samples of the consensus, and those whose logits a client sends.
            self.known = nn.Buffer(torch.arange(count))
            self.wanted = nn.Buffer(torch.arange(count))
        self.started = nn.Buffer(torch.tensor(False))

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return the epochs of a digest."""
        return (fl.Dimension("digest_epochs", choices=(1, 2, 5)),)

    @property
    def kept_later(self) -> Mapping[str, Sequence[float]]:
        """Only a client's first round has the first trainings."""
        return {"started": (1,)}

    def plan(self) -> fl.Plan:
        """Declare the first training or a digest, a revisit, and a pass for the logits."""
        size = self.digest_batch_size
        on_public = partial(fl.Phase, split="public", batch_size=size)
        known, wanted = map(self._subset, ("known", "wanted"))
        first = partial(_if_first, self.first_epochs)
        return [
            on_public(name="public", objective=self.losses, epochs=partial(first, "public")),
            fl.Phase(name="private", objective=self.losses, epochs=partial(first, "private")),
            on_public(
                name="digest",
                subset=known,
                objective=self._digest,
                epochs=partial(_if_known, self.digest_epochs),
            ),
            fl.Phase(name="revisit", objective=self.losses, epochs=partial(_if_known, self.epochs)),
            fl.Pass(
                name="logits",
                split="public",
                subset=wanted,
                collect=self._logits,
                then=self._sent,
            ),
        ]

    def server(self) -> fl.Server[Any]:
        """Return a server that averages logits, of drawn samples unless all are used."""
        if self.align_samples is None:
            return fl.Server(self.weighting)
        return FedMDServer(self.weighting, self.align_samples)

    def _subset(self, name: str) -> fl.Positions | None:
        """Return the positions in an entry; ``None`` if all public samples are used."""
        return None if self.align_samples is None else lambda own, info: own[name]

    def _digest(self, batch: fl.Batch) -> fl.Terms:
        logits, wanted = self(batch.x), self.consensus[batch.index]
        if self.digest_loss == "kl":
            rows = F.kl_div(logits.log_softmax(1), wanted.softmax(1), reduction="none").sum(1)
        else:
            apart = logits - wanted
            rows = (apart.abs() if self.digest_loss == "mae" else apart.square()).mean(1)
        weight = torch.ones_like(rows) if batch.weight is None else batch.weight
        return {self.digest_loss: (rows * weight).sum() / weight.sum()}

    def _logits(self, batch: fl.Batch) -> fl.State:
        return {"logits": self(batch.x), "index": batch.index}

    def _sent(self, totals: fl.Totals) -> fl.State:
        rows = totals.rows["logits"].to(self.consensus)
        consensus = self.consensus.nan_to_num().index_copy(0, totals.rows["index"], rows)
        return {"consensus": consensus, "started": torch.ones_like(self.started)}


def _if_first(lengths: dict[str, int], name: str, entries: fl.State, info: fl.ClientInfo) -> int:
    """Return the length of a first training; zero for a client that has trained before."""
    return 0 if entries["started"] else lengths[name]


def _if_known(length: float, entries: fl.State, info: fl.ClientInfo) -> float:
    """Return the length for a client that has received a consensus; otherwise zero."""
    return length if entries["consensus"].isfinite().all() else 0


@dataclass(frozen=True, kw_only=True)
class FedMDState(fl.ServerState):
    """The consensus.

    Attributes:
        samples: (A,) positions of its public samples.
    """

    samples: Tensor


@dataclass(eq=False)
class FedMDServer(fl.Server[FedMDState]):
    """A server that draws the public samples of each round; arguments as in FedMD."""

    needs_public = True
    align_samples: int = 1

    def drawn(self, round: int) -> Tensor:
        """Return the (A,) ascending positions of a round's public samples.

        Classes have the same shares as among all samples, up to rounding.
        """
        y = self.public.targets
        order = torch.randperm(len(y), generator=fl.generator(self.seed, "align", round))
        order = order[y[order].argsort(stable=True)]
        places = torch.arange(self.align_samples) * len(y) // self.align_samples
        return order[places].sort().values

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> FedMDState:
        """Return the state without a consensus."""
        return FedMDState(shared=shared, samples=self.drawn(0))

    def broadcast(self, state: FedMDState, client: int, round: int) -> fl.Broadcast:
        """Return the consensus, its samples, and those of the round."""
        return fl.Broadcast(state.shared, {"known": state.samples, "wanted": self.drawn(round)})

    def finish(self, state: FedMDState, folded: fl.Folded) -> FedMDState:
        """Return the state with the mean of the round's logits."""
        after = super().finish(state, folded)
        return replace(after, samples=self.drawn(state.round + 1))
