"""APPLE: each client learns the shares of all clients' core models in its own model.

Luo and Wu, "Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning", IJCAI
2022, arXiv 2110.08394; the authors' code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from lightning_modules import base as fl


class APPLE(fl.ClientModule):
    """A mixture of all clients' core models; a client trains its own core and the shares.

    Client i is tested with ``sum_j p_ij c_j``, where c_j is the core model of client j. A step
    trains its own core c_i (``net``) and the shares p_i (``p``) on the loss of that mixture plus
    ``lambda(t) mu / 2 |p_i - p0|^2``, where p0 are the clients' shares of all samples. The others'
    cores are constant during a round. The core goes up, all other cores come down; the shares stay.
    A client needs memory for all cores, which limits this to tens of clients.

    Shares are neither normalised nor clipped. A client without training data is in no mixture. One
    that joins later starts with the sample-weighted mean of all cores, as its own core, with a
    share of zero, and as its mixture.

    Args:
        net: The network; the client's core. Only parameters are mixed; batch-norm statistics are
            the core's own.
        num_clients: N, the largest number of clients.
        share_lr: eta_2, the learning rate of the shares; eta_1 is the optimiser's.
        pull: mu, the weight of the term that pulls the shares towards p0.
        pull_rounds: L / T, the fraction of the rounds after which the pull ends.
        schedule: lambda(t), the decay of the pull: ``exponential``, 0.001^(t / L), or ``cosine``,
            (cos(pi t / L) + 1) / 2, for round t from 0.
        first: Initial shares: p0, by ``samples`` (the authors), or ``uniform`` (PFLlib). The pull
            is towards p0 in both cases.
        downloads: M, the number of cores that a client receives in a round; ``None`` is all. Cores
            that it has never received come first, then others with a probability that grows with
            their shares, in proportion to ``max(1.5, sharpness t M / N) ** |p_ij|``. It keeps
            received cores, and sends the server its shares.
        sharpness: Strength of the preference for large shares with ``downloads``.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="APPLE",
        family="A separate network for each client or group",
        travels="all core networks",
        stays="core network, shares",
        apart="learns its shares of all clients' core networks",
        paper=fl.Paper(
            "Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning",
            "Luo, Jun and Wu, Shandong",
            "IJCAI",
            2022,
            "https://arxiv.org/abs/2110.08394",
        ),
    )

    global_model = False
    vectorizable = True
    needs = ("outputs",)
    uses_rounds = True

    def __init__(
        self,
        net: nn.Module,
        *,
        num_clients: fl.AtLeastOne,
        share_lr: fl.NotNegative[float] = 1e-3,
        pull: fl.NotNegative[float] = 0.1,
        pull_rounds: fl.NotNegative[float] = 0.1,
        schedule: Literal["exponential", "cosine"] = "exponential",
        first: Literal["samples", "uniform"] = "samples",
        downloads: fl.AtLeastOne | None = None,
        sharpness: fl.NotNegative[float] = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(net, **options)
        self.share_lr, self.pull, self.pull_rounds = share_lr, pull, pull_rounds
        self.schedule, self.first = schedule, first
        self.downloads, self.sharpness = downloads, sharpness
        self.others = nn.ModuleList(fl.frozen(net) for _ in range(num_clients - 1))
        alone = torch.zeros(num_clients)
        alone[0] = 1
        self.p = nn.Parameter(alone.clone())
        # The client itself comes first, then the others in ascending order; empty places have 0.
        self.start, self.there = nn.Buffer(alone.clone()), nn.Buffer(alone.clone())
        self.strength, self.started = nn.Buffer(torch.tensor(0.0)), nn.Buffer(torch.tensor(False))

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return the learning rate of the shares, and mu."""
        return (
            fl.Dimension("share_lr", 1e-4, 1e-2, log=True),
            fl.Dimension("pull", choices=(0.01, 0.1, 1.0)),
        )

    @property
    def shared(self) -> fl.Patterns:
        """The client's core, which goes up, and those of others, which come down."""
        return ("net.*", "others.*") if len(self.others) else ("net.*",)

    @property
    def kept(self) -> fl.Patterns:
        """The core and the shares; also others' cores that are not sent in each round."""
        others = ("others.*",) if self.downloads and len(self.others) else ()
        return ("net.*", "p", "started", *others)

    @property
    def extra(self) -> tuple[str, ...]:
        """The shares, if the server chooses cores by them."""
        return ("p",) if self.downloads else ()

    def configure_optimizers(self) -> Optimizer:
        """Return the optimiser of the core, in which the shares have their own rate."""
        wanted = (v for n, v in self.named_parameters() if v.requires_grad and n != "p")
        optimizer = self.optimizer(wanted)
        if self.p.requires_grad:
            own = {"params": [self.p], "lr": self.share_lr, "weight_decay": 0.0}
            optimizer.add_param_group(own)
        return optimizer

    def forward(self, x: fl.Inputs) -> Tensor:
        """Return (B, C) logits of the mixture."""
        cores: list[list[Tensor]] = [[*self.net.parameters()]]
        cores += [fl.frozen_parameters(cast(fl.Frozen, one), self.net) for one in self.others]
        shares = self.p * self.there
        names = [name for name, _ in self.net.named_parameters()]
        mixed = [
            sum(share * value for share, value in zip(shares, values, strict=True))
            for values in zip(*cores, strict=True)
        ]
        logits: Tensor = functional_call(self.net, dict(zip(names, mixed, strict=True)), (x,))
        return logits

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return the loss of the mixture, and the pull of the shares."""
        apart = ((self.p - self.start) * self.there).square().sum()
        return {**super().losses(batch), "pull": self.strength * self.pull / 2 * apart}

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the others' cores and p0, initialise the shares, and set lambda(t)."""
        super().receive(broadcast, info)
        if not self.started:
            alike = self.there / self.there.sum()
            fl.assign(self, {"p": self.start if self.first == "samples" else alike})
        self.started.fill_(True)
        last, done = self.pull_rounds * info.rounds, max(0, info.round - 1)
        part = done / last if done < last else math.inf
        falls = {"exponential": 0.001**part, "cosine": (math.cos(math.pi * min(part, 1)) + 1) / 2}
        self.strength.fill_(falls[self.schedule])

    def upload(self, info: fl.ClientInfo) -> fl.Upload:
        """Return the core."""
        sent = super().upload(info)
        return replace(sent, shared=fl.select(sent.shared, ("net.*",)))

    def server(self) -> fl.Server[CoresState]:
        """Return a server that stores all cores."""
        return CoresServer(self.weighting, len(self.others), self.downloads, self.sharpness)


@dataclass(frozen=True, kw_only=True)
class CoresState(fl.ServerState):
    """The core of each client; ``shared`` has a leading axis of N.

    Attributes:
        start: (N,) p0, the clients' shares of all samples.
        last_shares: (N, N) |p_ij| of each client's last upload.
        sent: (N, N) whether a client (row) has received a core.
    """

    start: Tensor
    last_shares: Tensor
    sent: Tensor


@dataclass(eq=False)
class CoresServer(fl.ModelsServer[CoresState]):
    """A server that stores all cores, and sends each client the others'; arguments as in APPLE.

    Attributes:
        places: Number of other clients that a client has room for.
    """

    reports: ClassVar = {}
    places: int = 0
    downloads: int | None = None
    sharpness: float = 1.0

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> CoresState:
        """Start every core from the common model.

        Raises:
            ValueError: There are more clients than places.
        """
        count, own = len(clients), fl.select(shared, ("net.*",))
        if count > self.places + 1:
            raise ValueError(f"num_clients is {self.places + 1}, but there are {count} clients")
        samples = torch.tensor([one.samples for one in clients], dtype=torch.float64)
        start = (samples / samples.sum()).to(next(iter(own.values())))
        return CoresState(
            shared=fl.repeated(own, count),
            start=start,
            last_shares=start.expand(count, count),
            sent=torch.zeros(count, count, dtype=torch.bool, device=start.device),
        )

    def broadcast(self, state: CoresState, client: int, round: int) -> fl.Broadcast:
        """Send the others' cores, or some of them, and p0 from the client's view."""
        (sent,) = self.broadcasts(state, [client], round)
        return sent

    def broadcasts(
        self, state: CoresState, clients: Sequence[int], round: int
    ) -> list[fl.Broadcast]:
        """Return the messages to several clients."""
        chosen = self._chosen(state, clients, round)
        return [
            self._sent(state, others, state.start[client], some)
            for client, (others, some) in zip(clients, chosen, strict=True)
        ]

    def _chosen(
        self, state: CoresState, clients: Sequence[int], round: int
    ) -> list[tuple[list[int], list[int]]]:
        """Return who has training data besides a client, and whose cores it receives in a round.

        What decides leaves the device in one copy for all clients.
        """
        if not clients:
            return []
        rows, start = [*clients], state.start
        table = torch.cat([start[None], state.last_shares[rows], state.sent[rows].to(start)]).cpu()
        trains = [n for n, share in enumerate(table[0].tolist()) if share > 0]
        shares, sent = torch.split(table[1:].double(), len(rows))
        found = []
        for client, own, known in zip(rows, shares, sent.tolist(), strict=True):
            # In the order of their places.
            others = [n for n in trains if n != client]
            some = others
            if self.downloads is not None and self.downloads < len(others):
                base = max(1.5, self.sharpness * (round - 1) * self.downloads / len(trains))
                rng = fl.generator(self.seed, "downloads", round, client)
                drawn = torch.multinomial(base ** own[others], len(others), generator=rng)
                # A stable sort keeps either group in the order of the draw.
                order = sorted((others[k] for k in drawn.tolist()), key=lambda n: known[n] > 0)
                some = order[: self.downloads]
            found.append((others, some))
        return found

    def _sent(
        self, state: CoresState, others: Sequence[int], own: Tensor, chosen: Sequence[int]
    ) -> fl.Broadcast:
        places = {place: number for place, number in enumerate(others) if number in chosen}
        start = torch.cat([own[None], state.start[[*others]]])
        there = torch.ones_like(start)
        if room := self.places - len(others):
            empty = torch.zeros_like(own).expand(room)
            start, there = torch.cat([start, empty]), torch.cat([there, empty])
        cores = fl.as_others(state.shared, places)
        return fl.Broadcast(cores, {"start": start, "there": there})

    def begin(self, state: CoresState, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Declare the cores after the round, and the clients' shares."""
        shares = fl.Uploads(shared=(), extra=("p",))
        return {**super().begin(state, senders), "shares": shares}

    def finish(self, state: CoresState, folded: fl.Folded) -> CoresState:
        """Store the cores, and the data that decide on the next downloads."""
        shares, sent = state.last_shares.clone(), state.sent.clone()
        uploads = folded["shares"] if self.downloads else []
        clients = [upload.client for upload in uploads]
        chosen = self._chosen(state, clients, state.round + 1)
        for upload, (others, some) in zip(uploads, chosen, strict=True):
            places = [upload.client, *others]
            shares[upload.client, places] = upload.extra["p"][: len(places)].abs().to(shares)
            sent[upload.client, some] = True
        return replace(state, shared=folded["rows"], last_shares=shares, sent=sent)

    def welcome(
        self,
        state: CoresState,
        info: fl.ClientInfo,
        members: Sequence[fl.ClientInfo],
        upload: fl.Upload | None = None,
    ) -> tuple[fl.Broadcast, fl.State]:
        """Send the cores of the largest clients, and the sample-weighted mean as its own core."""
        start = state.start.tolist()
        # The largest, in a stable order.
        most = sorted((n for n, share in enumerate(start) if share > 0), key=lambda n: -start[n])
        most = most[: self.places]
        mean = {n: torch.tensordot(state.start.to(v), v, 1) for n, v in state.shared.items()}
        none = torch.zeros_like(state.start[0])
        return self._sent(state, sorted(most), none, most), mean
