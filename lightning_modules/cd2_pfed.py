"""CD2-pFed: every layer has shared and private channels, which teach each other.

Shen et al., "CD2-pFed: Cyclic Distillation-guided Channel Decoupling for Model Personalization in
Federated Learning", CVPR 2022, arXiv 2204.03880. There is no released code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from typing_extensions import Unpack

from lightning_modules import base as fl
from lightning_modules.nets.channels import ChannelDivision, divisions, paste, shared_part


class CD2PFed(fl.ClientModule):
    """A network whose layers have shared and private channels, which teach each other.

    The shared channels travel both ways; the private ones stay. The share of private channels grows
    over the rounds; a channel that turns private starts from the value that the client last
    received. Let y^s be the prediction of the shared channels alone and y^l that of the private
    ones. The objective is ``CE + lambda/2 [KL(y^s || y^l) + KL(y^l || y^s)]``; the distillation is
    left out as long as some layer has no private or no shared channel. After each epoch the private
    weights become ``b w + (1 - b) w_before``, and the optimiser starts afresh unless this averaging
    is switched off.

    A sub-network is the network with the weights of the other channels set to zero. This silences
    those channels if activations map zero to zero, as ReLU does; a group norm's statistics count
    silent channels as zeros.

    The paper's abstract and reviews leave some points open. Our choices: the last channels of each
    layer are private, the same for all clients; the classifier is divided by its inputs; gradients
    flow through both directions of the distillation; and every default value.

    Args:
        net: A network of convolutions, linear layers and normalisation layers; its last linear
            layer is the classifier.
        private_share: p, the final share of private channels.
        ramp_rounds: T_ramp; the share in round t is ``p min(1, t / T_ramp)``. ``None`` is the
            planned number of rounds; 0 makes the share p from the start.
        distillation: lambda, the weight of the distillation.
        average_max: Final value of b; 1 with ``average_ramp: 0`` switches the averaging off.
        average_ramp: Fraction of the rounds over which b grows from 0.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: A number is out of range, or the network cannot be divided.
    """

    record = fl.MethodRecord(
        name="CD2-pFed",
        family="A part of the network stays with the client",
        travels="shared channels",
        stays="private channels",
        apart="shared and private channels that teach each other",
        paper=fl.Paper(
            (
                "{CD2-pFed}: Cyclic Distillation-guided Channel Decoupling for Model "
                "Personalization in Federated Learning"
            ),
            "Shen, Yiqing and Zhou, Yuyin and Yu, Lequan",
            "CVPR",
            2022,
            "https://arxiv.org/abs/2204.03880",
        ),
    )

    kept: fl.Patterns = ("own.*",)
    global_model = False
    vectorizable = True
    needs: tuple[str | fl.Need, ...] = ("classes", "outputs")

    def __init__(
        self,
        net: nn.Module,
        *,
        private_share: fl.Fraction = 0.5,
        ramp_rounds: fl.NotNegative[int] | None = None,
        distillation: fl.NotNegative[float] = 1.0,
        average_max: fl.Fraction = 0.9,
        average_ramp: fl.Fraction = 0.1,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.private_share = private_share
        self.ramp_rounds = ramp_rounds
        self.distillation = distillation
        self.average_max = average_max
        self.average_ramp = average_ramp
        self.own = fl.frozen(net)
        self.divisions = divisions(net)
        self.private = nn.Buffer(torch.zeros(len(self.divisions), dtype=torch.int64))
        self.average = nn.Buffer(torch.ones(()))

    @property
    def uses_rounds(self) -> bool:
        """``True`` if one of the ramps depends on the planned number of rounds."""
        return self.ramp_rounds is None or self.average_ramp > 0 or super().uses_rounds

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Assemble the network from the received shared entries and the client's private ones."""
        net, last = self.net.state_dict(), self.own.module.state_dict()
        for index, (name, division) in enumerate(self.divisions.items()):
            public = broadcast.shared.get(f"net.{name}")
            if public is None:
                continue
            self.private[index] = division.size - public.shape[division.dim]
            # A channel that turns private later starts from the value last received.
            paste(last[name], public)
            net[name].copy_(last[name])
        ramp = self.average_ramp * info.rounds
        self.average.fill_(self.average_max * (min(1.0, info.round / ramp) if ramp else 1.0))

    def plan(self) -> fl.Plan:
        """Declare the epochs, each followed by the averaging of the private weights."""
        if self.average_max == 1 and self.average_ramp == 0:
            spans = [("local", self.epochs)]
        else:
            spans = [
                (f"local{epoch + 1}", min(1, self.epochs - epoch))
                for epoch in range(math.ceil(self.epochs))
            ]
        parts: list[fl.Phase | fl.Pass] = []
        for name, epochs in spans:
            parts.append(fl.Phase(name=name, objective=self.losses, epochs=epochs))
            parts.append(fl.Pass(name=f"average_{name}", then=self._average))
        return parts

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return ``ce`` of the whole network, and the weighted distillation between its parts."""
        terms = self.supervised(self.net(batch.x), batch)
        if self.distillation:
            shared, private = self.parts(batch.x)
            apart = fl.symmetric_kl(shared, private, batch.weight)
            terms["cd"] = self.distillation * torch.where(self._divided(), apart, 0.0)
        return terms

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (B, C) logits of the shared channels alone and of the private channels alone.

        Args:
            x: (B, ...).
        """
        masks, parameters = self._masks(), dict(self.net.named_parameters())
        logits = []
        for keep in (False, True):
            alone = {n: torch.where(masks[n] == keep, p, 0.0) for n, p in parameters.items()}
            # Changes to running statistics are discarded.
            buffers = fl.clone(fl.statistics(self.net))
            logits.append(functional_call(self.net, {**alone, **buffers}, (x,)))
        return logits[0], logits[1]

    def upload(self, info: fl.ClientInfo) -> fl.Upload:
        """Return the shared entries of the network."""
        counts = zip(self.divisions.items(), self.private.tolist(), strict=True)
        private = {f"net.{name}": (division.dim, count) for (name, division), count in counts}
        sent = super().upload(info)
        return replace(sent, shared=shared_part(sent.shared, private))

    def server(self) -> fl.Server[CD2State]:
        """Return a server that averages the shared entries."""
        whole = {f"net.{name}": division for name, division in self.divisions.items()}
        return CD2Server(self.weighting, whole, self.private_share, self.ramp_rounds)

    def _average(self, totals: fl.Totals) -> fl.State:
        """Move the kept private entries towards the trained ones by the factor b; store them."""
        net, last, masks = self.net.state_dict(), self.own.module.state_dict(), self._masks()
        values: fl.State = {}
        for name in self.divisions:
            private = torch.lerp(last[name], net[name], self.average.to(net[name]))
            values[f"net.{name}"] = torch.where(masks[name], private, net[name])
            values[f"own.module.{name}"] = torch.where(masks[name], private, last[name])
        return values

    def _masks(self) -> dict[str, Tensor]:
        """Return masks that are true at private entries, in shapes that broadcast."""
        sizes = {name: value.dim() for name, value in self.net.state_dict().items()}
        return {
            name: division.mask(count, sizes[name])
            for (name, division), count in zip(self.divisions.items(), self.private, strict=True)
        }

    def _divided(self) -> Tensor:
        """Return ``True`` if every layer has both shared and private channels."""
        parameters = dict(self.net.named_parameters())
        sizes = [
            division.size if name in parameters and division.channels > 1 else 0
            for name, division in self.divisions.items()
        ]
        # No tensor of the sizes: in each step it would be copied to the device.
        both = [(own > 0) & (own < s) for own, s in zip(self.private, sizes, strict=True) if s]
        return torch.stack(both).all() if both else torch.ones_like(self.private[:0]).all()


