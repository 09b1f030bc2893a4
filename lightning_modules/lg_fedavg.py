"""LG-FedAvg: a private backbone and a shared head, the mirror image of FedPer.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
Representations", 2020, arXiv 2001.01523.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from typing_extensions import Unpack

from lightning_modules import base as fl


class LGFedAvg(fl.ClientModule):
    """Shared last layers on private layers before them, trained together.

    Each client learns its own features, and all clients share a head on top of them. The last
    layers travel both ways; all layers before them stay.

    Args:
        net: The network.
        num_global_layers: Number of last layers that travel. The authors use 2 for their CIFAR
            network and 3 for their MLP.
        warm_start_rounds: Number of initial rounds of FedAvg, in which everything travels; after
            them each client continues with its own backbone. The authors start from a FedAvg model
            trained for hundreds of rounds.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: The network has fewer than ``num_global_layers`` layers, or
            ``warm_start_rounds`` is negative.
    """

    record = fl.MethodRecord(
        name="LG-FedAvg",
        family="A part of the network stays with the client",
        travels="head",
        stays="backbone",
        apart="the mirror image of FedPer",
        paper=fl.Paper(
            (
                "Think Locally, Act Globally: Federated Learning with Local and Global "
                "Representations"
            ),
            (
                "Liang, Paul Pu and Liu, Terrance and Ziyin, Liu and Allen, Nicholas B. and "
                "Auerbach, Randy P. and Brent, David and Salakhutdinov, Ruslan and Morency, "
                "Louis-Philippe"
            ),
            "arXiv",
            2020,
            "https://arxiv.org/abs/2001.01523",
        ),
    )

    global_model = False
    vectorizable = True

    def __init__(
        self,
        net: nn.Module,
        *,
        num_global_layers: int = 1,
        warm_start_rounds: fl.NotNegative[int] = 0,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.warm_start_rounds = warm_start_rounds
        self.num_global_layers = num_global_layers
        fl.last_layers(net, num_global_layers)  # refuses a network with fewer layers
        # Whether the client has its own backbone.
        self.started = nn.Buffer(torch.tensor(False))

    @property
    def head(self) -> fl.Patterns:
        """The last layers of the client's network."""
        return fl.last_layers(self.net, self.num_global_layers, prefix="net.")[0]

    @property
    def body(self) -> fl.Patterns:
        """The layers before them."""
        return fl.last_layers(self.net, self.num_global_layers, prefix="net.")[1]

    @property
    def shared(self) -> fl.Patterns:
        """The last layers; with a warm start, all layers."""
        return (*self.head, *self.body) if self.warm_start_rounds else self.head

    @property
    def kept(self) -> fl.Patterns:
        """The layers before the last ones, and whether they are the client's own."""
        return (*self.body, "started")

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the head, and FedAvg's backbone until the client has its own backbone."""
        fl.assign(
            self, fl.select(broadcast.shared, self.head) if self.started else broadcast.shared
        )
        self.started.fill_(info.round > self.warm_start_rounds)

    def upload(self, info: fl.ClientInfo) -> fl.Upload:
        """Return the head; during the warm start, everything."""
        sent = super().upload(info)
        if info.round <= self.warm_start_rounds:
            return sent
        return replace(sent, shared=fl.select(sent.shared, self.head))

    def server(self) -> fl.Server[LGState]:
        """Return a server that averages everything during the warm start, then heads."""
        return LGServer(self.weighting, self.head, self.warm_start_rounds)


@dataclass(frozen=True)
class LGState(fl.ServerState):
    """The server's state: the head and, with a warm start, the backbone at its end.

    Attributes:
        started: Clients that have their own backbone.
    """

    started: tuple[int, ...] = ()


@dataclass(eq=False)
class LGServer(fl.Server[LGState]):
    """A server that averages uploads, and sends FedAvg's backbone to clients without their own.

    Args:
        head: Patterns of the entries that travel after the warm start.
        warm_start_rounds: Rounds in which everything travels.
    """

    head: fl.Patterns = ()
    warm_start_rounds: int = 0

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> LGState:
        """Return the initial state, in which no client has its own backbone."""
        return LGState(shared=shared)

    def broadcast(self, state: LGState, client: int, round: int) -> fl.Broadcast:
        """Return the head; for a client without its own backbone, also the backbone."""
        started = client in state.started
        return fl.Broadcast(fl.select(state.shared, self.head) if started else state.shared)

    def finish(self, state: LGState, folded: fl.Folded) -> LGState:
        """Return the state with the averaged uploads.

        In a private run nobody knows which clients have their own backbone.
        """
        after, started = super().finish(state, folded), set(state.started)
        moved = after.shared
        if state.round >= self.warm_start_rounds:
            started |= {upload.client for upload in folded.uploads}
            moved = fl.select(moved, self.head)
        return replace(after, shared={**state.shared, **moved}, started=tuple(sorted(started)))
