"""FedPAC: a shared backbone aligned to global class centroids, and a mixed head for each client.

Xu et al., "Personalized Federated Learning with Feature Alignment and Classifier Collaboration",
ICLR 2023, arXiv 2306.11867; the authors' released code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from lightning_modules import base as fl
from lightning_modules.steps.simplex import simplex_minimum

HEAD = ("net.head.*",)
BODY = ("net.backbone.*",)


class FedPAC(fl.ClientModule):
    """Features aligned to global class centroids, and a head mixed for each client from all heads.

    Each client first trains its head on the received backbone, then the backbone under that head,
    with an additional term that pulls features towards the global centroid of their class. The
    server averages backbones and centroids, and gives each participant a new head: the convex
    combination of this round's heads that minimises an estimate of the client's test error.
    Backbone, class centroids and the client's mixed head come down; backbone, head, centroids,
    class counts and two feature statistics go up. Nothing stays with the client. The head is
    private, but the server mixes it and so keeps it: a client that was away gets the head of its
    last participation.

    Args:
        net: A ``SplitNet``; the features of its backbone are aligned.
        alignment: lambda, the weight of the alignment with the centroids. The authors use 1. PFAKD
            searches {0.001, ..., 10} and uses 1, and 0.001 for CIFAR-100.
        head_lr: eta_h, the learning rate of the head's phase, in place of the optimiser's (the
            authors use 0.1, with 0.01 for the backbone).
        head_epochs: Epochs of the head's phase, which precedes the ``epochs`` of the backbone.
        min_share: Shares of a head below this value count as zero.
        options: See :class:`ClientModule`.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="FedPAC",
        family="Prototypes and distributions",
        travels="backbone, centroids, head",
        stays="head",
        apart="heads are combined by a quadratic program",
        paper=fl.Paper(
            "Personalized Federated Learning with Feature Alignment and Classifier Collaboration",
            "Xu, Jian and Tong, Xinyi and Huang, Shao-Lun",
            "ICLR",
            2023,
            "https://arxiv.org/abs/2306.11867",
        ),
    )

    shared = (*BODY, *HEAD, "centroids")
    extra = ("counts", "variance", "profile")
    global_model = False
    vectorizable = True
    needs = ("classes", "parts", "outputs")
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        alignment: fl.NotNegative[float] = 1.0,
        head_lr: fl.NotNegative[float] = 0.1,
        head_epochs: fl.NotNegative[int] = 1,
        min_share: Annotated[float, fl.Range("[0, 1)")] = 1e-3,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.alignment = alignment
        self.head_optimizer = fl.with_lr(self.optimizer, head_lr)
        self.head_epochs = head_epochs
        self.min_share = min_share
        size = net.num_classes, net.features
        self.centroids = nn.Buffer(fl.unknown_prototypes(*size))
        self.targets = nn.Buffer(torch.zeros(size))
        self.aligned = nn.Buffer(torch.zeros(net.num_classes))
        self.counts = nn.Buffer(torch.zeros(net.num_classes, dtype=torch.int32))
        self.variance = nn.Buffer(torch.zeros(()))
        self.profile = nn.Buffer(torch.zeros(size))

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return lambda in PFAKD's range for it, and eta_h up to the authors'."""
        return (
            fl.Dimension("alignment", choices=(0.001, 0.01, 0.1, 1.0, 5.0, 10.0)),
            fl.Dimension("head_lr", 0.01, 0.1, log=True),
        )

    @property
    def extra_within(self) -> Mapping[str, str]:
        """Counts of samples."""
        return {"counts": "[0, inf)"}

    def plan(self) -> fl.Plan:
        """Declare statistics of the received backbone, head, backbone, and the new centroids."""
        return [
            fl.Pass(name="statistics", statistic=self._sums, then=self._statistics),
            fl.part_phase(self, "head", self.head_epochs, optimizer=self.head_optimizer),
            fl.part_phase(self, "body", self.epochs, objective=self._guided),
            fl.means_pass("centroids", "centroids", self.net.backbone, self.net.num_classes),
        ]

    def server(self) -> fl.Server[FedPACState]:
        """Return a server that averages backbones and centroids, and mixes heads."""
        return FedPACServer(self.weighting, self.min_share)

    def _guided(self, batch: fl.Batch) -> fl.Terms:
        z = self.net.backbone(batch.x)
        distance = fl.prototype_mse(z, batch.y, self.targets, self.aligned, batch.weight)
        return {**self.supervised(self.net.head(z), batch), "alignment": self.alignment * distance}

    def _sums(self, batch: fl.Batch) -> fl.State:
        with torch.no_grad():
            z = self.net.backbone(batch.x)
        sums, counts = fl.class_sums(z, batch.y, self.net.num_classes, batch.weight)
        squares = z.to(sums).square().sum(-1)
        real = squares.sum() if batch.weight is None else (squares * batch.weight).sum()
        return {"sums": sums, "counts": counts, "squares": real}

    def _statistics(self, totals: fl.Totals) -> fl.State:
        """Return H_i, V_i and the target features; local centroids replace unknown global ones.

        ``H_i[y] = q_i(y) mu_{i,y}`` and ``V_i = (E||f||^2 - sum_y ||H_i[y]||^2) / n_i``, with the
        class shares q_i and class means mu_i of the client.
        """
        sums, counts, squares = (totals.sums[name] for name in ("sums", "counts", "squares"))
        samples = counts.sum()
        profile = sums / samples
        variance = (squares / samples - profile.square().sum()).clamp_min(0) / samples
        values, present = fl.mask_unknown(self.centroids)
        means = fl.class_means(sums, counts)
        return {
            "counts": counts.to(torch.int32),
            "profile": profile,
            "variance": variance,
            "targets": torch.where(present[:, None] > 0, values, means),
            # In the first round there are no global centroids to align with.
            "aligned": present.amax().expand_as(present),
        }


@dataclass(frozen=True)
class FedPACState(fl.ServerState):
    """The server's state, with the mixed heads.

    Attributes:
        heads: The mixed head of each client that has taken part. All other clients get the initial
            head, which is in ``shared``.
    """

    heads: dict[int, fl.State] = field(default_factory=dict)


@dataclass(eq=False)
class FedPACServer(fl.Server[FedPACState]):
    """A server that averages backbones by samples and centroids by counts, and mixes the heads.

    Args:
        weighting: Weighting of the backbones.
        min_share: See :class:`FedPAC`.
    """

    reports: ClassVar = {**fl.Server.reports, "own_head": "weight of the client's own head"}
    min_share: float = 1e-3

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> FedPACState:
        """Return the initial state, in which every client has the initial head."""
        return FedPACState(shared=shared)

    def broadcast(self, state: FedPACState, client: int, round: int) -> fl.Broadcast:
        """Return the backbone, the centroids and the client's own head."""
        return fl.Broadcast(shared={**state.shared, **state.heads.get(client, {})})

    def begin(self, state: FedPACState, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Declare the means of backbones and centroids, and hold the heads."""

        def table(upload: fl.Upload) -> tuple[Tensor, Tensor]:
            return upload.shared["centroids"], upload.extra["counts"]

        return {
            "bodies": self.mean_of(senders, BODY),
            "centroids": fl.ClassMeans(state.shared["centroids"], table),
            "heads": fl.Uploads(HEAD, ("variance", "profile")),
        }

    def finish(self, state: FedPACState, folded: fl.Folded) -> FedPACState:
        """Return the state with the new backbone, centroids and heads."""
        uploads = folded["heads"]
        heads = [upload.shared for upload in uploads]
        shares = head_shares(
            fl.received(uploads, "variance"), fl.received(uploads, "profile"), self.min_share
        )
        mixed = {
            u.client: fl.weighted_mean(heads, row) for u, row in zip(uploads, shares, strict=True)
        }
        return replace(
            state,
            shared={**state.shared, **folded["bodies"], "centroids": folded["centroids"]},
            heads={**state.heads, **mixed},
            client_report=self.reported(folded, own_head=shares.diagonal()),
        )


def head_shares(variances: Tensor, profiles: Tensor, min_share: float = 1e-3) -> Tensor:
    """Return the shares that mix m heads: row i minimises the estimated error of client i.

    Over the simplex, ``sum_j a_j^2 V_j + ||H_i - sum_j a_j H_j||^2 = a^T P_i a`` with ``P_i =
    diag(V) + G_i G_i^T``, where row j of G_i is ``H_i - H_j``. Shares below ``min_share`` become
    zero, and the rest is rescaled to sum to one.

    Args:
        variances: (m,) V.
        profiles: (m, C, D) H.
        min_share: Smallest share that is not set to zero.

    Returns:
        (m, m) float64; rows are non-negative and sum to one.

    Example:
        >>> head_shares(torch.tensor([1.0, 3.0]), torch.zeros(2, 1, 1))  # proportional to 1 / V
        tensor([[0.7500, 0.2500],
                [0.7500, 0.2500]], dtype=torch.float64)
    """
    flat = profiles.detach().cpu().double().flatten(1).numpy()
    gram = flat @ flat.T
    noise = np.diag(variances.detach().cpu().double().numpy() + 1e-8)
    rows = []
    for i in range(len(gram)):
        quadratic = noise + gram[i, i] - gram[i][:, None] - gram[i][None, :] + gram
        shares = simplex_minimum(quadratic)
        large = np.where(shares < min_share, 0, shares)
        rows.append(large / large.sum() if large.any() else shares)
    return torch.from_numpy(np.stack(rows))
