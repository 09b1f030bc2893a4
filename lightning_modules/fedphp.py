"""FedPHP: each client learns from a moving average of its own trained networks.

Li et al., "FedPHP: Federated Personalization with Inherited Private Models", ECML PKDD 2021; the
authors' code in FedRepo.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, cast

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from lightning_modules import base as fl

TEMPERATURE = 4.0
"""Temperature of the teacher's predictions, in the authors' code; the student's is one."""


class FedPHP(fl.ClientModule):
    """FedAvg whose clients keep a moving average of their trained networks, and learn from it.

    ``net`` (w) is trained on ``(1 - lambda) CE + lambda R``, where R pulls it towards the
    predictions or features of the client's inherited network v. Afterwards v becomes ``mu v + (1 -
    mu) w``, with statistics of batch norms. The network w travels both ways; v and the number of
    the client's rounds stay, and v is the model that is tested.

    Args:
        net: The network, a ``SplitNet`` unless R is ``kd``; v starts as a copy of it.
        inherit_weight: lambda, the weight of R (the authors search 0.05 and 0.1).
        regulariser: R: ``kd`` is the cross-entropy with the predictions of v at temperature 4;
            ``mmd`` the discrepancy of features under kernels whose widths follow the batch;
            ``mmd_fixed`` that with PFLlib's widths.
        momentum: Largest mu (the authors use 0.9).
        schedule: With ``visits``, mu is ``momentum k / floor(q T)`` for a client that took part in
            k of T rounds before, and at most ``momentum``; with ``rounds`` it is ``momentum t / T``
            after t rounds, as in PFLlib.
        participation: q, the share of clients in each round; it must equal the sampler's, which
            clients cannot read.
        first: Whether the untrained v is the teacher in a client's first round (``teach``), or
            lambda is 0 in that round (``skip``).
        fallback_global: Test clients that have not taken part yet with the received network.
        options: See :class:`ClientModule`.

    Raises:
        TypeError: R needs features, and ``net`` has no backbone or no head.
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="FedPHP",
        family="A separate network for each client or group",
        travels="network",
        stays="average of its own networks",
        apart="an average of its own trained networks teaches the received one",
        paper=fl.Paper(
            "{FedPHP}: Federated Personalization with Inherited Private Models",
            (
                "Li, Xin-Chun and Zhan, De-Chuan and Shao, Yunfeng and Li, Bingshuai and Song, "
                "Shaoming"
            ),
            "ECML PKDD",
            2021,
        ),
    )

    kept = ("inherited.*", "visits")
    uses_rounds = True
    vectorizable = True
    needs: tuple[str | fl.Need, ...] = ("outputs",)

    def __init__(
        self,
        net: nn.Module,
        *,
        inherit_weight: fl.Fraction = 0.05,
        regulariser: Literal["kd", "mmd", "mmd_fixed"] = "kd",
        momentum: fl.Fraction = 0.9,
        schedule: Literal["visits", "rounds"] = "visits",
        participation: Annotated[float, fl.Range("(0, 1]")] = 1.0,
        first: Literal["teach", "skip"] = "teach",
        fallback_global: bool = False,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.needs = (*self.needs, "classes" if regulariser == "kd" else "parts")
        self.inherit_weight, self.regulariser, self.momentum = inherit_weight, regulariser, momentum
        self.schedule, self.participation = schedule, participation
        self.first, self.fallback_global = first, fallback_global
        # Parameters, as fine-tuning of a newcomer trains the tested network; no phase here does.
        self.inherited = fl.copied(net)
        self.visits = nn.Buffer(torch.tensor(0))
        # mu, and whether v teaches, in this round.
        self.mu, self.teaches = nn.Buffer(torch.zeros(())), nn.Buffer(torch.tensor(True))

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return lambda and R in the authors' range."""
        return (
            fl.Dimension("inherit_weight", choices=(0.05, 0.1)),
            fl.Dimension("regulariser", choices=("kd", "mmd")),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits of the inherited network."""
        logits: Tensor = self.inherited(x)
        return logits

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load w; set mu, and whether v teaches."""
        super().receive(broadcast, info)
        if self.schedule == "visits":
            done = float(self.visits) / max(1, int(self.participation * info.rounds))
        else:
            done = (info.round - 1) / max(1, info.rounds)
        self.mu.fill_(self.momentum * min(1.0, done))
        self.teaches.fill_(bool(self.visits) or self.first == "teach")

    def plan(self) -> fl.Plan:
        """Declare the training of w, then the new average."""
        return [
            fl.Phase(
                name="local",
                objective=self.losses,
                epochs=self.epochs,
                trains=("net.*",),
                evals=("inherited", "inherited.*"),
            ),
            fl.Pass(name="inherit", then=self._inherit),
        ]

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return the weighted ``ce`` and ``inherit``, which is R."""
        if self.regulariser == "kd":
            logits = self.net(batch.x)
            teacher = self.inherited(batch.x).detach()
            apart = fl.soft_cross_entropy(logits, teacher / TEMPERATURE, batch.weight)
        else:
            student, own = cast(fl.SplitNet, self.net), cast(fl.SplitNet, self.inherited)
            z, target = student.backbone(batch.x), own.backbone(batch.x).detach()
            logits = student.head(z)
            widths: fl.Widths = "batch" if self.regulariser == "mmd" else "fixed"
            apart = fl.kernel_discrepancy(z, target, batch.weight, widths)
        terms = self.supervised(logits, batch)
        taught = {name: (1 - self.inherit_weight) * value for name, value in terms.items()}
        terms = {n: torch.where(self.teaches, taught[n], value) for n, value in terms.items()}
        return {**terms, "inherit": torch.where(self.teaches, self.inherit_weight * apart, 0.0)}

    def personalise(self, broadcast: fl.Broadcast | None, info: fl.ClientInfo) -> None:
        """Load the client's inherited network, or the received one if that is untrained."""
        super().personalise(broadcast, info)
        if self.fallback_global and not self.visits:
            fl.assign(self.inherited, self.net.state_dict())

    def server(self) -> fl.Server[fl.ServerState]:
        """Return a server that averages networks; newcomers inherit the received network."""
        return fl.Server(self.weighting, inherits=("net.", "inherited."))

    def load_global(self, broadcast: fl.Broadcast) -> None:
        """Load the global model into both networks."""
        super().load_global(broadcast)
        fl.assign(self.inherited, self.net.state_dict())

    def _inherit(self, totals: fl.Totals) -> fl.State:
        inherited = self.inherited.state_dict()
        after = {"visits": self.visits + 1}
        for name, value in self.net.state_dict().items():
            # Exactly w at 0 and v at 1; counters are those of w.
            mixed = (
                torch.lerp(value, inherited[name], self.mu.to(value))
                if value.is_floating_point()
                else value
            )
            after[f"inherited.{name}"] = mixed
        return after
