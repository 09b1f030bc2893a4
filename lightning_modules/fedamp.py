"""FedAMP and HeurFedAMP: each client is pulled towards a mixture that favours similar clients.

Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI 2021, arXiv
2007.03797.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from lightning_modules import base as fl

Shares: TypeAlias = Literal["cosine", "distance"]


class FedAMP(fl.ClientModule):
    """Private networks, each pulled towards a mixture in which similar ones have larger weights.

    The server stores the last network w_j of each client, and sends client i the mixture ``u_i =
    sum_j xi_ij w_j``. The client minimises ``CE(w) + lambda / (2 alpha) ||w - u_i||^2``, starting
    at its own w_i, which is also the model that is tested. A client without an upload is in no
    mixture. Shares depend on the parameters; batch-norm statistics are mixed with the same shares
    (``buffers: local`` keeps them).

    Args:
        net: The network.
        shares: ``distance`` is FedAMP: ``xi_ij = alpha / sigma exp(-||w_i - w_j||^2 / sigma)``, and
            ``xi_ii`` is one minus their sum, negative if alpha is too large. If sigma is far below
            the distances, nothing is shared; the server reports ``own_share``. ``cosine`` is
            HeurFedAMP: ``1 - own_share`` is divided in proportion to ``exp(sigma cos(w_i, w_j))``.
        alpha: The server's step size; a larger one weakens the proximal term.
        sigma: Scale of the distances, or factor of the cosines; 25 with ``cosine`` is flgo's.
        own_share: xi_ii of ``cosine``; ``None`` is one over the number of networks.
        proximity: lambda, the weight of the proximal term.
        start: Start of local training: the client's ``own`` network or the mixture (the ``cloud``
            model, flgo).
        tested: The client's ``own`` network, or the ``cloud`` model that it would receive (fluke).
        options: See :class:`ClientModule`; nothing is averaged, so ``weighting`` has no effect.

    Raises:
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="FedAMP",
        family="A separate network for each client or group",
        travels="own network up, mixture down",
        stays="network",
        apart="similar clients attract each other, through a mixture for each",
        paper=fl.Paper(
            "Personalized Cross-Silo Federated Learning on Non-IID Data",
            (
                "Huang, Yutao and Chu, Lingyang and Zhou, Zirui and Wang, Lanjun and Liu, "
                "Jiangchuan and Pei, Jian and Zhang, Yong"
            ),
            "AAAI",
            2021,
            "https://arxiv.org/abs/2007.03797",
        ),
    )

    shared = ("net.*",)
    kept = ("net.*",)
    global_model = False
    vectorizable = True

    def __init__(
        self,
        net: nn.Module,
        *,
        shares: Shares = "cosine",
        alpha: fl.Positive[float] = 1.0,
        sigma: fl.NotNegative[float] = 25.0,
        own_share: fl.Fraction | None = None,
        proximity: fl.NotNegative[float] = 1.0,
        start: Literal["own", "cloud"] = "own",
        tested: Literal["own", "cloud"] = "own",
        **options: Any,
    ) -> None:
        super().__init__(net, **options)
        if shares == "distance":
            fl.positive(sigma=sigma)
        self.amp = AMPServer(self.weighting, shares, alpha, sigma, own_share)
        self.pull, self.start, self.tested = proximity / alpha, start, tested
        self.mixture = fl.frozen(net)

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return lambda, as alpha is one."""
        return (fl.Dimension("proximity", choices=(0.01, 0.1, 1.0)),)

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the mixture beside the client's own network, or into it."""
        mixture = {f"mixture.module.{n[4:]}": value for n, value in broadcast.shared.items()}
        fl.assign(self, {**mixture, **(broadcast.shared if self.start == "cloud" else {})})

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return ``ce`` and the proximal term, ``prox``."""
        apart = fl.proximal(self.net.parameters(), fl.frozen_parameters(self.mixture, self.net))
        return {**super().losses(batch), "prox": self.pull * apart}

    def personalise(self, broadcast: fl.Broadcast | None, info: fl.ClientInfo) -> None:
        """Keep the client's own network, or load the mixture."""
        if broadcast is not None and self.tested == "cloud":
            fl.assign(self, broadcast.shared)

    def server(self) -> AMPServer:
        """Return a server that mixes networks."""
        names = tuple(f"net.{name}" for name, _ in self.net.named_parameters())
        return replace(self.amp, parameters=names)


