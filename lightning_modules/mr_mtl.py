"""MR-MTL: a network for each client, pulled towards the mean of all clients' networks.

Liu, Hu, Wu and Smith, "On Privacy and Personalization in Cross-Silo Federated Learning", NeurIPS
2022, arXiv 2206.07902.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import Unpack

from lightning_modules import base as fl

Aggregate: TypeAlias = Literal["mean", "delta", "all"]


class MRMTL(fl.ClientModule):
    """Private networks, each pulled towards their mean; there is no other global model.

    A client goes on with its own v_i, which it also is tested with, and minimises ``CE(v) + lambda
    / 2 ||v - vbar||^2``, where vbar is the mean as received, constant during the round. It never
    loads vbar into v_i. The pull is on all parameters, and not on batch-norm statistics, of which
    each client has its own.

    Args:
        net: The network.
        proximity: lambda; the authors search 0.1 to 3. Training diverges if the learning rate times
            lambda reaches 2.
        aggregate: vbar is the ``mean`` of this round's v_i; or it moves by the mean of their
            changes (``delta``, the authors' formula), or by their sum over the participants,
            divided by the weights of all clients, so that it stays the mean of all v_i (``all``).
            The three agree if everybody takes part.
        pull: Whether the pull is part of the loss, and so of what is clipped in a private run
            (``inside``), or joins the gradient right before each step, after clipping and noise
            (``outside``), as both v_i and vbar are known already. Without privacy they are one.
        start: v_i starts at the ``common`` initial values, or at the client's ``own``, drawn when
            it first takes part.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: ``proximity`` is negative, or a network with steps of its own is to be pulled
            ``outside``.

    Warns:
        UserWarning: The learning rate times ``proximity`` is 1 or more.
    """

    record = fl.MethodRecord(
        name="MR-MTL",
        family="A separate network for each client or group",
        travels="own network up, mean down",
        stays="network",
        apart="each network is pulled towards the mean of all",
        paper=fl.Paper(
            "On Privacy and Personalization in Cross-Silo Federated Learning",
            "Liu, Ziyu and Hu, Shengyuan and Wu, Zhiwei Steven and Smith, Virginia",
            "NeurIPS",
            2022,
            "https://arxiv.org/abs/2206.07902",
        ),
    )

    vectorizable = True
    shared = ("net.*",)

    def __init__(
        self,
        net: nn.Module,
        *,
        proximity: fl.NotNegative[float] = 0.1,
        aggregate: Aggregate = "mean",
        pull: Literal["inside", "outside"] = "inside",
        start: Literal["common", "own"] = "common",
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.proximity, self.aggregate, self.start = proximity, aggregate, start
        self.pull = pull
        if pull == "outside" and self.net_optimizes:
            raise ValueError(
                f"pull=outside needs steps of MRMTL, but {type(net).__name__} has its own: take "
                "pull=inside, or give MRMTL an optimizer"
            )
        self.mean = fl.frozen(net)
        if aggregate != "mean":
            self.before = fl.frozen(net)
        if start == "own":
            self.seed = fl.seed_of(net)
            self.drawn = nn.Buffer(torch.zeros((), dtype=torch.int64))
        if not self.net_optimizes:
            fl.warn_of_overshoot(self.optimizer(self.net.parameters()), proximity, "lambda")

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return lambda in the authors' range."""
        return (fl.Dimension("proximity", choices=(0.1, 0.3, 1.0, 3.0)),)

    def plan(self) -> fl.Plan:
        """Declare one phase, whose optimiser pulls if the loss does not."""
        return [
            replace(part, optimizer=self._pulling) if self.pull == "outside" else part
            for part in super().plan()
            if isinstance(part, fl.Phase)
        ]

    def _pulling(self, parameters: Iterable[Tensor]) -> Optimizer:
        """Return an optimiser that adds ``lambda (v - vbar)`` to the gradients of each step."""
        made = self.optimizer(parameters)

        def pull(*_: object) -> None:
            means = fl.frozen_parameters(self.mean, self.net)
            for value, mean in zip(self.net.parameters(), means, strict=True):
                if value.grad is not None:
                    value.grad.add_(value.detach() - mean, alpha=self.proximity)

        made.register_step_pre_hook(pull)
        return made

    @property
    def kept(self) -> fl.Patterns:
        """The client's own network, and whether it has been drawn."""
        return ("net.*", *(["drawn"] if self.start == "own" else []))

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the mean beside the client's own network."""
        if self.start == "own" and not self.drawn:
            fl.redraw(self.net, fl.derive(self.seed, "start", info.client))
            self.drawn.fill_(1)
        fl.assign(self, {f"mean.module.{n[4:]}": v for n, v in broadcast.shared.items()})
        if self.aggregate != "mean":
            fl.copy_into(self.before, self.net)

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return ``ce``, and the pull as ``prox`` if it is inside."""
        if self.pull == "outside":
            return super().losses(batch)
        apart = fl.proximal(self.net.parameters(), fl.frozen_parameters(self.mean, self.net))
        return {**super().losses(batch), "prox": self.proximity * apart}

    def upload(self, info: fl.ClientInfo) -> fl.Upload:
        """Return the own network, or the received mean plus its change in this round."""
        sent = super().upload(info)
        if self.aggregate == "mean":
            return sent
        old, mean = (
            {f"net.{n}": v for n, v in copy.module.state_dict().items()}
            for copy in (self.before, self.mean)
        )
        return replace(sent, shared=fl.add(fl.subtract(sent.shared, old), mean))

    def personalise(self, broadcast: fl.Broadcast | None, info: fl.ClientInfo) -> None:
        """Keep the client's own network."""

    def server(self) -> fl.Server[MeanState]:
        """Return a server that holds the mean; newcomers start at it."""
        own = self.start == "own"
        return MeanServer(self.weighting, self.aggregate, own, inherits=("net.", "net."))


@dataclass(frozen=True, kw_only=True)
class MeanState(fl.ServerState):
    """The mean of the clients' networks.

    Attributes:
        total: Weight of all members: their samples, or their number.
    """

    total: float


@dataclass(eq=False)
class MeanServer(fl.Server[MeanState]):
    """A server that follows the mean of the clients' networks; see :class:`MRMTL`.

    Attributes:
        rule: How the mean follows.
        draws: Whether clients draw their networks; a newcomer has the mean in place of a draw.
    """

    rule: Aggregate = "mean"
    draws: bool = False

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> MeanState:
        """Return the common initial network, as the mean of all members' networks."""
        weights = [one.samples if self.weighting == "samples" else 1 for one in clients]
        return MeanState(shared=shared, total=float(sum(weights)))

    def welcome(
        self,
        state: MeanState,
        info: fl.ClientInfo,
        members: Sequence[fl.ClientInfo],
        upload: fl.Upload | None = None,
    ) -> tuple[fl.Broadcast, fl.State]:
        """Return the mean, with which the newcomer also starts."""
        sent, kept = super().welcome(state, info, members, upload)
        return sent, {**kept, "drawn": torch.ones((), dtype=torch.int64)} if self.draws else kept

    def finish(self, state: MeanState, folded: fl.Folded) -> MeanState:
        """Return the state with the mean, or with one that moves by the share of the uploads."""
        after = super().finish(state, folded)
        if self.rule != "all":
            return after
        some = folded.count if folded.private else sum(map(self.weight, folded.uploads))
        change = fl.subtract(folded.mean, state.shared)
        return replace(after, shared=fl.add(state.shared, change, some / state.total))
