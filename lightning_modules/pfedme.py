"""pFedMe: every client solves a proximal problem of its own; the solutions move a global model.

Dinh et al., "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, arXiv
2006.08848; the authors' released code. The global model travels, the personal one stays.

Departs from the paper: a round is ``epochs`` walks over the data (``local_steps`` gives its R
batches), and the server weighs by samples as all code does (``weighting: uniform`` is the paper's).
Departs from the released code: the personal model, not the local copy of the global one, is tested
as such; the inner steps have no hidden weight decay (``inner_wd: 0.001`` is theirs); only sampled
clients train (``train_all`` of the sampler goes back).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lightning_modules.base import ClientModule
from lightning_modules.layers import copy_into, frozen, statistics
from lightning_modules.losses import linear, proximal
from lightning_modules.steps.gradients import slopes_at
from lightning_modules.steps.servers import MovingServer
from pfl.core.checks import at_least_one, not_negative, positive
from pfl.core.server import Server, ServerState
from pfl.core.state import assign, clone, subtract
from pfl.core.types import Batch, Broadcast, ClientInfo, Outcome, Phase, Plan, State


class PFedMe(ClientModule):
    """The network w travels, the personal network theta stays.

    On each batch theta takes K steps ``theta <- theta - eta_p (grad CE(theta) + lambda (theta -
    w))`` from where it was, then w one step of the optimiser (rate eta) along its gradient of the
    envelope, ``lambda (w - theta)``. Both start the round as the received model. ``eta_p (lambda +
    L) < 2``, with L the curvature of the loss, and ``eta lambda <= 1`` keep this stable.

    Args:
        net: The network.
        proximity: lambda (authors: 15 to 30).
        inner_steps: K.
        inner_lr: eta_p (authors: 0.09 for an MLP, 0.01 for a CNN). It stays the
            same over the rounds.
        inner_wd: Weight decay of the inner steps.
        local_steps: R, batches a round; ``None`` takes ``epochs`` instead.
        server_step: beta; the server moves to ``(1 - beta) w + beta average`` (authors: 1; 2 when
            tuned).
        adapt_untrained: Before a test, a client that never trained makes its theta from the global
            model, with one walk over its training data; without it, it is tested with that model.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: A number is out of its range.
    """

    kept = ("personal.*", "trained")
    vectorizable = True
    trained: Tensor

    def __init__(
        self,
        net: nn.Module,
        *,
        proximity: float = 15.0,
        inner_steps: int = 5,
        inner_lr: float = 0.01,
        inner_wd: float = 0.0,
        local_steps: int | None = None,
        server_step: float = 1.0,
        adapt_untrained: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(net, **options)
        not_negative(proximity=proximity, inner_wd=inner_wd, server_step=server_step)
        positive(inner_lr=inner_lr)
        at_least_one(inner_steps=inner_steps)
        self.proximity = proximity
        self.inner_steps = inner_steps
        self.inner_lr = inner_lr
        self.inner_wd = inner_wd
        self.local_steps = local_steps
        self.server_step = server_step
        self.adapt_untrained = adapt_untrained
        self.personal = frozen(net)
        self.register_buffer("trained", torch.zeros(()))

    def receive(self, broadcast: Broadcast, info: ClientInfo) -> None:
        """Load the received model into both models."""
        super().receive(broadcast, info)
        copy_into(self.personal, self.net)

    def plan(self) -> Plan:
        """Declare one phase of inner and outer steps."""
        return [
            Phase(
                name="local",
                objective=self._envelope,
                epochs=self.epochs,
                steps=self.local_steps,
            )
        ]

    def personalise(self, broadcast: Broadcast | None, info: ClientInfo) -> None:
        """Become the stored personal model, or the global one if there is none."""
        if self.trained:
            assign(self.net, self.personal.module.state_dict())
        elif broadcast is not None:
            self.receive(broadcast, info)

    def adapt(self) -> Plan:
        """Declare the steps that make a personal model for a client without one."""
        if not self.adapt_untrained:
            return ()
        return [
            Phase(
                name="adapt",
                objective=self._approach,
                epochs=lambda own, info: 0 if own["trained"] else 1,
                optimizer=partial(torch.optim.SGD, lr=self.inner_lr),
            )
        ]

    def server(self) -> Server[ServerState]:
        """Return a server that moves towards the average."""
        return MovingServer(self.weighting, self.server_step)

    def _envelope(self, batch: Batch) -> Outcome:
        """Return the Moreau envelope of the loss at w, by K steps of theta."""
        start = dict(self.personal.module.named_buffers())
        anchor = {name: value.detach() for name, value in self.net.named_parameters()}
        theta, loss, buffers = self._solve({n: start[n] for n in anchor}, anchor, batch)
        distance = proximal(self.net.parameters(), theta.values())
        entries = _named("personal.module", theta | buffers) | _named("net", buffers)
        entries["trained"] = torch.ones_like(self.trained)
        return Outcome({self.task.loss_name: loss, "proximal": self.proximity * distance}, entries)

    def _approach(self, batch: Batch) -> Outcome:
        """Take the same K steps with the network itself; the personal copy stands in for w.

        They become one step of the optimiser at rate eta_p.
        """
        start = {name: value.detach() for name, value in self.net.named_parameters()}
        anchor = dict(self.personal.module.named_buffers())
        theta, loss, buffers = self._solve(start, anchor, batch)
        slopes = [(1 / self.inner_lr) * value for value in subtract(start, theta).values()]
        surrogate = linear(self.net.parameters(), slopes)
        terms = {self.task.loss_name: loss + surrogate - surrogate.detach()}
        return Outcome(terms, _named("net", buffers))

    def _solve(self, theta: State, anchor: State, batch: Batch) -> tuple[State, Tensor, State]:
        """Return theta after K steps, the loss before the last of them, and running statistics.

        Those take in the batch once.
        """
        buffers = clone(statistics(self.net))
        once: State = {}
        for _ in range(self.inner_steps):
            slopes, loss, after = slopes_at(self.net, theta, buffers, batch, self.task.loss)
            once = once or after
            theta = {
                name: value
                - self.inner_lr
                * (slopes[name] + self.proximity * (value - anchor[name]) + self.inner_wd * value)
                for name, value in theta.items()
            }
        return theta, loss, once


def _named(prefix: str, state: State) -> State:
    return {f"{prefix}.{name}": value for name, value in state.items()}