@dataclass(frozen=True, kw_only=True)
class AMPState(fl.ServerState):
    """The last network of each of N clients; ``shared`` has a leading axis of N.

    Attributes:
        known: (N,) whether a client has sent a network.
        shares: (N, N) float64 shares of all networks in each client's mixture (row).
    """

    known: Tensor
    shares: Tensor


@dataclass(eq=False)
class AMPServer(fl.ModelsServer[AMPState]):
    """A server that sends each client its own mixture; arguments as in FedAMP.

    Attributes:
        parameters: Names of the entries that are compared.
    """

    reports: ClassVar = {"own_share": "share of the client's own network in its next mixture"}
    form: Shares = "cosine"
    alpha: float = 1.0
    sigma: float = 25.0
    own_share: float | None = None
    parameters: tuple[str, ...] = ()

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> AMPState:
        """Start every client from the common network, not yet known from any client."""
        device = next(iter(shared.values())).device
        known = torch.zeros(len(clients), dtype=torch.bool, device=device)
        alone = torch.eye(len(clients), dtype=torch.float64)
        return AMPState(fl.repeated(shared, len(clients)), known=known, shares=alone)

    def mixing(self, models: fl.State, known: Tensor) -> Tensor:
        """Return the (N, N) float64 shares of all networks in each client's mixture.

        Args:
            models: (N, ...) each.
            known: (N,) whether a client has sent a network.
        """
        others = known.cpu().expand(len(known), -1) & ~torch.eye(len(known), dtype=torch.bool)
        found, some = others.double(), others.any(1)
        compared = fl.select(models, self.parameters)
        if self.form == "distance":
            apart = fl.square_distances(compared)
            found *= self.alpha / self.sigma * torch.exp(-apart / self.sigma)
            own = 1 - found.sum(1)
        else:
            products = fl.products(compared)
            norms = products.diagonal().sqrt()
            cosines = products / (norms[:, None] * norms).clamp_min(1e-30)
            own = torch.full_like(norms, self.own_share or 0)
            if self.own_share is None:
                own = 1 / (1 + found.sum(1))
            logits = torch.where(others, self.sigma * cosines, -torch.inf)
            found = (1 - own[:, None]) * logits.softmax(1)
        # A client that is alone has its own network.
        found = found.where(some[:, None], 0)
        found.diagonal().copy_(own.where(some, 1))
        return found

    def broadcast(self, state: AMPState, client: int, round: int) -> fl.Broadcast:
        """Return the client's mixture."""
        return fl.Broadcast(self.mixture(state, state.shares[client]))

    def broadcasts(self, state: AMPState, clients: Sequence[int], round: int) -> list[fl.Broadcast]:
        """Return the mixtures of several clients, as one product of matrices."""
        return [*map(fl.Broadcast, fl.mixtures(state.shared, state.shares[[*clients]]))]

    def finish(self, state: AMPState, folded: fl.Folded) -> AMPState:
        """Store the uploaded networks, and compare all."""
        members = torch.tensor([upload.client for upload in folded.uploads])
        known = state.known.index_fill(0, members.to(state.known.device), True)
        shares = self.mixing(folded["rows"], known)
        report = self.reported(folded, own_share=shares.diagonal()[members])
        return replace(
            state, shared=folded["rows"], known=known, shares=shares, client_report=report
        )

    def welcome(
        self,
        state: AMPState,
        info: fl.ClientInfo,
        members: Sequence[fl.ClientInfo],
        upload: fl.Upload | None = None,
    ) -> tuple[fl.Broadcast, fl.State]:
        """Send the mean of the known networks, also as the newcomer's own initial network."""
        known = (
            state.known.cpu().double() if state.known.any() else torch.eye(1, len(state.known))[0]
        )
        mean = self.mixture(state, known / known.sum())
        return fl.Broadcast(mean), mean
