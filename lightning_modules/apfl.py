"""APFL: a local model, trained through its mixture with the global one, in a share that is learned.

Deng et al., "Adaptive Personalized Federated Learning", 2020, arXiv 2003.13461. The global network
travels, both ways; the local one and its share stay. Departs from the paper: the average is
weighted by samples (``weighting: uniform`` is the paper's). Departs from the authors' code, which
mixes outputs, steps the global model before it mixes, and draws the share to zero: here weights are
mixed, both models as they are before the step, and the share follows its gradient.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lightning_modules.base import ClientModule
from lightning_modules.layers import statistics
from lightning_modules.losses import linear
from lightning_modules.steps.gradients import slopes_at
from lightning_modules.steps.optimizers import learning_rate
from pfl.core.checks import within
from pfl.core.state import assign
from pfl.core.types import Batch, Broadcast, ClientInfo, Outcome, Phase, Plan, State


class APFL(ClientModule):
    """``net`` (w) is trained as in FedAvg; ``personal`` (v) on ``CE(alpha v + (1 - alpha) w)``.

    The mixture is tested. Its batch norms are those of v. The share alpha takes steps of the
    optimiser's rate along its own gradient ``<v - w, G>``, G that at the mixture, within [0, 1].

    Args:
        net: The network; ``personal`` starts as a copy of it.
        alpha: Share of v at the start (authors: 0.5).
        alpha_update: Whether alpha moves at the first step of each round, as in the authors' code,
            at every step, or never. At 0, and for ever, v is not trained.
        v_grad: v follows the gradient of the mixture's loss by v, ``alpha G``, or ``plain`` G.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: ``alpha`` lies outside [0, 1], or the optimiser has several learning rates.
    """

    kept = ("personal.*", "alpha")
    vectorizable = True
    alpha: Tensor
    rate: Tensor

    def __init__(
        self,
        net: nn.Module,
        *,
        alpha: float = 0.5,
        alpha_update: Literal["round", "step", "never"] = "round",
        v_grad: Literal["chain", "plain"] = "chain",
        **options: Any,
    ) -> None:
        super().__init__(net, **options)
        within("[0, 1]", alpha=alpha)
        self.alpha_update = alpha_update
        self.v_grad = v_grad
        self.lr = learning_rate(self.configure_optimizers())
        self.personal = copy.deepcopy(net)
        self.trains = ("net.*",) if alpha == 0 and alpha_update == "never" else ("*",)
        self.register_buffer("alpha", torch.tensor(float(alpha)))
        self.register_buffer("rate", torch.zeros(()))  # of the next step of alpha

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits of the mixture."""
        logits: Tensor = functional_call(self.personal, self._mixture(), (x,))
        return logits

    def receive(self, broadcast: Broadcast, info: ClientInfo) -> None:
        """Load w; alpha is due."""
        super().receive(broadcast, info)
        self.rate.fill_(0 if self.alpha_update == "never" else self.lr * self.lr_factor(info))

    def plan(self) -> Plan:
        """Declare one phase, in which w, v and alpha step together."""
        return [Phase(name="local", objective=self._step, epochs=self.epochs, trains=self.trains)]

    def load_global(self, broadcast: Broadcast) -> None:
        """Load the global model into both models."""
        super().load_global(broadcast)
        assign(self.personal, self.net.state_dict())

    def _mixture(self) -> State:
        received = dict(self.net.named_parameters())
        # Exactly w at 0 and v at 1.
        return {
            name: torch.lerp(received[name], own, self.alpha)
            for name, own in self.personal.named_parameters()
        }

    def _step(self, batch: Batch) -> Outcome:
        """Return the losses of w and of the mixture, of which v alone takes the gradient."""
        terms = self.supervised(self.net(batch.x), batch)
        mixture = {name: value.detach() for name, value in self._mixture().items()}
        buffers = statistics(self.personal)
        slopes, mixed, after = slopes_at(self.personal, mixture, buffers, batch, self.task.loss)
        own = dict(self.personal.named_parameters())
        apart = [own[name].detach() - p.detach() for name, p in self.net.named_parameters()]
        slope = linear(apart, slopes.values())
        part = self.alpha if self.v_grad == "chain" else 1.0
        surrogate = linear(own.values(), [part * slopes[name] for name in own])
        entries = {f"personal.{name}": value for name, value in after.items()}
        entries["alpha"] = (self.alpha - self.rate * slope).clamp(0, 1)
        entries["rate"] = self.rate if self.alpha_update == "step" else torch.zeros_like(self.rate)
        return Outcome({**terms, "mixed": mixed + surrogate - surrogate.detach()}, entries)
