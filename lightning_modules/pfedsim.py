"""pFedSim: bodies are mixed for each client by the similarity of private classifiers.

Tan et al., "pFedSim: Similarity-Aware Model Aggregation Towards Personalized Federated Learning",
2023, arXiv 2305.15706; the version in FL-bench, which an author of the paper maintains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from lightning_modules import base as fl
from lightning_modules.steps.rows import CAP, Similarity, similarities

BODY, CLASSIFIER = ("net.backbone.*",), "net.head.weight"


class PFedSim(fl.ClientModule):
    """FedAvg in the first rounds; then bodies mixed by the similarity of private classifiers.

    All parameters are trained in all rounds. After the warm-up each client receives its own head
    and a mean of all clients' bodies with the weights ``-ln(1 - s_ij)``, where s_ij is the cosine
    similarity of the heads of i and j when both last took part in the same round; ``s_ii`` is taken
    as 0.9999. The server stores a network for each client. In the warm-up the mean is tested; a
    client that has not taken part since keeps the last mean.

    Args:
        net: A ``SplitNet``; its head is a linear layer, whose weights are compared.
        warmup: Rounds of FedAvg, as a share of all rounds; as a number of rounds if above 1.
        similarity: ``rows`` is the mean of the cosines of the classes' rows (FL-bench), ``flat``
            the cosine of the whole matrix (the paper); negative ones are set to 0.
        tested: After the warm-up, test the network that the client last trained and keeps
            (``stored``, FL-bench), or the mixture that it would receive (``mixed``).
        options: See :class:`ClientModule`. ``weighting`` applies to the warm-up.

    Raises:
        TypeError: The head of ``net`` is not a linear layer.
        ValueError: ``warmup`` is negative, or a choice is unknown.
    """

    record = fl.MethodRecord(
        name="pFedSim",
        family="A separate network for each client or group",
        travels="network",
        stays="last network (for the test)",
        apart="FedAvg; then own heads, and bodies mixed by the similarity of heads",
        paper=fl.Paper(
            (
                "{pFedSim}: Similarity-Aware Model Aggregation Towards Personalized Federated "
                "Learning"
            ),
            "Tan, Jiahao and Zhou, Yipeng and Liu, Gang and Wang, Jessie Hui and Yu, Shui",
            "arXiv",
            2023,
            "https://arxiv.org/abs/2305.15706",
        ),
    )

    kept = ("last.*", "own")
    global_model = False
    vectorizable = True
    uses_rounds = True
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        warmup: fl.NotNegative[float] = 0.5,
        similarity: Similarity = "rows",
        tested: Literal["stored", "mixed"] = "stored",
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        fl.must_have_linear_head(net, "PFedSim")
        self.warmup, self.similarity, self.tested = warmup, similarity, tested
        # The last trained network, and whether it was trained after the warm-up.
        self.last, self.own = fl.frozen(net), nn.Buffer(torch.tensor(False))

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return the share of rounds of the warm-up."""
        return (fl.Dimension("warmup", choices=(0.1, 0.3, 0.5, 0.7)),)

    def plan(self) -> fl.Plan:
        """Declare the training, and storing the network."""
        return [*super().plan(), fl.remember(self.net, "last")]

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the received network, and store whether the warm-up is over."""
        super().receive(broadcast, info)
        self.own.fill_(info.round > warmup_rounds(self.warmup, info.rounds))

    def personalise(self, broadcast: fl.Broadcast | None, info: fl.ClientInfo) -> None:
        """Load the network last trained, if that was after the warm-up, or the broadcast."""
        if self.own and self.tested == "stored":
            fl.assign(self.net, self.last.module.state_dict())
        elif broadcast is not None:
            fl.assign(self, broadcast.shared)

    def server(self) -> SimServer:
        """Return a server that stores all networks."""
        return SimServer(self.weighting, self.warmup, self.similarity)


@dataclass(frozen=True, kw_only=True)
class SimState(fl.ServerState):
    """The last network of each of N clients; ``shared`` has a leading axis of N.

    Attributes:
        similarity: (N, N) float64, s.
        warmup: Number of rounds of the warm-up.
    """

    similarity: Tensor
    warmup: int


@dataclass(eq=False)
class SimServer(fl.ModelsServer[SimState]):
    """A server that averages in the warm-up, then mixes bodies; arguments as in PFedSim."""

    warmup: float = 0.5
    similarity: Similarity = "rows"

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> SimState:
        """Start every client from the common network, similar only to itself."""
        alike = torch.eye(len(clients), dtype=torch.float64)
        rounds = warmup_rounds(self.warmup, clients[0].rounds)
        return SimState(fl.repeated(shared, len(clients)), similarity=alike, warmup=rounds)

    def broadcast(self, state: SimState, client: int, round: int) -> fl.Broadcast:
        """Return the client's mixture of bodies, and its own head."""
        weights = -torch.log1p(-state.similarity[client].clamp(max=CAP))
        mixed = self.mixture(state, weights / weights.sum(), BODY)
        return fl.Broadcast({**fl.row(state.shared, client), **mixed})

    def begin(self, state: SimState, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Declare the mean in the warm-up, then the networks after the round, and their heads."""
        if state.round < state.warmup:
            return fl.Server.begin(self, state, senders)
        heads = fl.Uploads(shared=(CLASSIFIER,), extra=())
        return {**super().begin(state, senders), "heads": heads}

    def finish(self, state: SimState, folded: fl.Folded) -> SimState:
        """Average all uploads, or store them and compare their heads."""
        if state.round < state.warmup:
            after = fl.Server.finish(self, state, folded)
            return replace(after, shared=fl.repeated(after.shared, len(state.similarity)))
        members = torch.tensor([upload.client for upload in folded.uploads])
        alike = state.similarity.clone()
        heads = torch.stack([upload.shared[CLASSIFIER] for upload in folded["heads"]])
        alike[members[:, None], members] = similarities(heads, self.similarity)
        pairs = len(alike) * (len(alike) - 1)
        report = {"similarity": float(alike.sum() - len(alike)) / max(1, pairs)}
        return replace(
            state, shared=folded["rows"], similarity=alike, report=report, client_report=None
        )


def warmup_rounds(warmup: float, rounds: int) -> int:
    """Return the number of warm-up rounds out of T rounds.

    Example:
        >>> warmup_rounds(0.5, 9), warmup_rounds(1, 9), warmup_rounds(3, 9)
        (4, 9, 3)
    """
    return int(warmup if warmup > 1 else warmup * rounds)
