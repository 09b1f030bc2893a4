"""FedEM: each client's data are a mixture of M distributions, each with a shared network.

Marfoq et al., "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS 2021, arXiv
2108.10252; the authors' released code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from lightning_modules import base as fl


class FedEM(fl.ClientModule):
    """M shared networks, and private proportions in which a client mixes their predictions.

    A round is a step of federated EM. The E step, over all training samples and without training,
    computes the responsibility of each component for a sample, ``q_m ~ pi_m exp(-loss_m)``; its
    mean over the samples is the client's new mixture pi. The M step trains all components on their
    losses weighted by these responsibilities, which stay constant. All M components travel both
    ways; the mixture stays. A client is tested with the mixed probabilities; one that has never
    taken part first fits its mixture by ``e_steps``.

    Args:
        net: The first component. The others are copies in which every submodule that has
            ``reset_parameters`` is drawn anew, because equal components would stay equal.
        components: M, the number of components (the authors use 3).
        damped: Count absent members in the average with the last global components, as in the
            authors' code, which makes the step smaller.
        e_steps: E steps before the test of a client that has never taken part; at 0 it is tested
            with equal shares.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: ``components`` is less than 1, or ``e_steps`` is negative.
    """

    record = fl.MethodRecord(
        name="FedEM",
        family="A separate network for each client or group",
        travels="M networks",
        stays="proportions of the mixture",
        apart="each client mixes the predictions of M networks, in proportions found by EM",
        paper=fl.Paper(
            "Federated Multi-Task Learning under a Mixture of Distributions",
            (
                "Marfoq, Othmane and Neglia, Giovanni and Bellet, Aurélien and Kameni, "
                "Laetitia and Vidal, Richard"
            ),
            "NeurIPS",
            2021,
            "https://arxiv.org/abs/2108.10252",
        ),
    )

    kept = ("mixture", "participated")
    global_model = False
    vectorizable = True
    needs = ("classes", "sample_losses")

    def __init__(
        self,
        net: nn.Module,
        *,
        components: fl.AtLeastOne = 3,
        damped: bool = False,
        e_steps: fl.NotNegative[int] = 1,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.damped, self.e_steps = damped, e_steps
        self.others = nn.ModuleList(fl.copied(net) for _ in range(components - 1))
        for number, other in enumerate(self.others, start=1):
            fl.redraw(other, fl.derive(fl.seed_of(net), "component", number))
        self.anchors = fl.frozen(self._components())
        self.mixture = nn.Buffer(torch.full((components,), 1 / components))
        self.prior = nn.Buffer(self.mixture.clone())
        self.participated = nn.Buffer(torch.tensor(False))

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return M around the authors' value."""
        return (fl.Dimension("components", choices=(2, 3, 4)),)

    @property
    def shared(self) -> tuple[str, ...]:
        """All components."""
        return ("net.*", "others.*")[: len(self.mixture)]

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logarithms of the mixed probabilities."""
        rows = torch.stack([net(x).log_softmax(-1) for net in self._components()])
        return (rows + self.mixture.log()[:, None, None]).logsumexp(0)

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the components, which the E step compares under the client's last mixture."""
        super().receive(broadcast, info)
        fl.copy_into(self.anchors, self._components())
        # Equal shares in the run's precision, in which 1 / M may have more digits.
        equal = 1 / len(self.mixture)
        self.mixture.copy_(torch.where(self.participated, self.mixture, equal))
        self.prior.copy_(self.mixture)

    def plan(self) -> fl.Plan:
        """Declare the E step and the M step."""
        local = fl.Phase(name="local", objective=self._m_step, epochs=self.epochs)
        return [fl.Pass(name="e_step", statistic=self._sums, then=self._mix), local]

    def adapt(self) -> fl.Plan:
        """Declare the E steps for a client that has never taken part."""
        e_step = partial(fl.Pass, statistic=self._sums, then=self._fit, when=self._never_took_part)
        return [e_step(name=f"e_step_{number}") for number in range(1, self.e_steps + 1)]

    def server(self) -> fl.Server[Any]:
        """Return a server that averages each component."""
        return fl.DampedServer(self.weighting) if self.damped else super().server()

    def _components(self) -> nn.ModuleList:
        return nn.ModuleList([self.net, *self.others])

    def _losses(self, nets: Iterable[nn.Module], batch: fl.Batch) -> Tensor:
        """Return the (B, M) losses of each sample under each network."""
        return torch.stack([self.task.sample_losses(net(batch.x), batch.y) for net in nets], -1)

    def _responsibilities(self, batch: fl.Batch) -> Tensor:
        """Return the (B, M) responsibilities of the received components for each sample."""
        with torch.no_grad():
            losses = self._losses(self.anchors.module.children(), batch)
        return (self.prior.log() - losses).softmax(-1)

    def _sums(self, batch: fl.Batch) -> fl.State:
        q = self._responsibilities(batch)
        return {"q": (q if batch.weight is None else q * batch.weight[:, None]).sum(0)}

    def _fit(self, totals: fl.Totals) -> fl.State:
        mixture = totals.sums["q"] / totals.sums["q"].sum()
        return {"mixture": mixture, "prior": mixture}

    def _mix(self, totals: fl.Totals) -> fl.State:
        """Return the new mixture; the M step still uses the old one."""
        mixture = self._fit(totals)["mixture"]
        return {"mixture": mixture, "participated": torch.ones_like(self.participated)}

    def _never_took_part(self, entries: fl.State, info: fl.ClientInfo) -> bool:
        return not entries["participated"]

    def _m_step(self, batch: fl.Batch) -> fl.Terms:
        """Return the loss of all components; its divisor is the batch size, not the sum of q."""
        losses = self._responsibilities(batch) * self._losses(self._components(), batch)
        return {self.task.loss_name: fl.mean(losses.sum(-1), batch.weight)}