@dataclass(frozen=True)
class CD2State(fl.ServerState):
    """The server's state, with the planned number of rounds.

    Attributes:
        rounds: T. The entries of ``shared`` are whole tensors; private channels keep their last
            shared value.
    """

    rounds: int = 0


@dataclass(eq=False)
class CD2Server(fl.Server[CD2State]):
    """A server that sends and averages the entries that are shared in the current round.

    Args:
        divisions: How each entry is divided.
        private_share: See :class:`CD2PFed`.
        ramp_rounds: See :class:`CD2PFed`.
    """

    divisions: Mapping[str, ChannelDivision] = field(default_factory=dict)
    private_share: float = 0.5
    ramp_rounds: int | None = None

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> CD2State:
        """Return the initial state, with the common initial values."""
        return CD2State(shared=shared, rounds=clients[0].rounds)

    def broadcast(self, state: CD2State, client: int, round: int) -> fl.Broadcast:
        """Return the entries that are shared in this round."""
        share = self.share(round, state.rounds)
        private = {name: (d.dim, d.private(share)) for name, d in self.divisions.items()}
        return fl.Broadcast(shared=shared_part(state.shared, private))

    def welcome(
        self,
        state: CD2State,
        info: fl.ClientInfo,
        members: Sequence[fl.ClientInfo],
        upload: fl.Upload | None = None,
    ) -> tuple[fl.Broadcast, fl.State]:
        """Return the broadcast, and the whole entries if newcomers keep any."""
        _, kept = fl.Server(inherits=self.inherits).welcome(state, info, members)
        return self.broadcast(state, info.client, info.round), kept

    def share(self, round: int, rounds: int) -> float:
        """Return p_t, the share of private channels in a round.

        Args:
            round: t, starting at 1.
            rounds: T.
        """
        ramp = rounds if self.ramp_rounds is None else self.ramp_rounds
        return self.private_share * (min(1.0, round / ramp) if ramp else 1.0)

    def finish(self, state: CD2State, folded: fl.Folded) -> CD2State:
        """Return the state with the averages of the shared entries pasted in."""
        shared = {name: value.clone() for name, value in state.shared.items()}
        for name, mean in folded.mean.items():
            paste(shared[name], mean)
        return replace(
            state,
            shared=shared,
            report={"private_share": self.share(state.round + 1, state.rounds)},
            client_report=self.reported(folded),
        )
