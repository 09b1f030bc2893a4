"""APFL: each client mixes a local model with the global one, in a learned proportion.

Deng et al., "Adaptive Personalized Federated Learning", 2020, arXiv 2003.13461.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from typing_extensions import Unpack

from lightning_modules import base as fl


class APFL(fl.ClientModule):
    """FedAvg, plus a local model for each client, trained in a learned mixture with the global one.

    ``net`` (w) is trained as in FedAvg, ``personal`` (v) on the cross-entropy of the network with
    the mixed weights ``alpha v + (1 - alpha) w``. This mixture is also the model that is tested; it
    uses the batch-norm statistics of v. The proportion alpha takes gradient steps too: its gradient
    is ``<v - w, G>``, where G is the gradient of the loss at the mixture. Its step size is the
    learning rate, and it is clipped to [0, 1]. The global network w travels both ways; v and alpha
    stay.

    Args:
        net: The network; ``personal`` starts as a copy of it.
        alpha: Initial proportion of v (the authors use 0.5).
        alpha_update: When alpha is updated: at the first step of each ``round``, as in the authors'
            code, at every ``step``, or ``never``. If alpha is 0 and never updated, v is not
            trained.
        v_grad: Gradient of v: ``chain`` is that of the mixture's loss with respect to v, ``alpha
            G``; ``plain`` is G.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: ``alpha`` lies outside [0, 1], or the optimiser has several learning rates.
    """

    record = fl.MethodRecord(
        name="APFL",
        family="A separate network for each client or group",
        travels="network",
        stays="local network, mixing share",
        apart="a mixture of local and global network with a learned share",
        paper=fl.Paper(
            "Adaptive Personalized Federated Learning",
            "Deng, Yuyang and Kamani, Mohammad Mahdi and Mahdavi, Mehrdad",
            "arXiv",
            2020,
            "https://arxiv.org/abs/2003.13461",
        ),
    )

    kept = ("personal.*", "alpha")
    vectorizable = True
    needs = ("outputs",)

    def __init__(
        self,
        net: nn.Module,
        *,
        alpha: fl.Fraction = 0.5,
        alpha_update: Literal["round", "step", "never"] = "round",
        v_grad: Literal["chain", "plain"] = "chain",
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.alpha_update = alpha_update
        self.v_grad = v_grad
        self.lr = fl.learning_rate(self.configure_optimizers())
        self.personal = fl.copied(net)
        self.trains = ("net.*",) if alpha == 0 and alpha_update == "never" else ("*",)
        self.alpha = nn.Buffer(torch.tensor(float(alpha)))
        self.rate = nn.Buffer(torch.zeros(()))  # step size of the next update of alpha

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return alpha in the paper's range."""
        return (fl.Dimension("alpha", choices=(0.25, 0.5, 0.75)),)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits of the mixture."""
        logits: Tensor = functional_call(self.personal, self._mixture(), (x,))
        return logits

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load w, and set the step size of the next update of alpha."""
        super().receive(broadcast, info)
        self.rate.fill_(0 if self.alpha_update == "never" else self.lr * self.lr_factor(info))

    def plan(self) -> fl.Plan:
        """Declare one phase, in which w, v and alpha step together."""
        return [
            fl.Phase(name="local", objective=self._step, epochs=self.epochs, trains=self.trains)
        ]

    def server(self) -> fl.Server[fl.ServerState]:
        """Return a server that averages networks; newcomers copy the received network."""
        return fl.Server(self.weighting, inherits=("net.", "personal."))

    def load_global(self, broadcast: fl.Broadcast) -> None:
        """Load the global model into both models."""
        super().load_global(broadcast)
        fl.assign(self.personal, self.net.state_dict())

    def _mixture(self) -> fl.State:
        received = dict(self.net.named_parameters())
        # Exactly w at 0 and v at 1.
        return {
            name: torch.lerp(received[name], personal, self.alpha)
            for name, personal in self.personal.named_parameters()
        }

    def _step(self, batch: fl.Batch) -> fl.Outcome:
        """Return the losses of w and of the mixture; the mixture's gradient reaches v only."""
        terms = self.supervised(self.net(batch.x), batch)
        mixture = {name: value.detach() for name, value in self._mixture().items()}
        buffers = fl.statistics(self.personal)
        slopes, mixed, after = fl.slopes_at(self.personal, mixture, buffers, batch, self.task.loss)
        personal = dict(self.personal.named_parameters())
        apart = [personal[name].detach() - p.detach() for name, p in self.net.named_parameters()]
        slope = fl.linear(apart, slopes.values())
        factor = self.alpha if self.v_grad == "chain" else 1.0
        of_personal = [factor * slopes[name] for name in personal]
        terms["mixed"] = fl.with_gradient(mixed, personal.values(), of_personal)
        entries = {f"personal.{name}": value for name, value in after.items()}
        entries["alpha"] = (self.alpha - self.rate * slope).clamp(0, 1)
        entries["rate"] = self.rate if self.alpha_update == "step" else torch.zeros_like(self.rate)
        return fl.Outcome(terms, entries)
