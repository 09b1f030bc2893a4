"""FedCAC: critical parameters are shared only among clients whose critical positions overlap.

Wu et al., "Bold but Cautious: Unlocking the Potential of Personalized Federated Learning through
Cautiously Aggressive Collaboration", ICCV 2023, arXiv 2309.11103; the authors' code in Fling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn
from typing_extensions import Unpack

from lightning_modules import base as fl
from lightning_modules.steps.critical import collaborators, critical


class FedCAC(fl.ClientModule):
    """FedAvg, but critical parameters are averaged only over clients whose critical ones overlap.

    A parameter is critical for a client if it is large and has changed much in the round: the share
    ``tau`` of each tensor with the largest ``|(w_i - w_i^0) w_i|``, where w_i^0 is the received
    value. Critical parameters are replaced by the plain mean over the client itself and the clients
    whose critical positions overlap with its own by more than a threshold, which rises from the
    mean overlap in round 0 to the largest in round ``beta``; all others by the mean over all. The
    server computes the positions from what is sent, and stores them and a network for each client.

    Overlaps and means are those of a round's participants; a client that was away gets its last
    critical parameters and the new mean of the rest. Batch-norm statistics are averaged over all
    (``buffers: local`` keeps them, as Fling does). If messages to clients are encoded, changes are
    relative to the values before encoding.

    Args:
        net: The network.
        tau: The share of critical parameters; the authors use 0.5 for CIFAR-10, 0.4 for CIFAR-100.
        beta: Rounds after which critical parameters are not shared; the authors use 100 and 170 of
            300.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="FedCAC",
        family="A separate network for each client or group",
        travels="network",
        apart=(
            "parameters that matter to a client are averaged only with clients to which "
            "the same ones matter"
        ),
        paper=fl.Paper(
            (
                "Bold but Cautious: Unlocking the Potential of Personalized Federated Learning "
                "through Cautiously Aggressive Collaboration"
            ),
            "Wu, Xinghao and Liu, Xuefeng and Niu, Jianwei and Zhu, Guogang and Tang, Shaojie",
            "ICCV",
            2023,
            "https://arxiv.org/abs/2309.11103",
        ),
    )

    global_model = False
    vectorizable = True

    def __init__(
        self,
        net: nn.Module,
        *,
        tau: fl.Fraction = 0.5,
        beta: fl.AtLeastOne = 100,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.tau, self.beta = tau, beta

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return tau and beta around the authors'."""
        return (
            fl.Dimension("tau", choices=(0.3, 0.4, 0.5, 0.6)),
            fl.Dimension("beta", choices=(10, 50, 100, 170)),
        )

    def server(self) -> CACServer:
        """Return a server that customises networks."""
        names = tuple(f"net.{name}" for name, _ in self.net.named_parameters())
        return CACServer(self.weighting, self.tau, self.beta, names)


@dataclass(frozen=True, kw_only=True)
class CACState(fl.ServerState):
    """The customised network of each of N clients; ``shared`` has a leading axis of N.

    Attributes:
        masks: (N, ...) masks of each client's critical parameters.
        mean: The mean over all clients of the last round.
    """

    masks: fl.State
    mean: fl.State


@dataclass(eq=False)
class CACServer(fl.ModelsServer[CACState]):
    """A server that mixes a network for each client; the arguments are those of FedCAC.

    Attributes:
        parameters: Names of the parameters that travel.
    """

    reports: ClassVar = {**fl.ModelsServer.reports, "partners": "number of collaborators"}
    tau: float = 0.5
    beta: int = 100
    parameters: tuple[str, ...] = ()

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> CACState:
        """Start every client from the common network, without critical parameters."""
        masks = {n: torch.zeros_like(shared[n], dtype=torch.bool) for n in self.parameters}
        count = len(clients)
        return CACState(fl.repeated(shared, count), masks=fl.repeated(masks, count), mean=shared)

    def broadcast(self, state: CACState, client: int, round: int) -> fl.Broadcast:
        """Return the client's critical parameters, and the mean of the rest."""
        own, masks = fl.row(state.shared, client), fl.row(state.masks, client)
        mixed = {n: torch.where(mask, own[n], state.mean[n]) for n, mask in masks.items()}
        return fl.Broadcast({**state.mean, **mixed})

    def begin(self, state: CACState, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Hold all uploads: who is mixed with whom depends on the masks of all."""
        return {"uploads": fl.Uploads()}

    def finish(self, state: CACState, folded: fl.Folded) -> CACState:
        """Find the critical positions, and each client's collaborators."""
        uploads = folded["uploads"]
        before = [self.broadcast(state, u.client, state.round + 1).shared for u in uploads]
        masks = [
            {n: critical(old[n], upload.shared[n], self.tau) for n in self.parameters}
            for old, upload in zip(before, uploads, strict=True)
        ]
        together = collaborators(masks, (state.round + 1) / self.beta).to(torch.float64)
        sent = [upload.shared for upload in uploads]
        own = [fl.weighted_mean(sent, weights / weights.sum()) for weights in together]
        count = sum(mask.numel() for mask in masks[0].values())
        critical_count = sum(int(mask.sum()) for one in masks for mask in one.values())
        return replace(
            state,
            shared=fl.with_rows(state.shared, uploads, own),
            masks=fl.with_rows(state.masks, uploads, masks),
            mean=fl.weighted_mean(sent, folded.shares),
            report={"critical": critical_count / (count * len(uploads))},
            client_report=self.reported(folded, partners=together.sum(1) - 1),
        )

    def welcome(
        self,
        state: CACState,
        info: fl.ClientInfo,
        members: Sequence[fl.ClientInfo],
        upload: fl.Upload | None = None,
    ) -> tuple[fl.Broadcast, fl.State]:
        """Send the mean, as a newcomer has no known critical parameters."""
        return fl.Broadcast(state.mean), {}
