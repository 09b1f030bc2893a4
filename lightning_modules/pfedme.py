"""pFedMe: every client solves a proximal problem; the solutions move the global model.

Dinh et al., "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, arXiv
2006.08848; the authors' released code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from lightning_modules import base as fl


class PFedMe(fl.ClientModule):
    """Personal models theta, each close to a global model w, which follows the Moreau envelope.

    On each batch, theta takes K steps ``theta <- theta - eta_p (grad CE(theta) + lambda (theta -
    w))`` from its current value; then w takes one step of the optimiser (learning rate eta) along
    the gradient of the envelope, ``lambda (w - theta)``. Both start the round as the received
    model. This is stable for ``eta_p (lambda + L) < 2``, where L is the curvature of the loss, and
    ``eta lambda <= 1``. The global model w travels both ways; theta stays and is the model that is
    tested. Before a test, a client that never trained computes its theta from the global model, in
    one epoch on its training data and on a copy.

    Args:
        net: The network.
        proximity: lambda, the weight of the proximal term (the authors use 15 to 30).
        inner_steps: K, the steps of theta on each batch.
        inner_lr: eta_p, the learning rate of theta (the authors use 0.09 for an MLP, 0.01 for a
            CNN). It is constant over the rounds.
        local_steps: R, the number of batches in a round; ``None`` uses ``epochs`` instead.
        server_step: beta; the server moves to ``(1 - beta) w + beta average`` (the authors use 1,
            or 2 when tuned).
        options: See :class:`ClientModule`.

    Raises:
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="pFedMe",
        family="A separate network for each client or group",
        travels="network",
        stays="personal network",
        apart="the personal network minimises a Moreau envelope",
        paper=fl.Paper(
            "Personalized Federated Learning with {Moreau} Envelopes",
            "Dinh, Canh T. and Tran, Nguyen H. and Nguyen, Tuan Dung",
            "NeurIPS",
            2020,
            "https://arxiv.org/abs/2006.08848",
        ),
    )

    kept = ("personal.*", "trained")
    vectorizable = True
    needs = ("outputs",)

    def __init__(
        self,
        net: nn.Module,
        *,
        proximity: fl.NotNegative[float] = 15.0,
        inner_steps: fl.AtLeastOne = 5,
        inner_lr: fl.Positive[float] = 0.01,
        local_steps: fl.AtLeastOne | None = None,
        server_step: fl.NotNegative[float] = 1.0,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.proximity = proximity
        self.inner_steps = inner_steps
        self.inner_lr = inner_lr
        self.local_steps = local_steps
        self.server_step = server_step
        self.personal = fl.frozen(net)
        self.trained = nn.Buffer(torch.zeros(()))
        self.factor = nn.Buffer(torch.ones(()))  # of this round's learning rates

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return lambda, eta_p and beta in the authors' ranges."""
        return (
            fl.Dimension("proximity", choices=(15.0, 20.0, 25.0, 30.0)),
            fl.Dimension("inner_lr", 0.005, 0.1, log=True),
            fl.Dimension("server_step", choices=(1.0, 2.0)),
        )

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the received model into both models."""
        super().receive(broadcast, info)
        fl.copy_into(self.personal, self.net)
        # It may fall to zero; its inverse must be finite in float32.
        self.factor.fill_(max(self.lr_factor(info), 1e-30))

    def plan(self) -> fl.Plan:
        """Declare one phase, in which each batch makes the inner steps and the outer step."""
        return [
            fl.Phase(
                name="local", objective=self._envelope, epochs=self.epochs, steps=self.local_steps
            )
        ]

    def personalise(self, broadcast: fl.Broadcast | None, info: fl.ClientInfo) -> None:
        """Load the stored personal model, or the global one if there is none."""
        if self.trained:
            fl.assign(self.net, self.personal.module.state_dict())
        elif broadcast is not None:
            self.receive(broadcast, info)

    def adapt(self) -> fl.Plan:
        """Declare the steps that compute a personal model for a client without one."""
        return [
            fl.Phase(
                name="adapt",
                objective=self._approach,
                epochs=lambda entries, info: 0 if entries["trained"] else 1,
                optimizer=partial(torch.optim.SGD, lr=self.inner_lr),
            )
        ]

    def server(self) -> fl.Server[fl.ServerState]:
        """Return a server that moves towards the average."""
        names = tuple(f"net.{name}" for name, _ in self.net.named_parameters())
        return fl.MovingServer(self.weighting, self.server_step, names)

    def _envelope(self, batch: fl.Batch) -> fl.Outcome:
        """Return the Moreau envelope of the loss at w, from K steps of theta."""
        start = dict(self.personal.module.named_buffers())
        anchor = {name: value.detach() for name, value in self.net.named_parameters()}
        theta, loss, buffers = self._solve({n: start[n] for n in anchor}, anchor, batch)
        distance = fl.proximal(self.net.parameters(), theta.values())
        entries = _prefixed("personal.module", theta | buffers) | _prefixed("net", buffers)
        entries["trained"] = torch.ones_like(self.trained)
        return fl.Outcome(
            {self.task.loss_name: loss, "proximal": self.proximity * distance}, entries
        )

    def _approach(self, batch: fl.Batch) -> fl.Outcome:
        """Take the same K steps with the network itself, with w in the personal copy.

        The K steps are expressed as one step of the optimiser, whose learning rate is eta_p times
        the factor of the round.
        """
        start = {name: value.detach() for name, value in self.net.named_parameters()}
        anchor = dict(self.personal.module.named_buffers())
        theta, loss, buffers = self._solve(start, anchor, batch)
        way = fl.subtract(start, theta).values()
        slopes = [(1 / self.inner_lr) * value / self.factor for value in way]
        terms = {self.task.loss_name: fl.with_gradient(loss, self.net.parameters(), slopes)}
        return fl.Outcome(terms, _prefixed("net", buffers))

    def _solve(
        self, theta: fl.State, anchor: fl.State, batch: fl.Batch
    ) -> tuple[fl.State, Tensor, fl.State]:
        """Return theta after K steps, the loss before the last step, and running statistics.

        The running statistics are updated with the batch once.
        """
        buffers = fl.clone(fl.statistics(self.net))
        once: fl.State = {}
        for _ in range(self.inner_steps):
            slopes, loss, after = fl.slopes_at(self.net, theta, buffers, batch, self.task.loss)
            once = once or after
            theta = {
                name: value
                - self.inner_lr * (slopes[name] + self.proximity * (value - anchor[name]))
                for name, value in theta.items()
            }
        return theta, loss, once


def _prefixed(prefix: str, state: fl.State) -> fl.State:
    return {f"{prefix}.{name}": value for name, value in state.items()}
