"""SCAFFOLD: FedAvg whose clients correct every gradient by control variates, to avoid drift.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
arXiv 1910.06378. The authors released no code.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lightning_modules import base as fl


class SCAFFOLD(fl.ClientModule):
    """FedAvg whose clients correct every gradient by control variates, so that they do not drift.

    A local gradient g_i becomes ``g_i - c_i + c``. The control variates c_i (of the client) and c
    (of the server) are vectors over all trainable parameters, and estimate the client's and the
    global gradient. The network and c come down; the network and the change of c_i go up; c_i
    stays.

    There are no departures from the paper. Public codes differ: here c_i is stored with the client,
    and Option II divides by the actual steps and learning rate of the round, not by planned or
    initial ones.

    Args:
        net: The network. Frozen parameters have no control variate.
        eta_g: Step size of the server along the mean change of the uploaded models.
        option: The new c_i is the full gradient at the received model in eval mode (``I``, one more
            pass over the data), or the mean gradient of the round, computed from the change of the
            weights (``II``, as in all public codes).
        weighting: Weighting of uploads; the paper's is ``uniform``.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: ``eta_g`` is not positive.

    Warns:
        UserWarning: The optimiser is not SGD without momentum. Option II assumes that each step is
            the gradient times the learning rate.
    """

    record = fl.MethodRecord(
        name="SCAFFOLD",
        family="One model for all, and where to tune it",
        travels="network, control variate",
        stays="control variate",
        apart="control variates correct client drift",
        paper=fl.Paper(
            "{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning",
            (
                "Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, "
                "Sashank J. and Stich, Sebastian U. and Suresh, Ananda Theertha"
            ),
            "ICML",
            2020,
            "https://arxiv.org/abs/1910.06378",
        ),
    )

    extra = ("change",)
    kept = ("control",)
    vectorizable = True
    one_model = True

    def __init__(
        self,
        net: nn.Module,
        *,
        eta_g: fl.Positive[float] = 1.0,
        option: Literal["I", "II"] = "II",
        weighting: Literal["samples", "uniform"] = "uniform",
        **options: Any,
    ) -> None:
        super().__init__(net, weighting=weighting, **options)
        self.eta_g = eta_g
        self.option = option
        self.controlled = tuple(name for name, p in net.named_parameters() if p.requires_grad)
        zeros = torch.zeros_like(self._weights().detach())
        self.control = nn.Buffer(zeros.clone())  # c_i
        self.common = nn.Buffer(zeros.clone())  # c
        self.start = nn.Buffer(zeros.clone())  # x
        self.change = nn.Buffer(zeros.clone())  # change of c_i in this round
        self.rate = nn.Buffer(torch.zeros(()))
        if self.net_optimizes:
            # Its learning rates are known once they were used.
            if option == "I":
                self.needs = ("outputs",)
            self.lr = math.nan
            return
        optimizer = self.configure_optimizers()
        self.lr = fl.learning_rate(optimizer)
        if other := fl.beyond_plain_sgd(optimizer):
            warnings.warn(
                f"SCAFFOLD's control variates assume plain SGD, got {other}: they will be of the "
                "wrong size",
                stacklevel=2,
            )

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return the server's rate, up to the paper's 1."""
        return (fl.Dimension("eta_g", choices=(0.1, 0.5, 1.0)),)

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the network and c; store the round's starting weights and learning rate."""
        super().receive(broadcast, info)
        self.start.copy_(self._weights())
        self.rate.fill_(self.lr * self.lr_factor(info))

    def plan(self) -> fl.Plan:
        """Declare training, then the new variate; Option I first computes its gradient."""
        train = fl.Phase(name="local", objective=self.losses, epochs=self.epochs)
        renew = fl.Pass(name="control", then=lambda _: {"control": self.control + self.change})
        if self.option == "I":
            slope = fl.Pass(name="gradient", statistic=self._gradients, then=self._option_one)
            return [slope, train, renew]
        return [train, fl.Pass(name="travelled", then=self._option_two), renew]

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return ``ce`` and the linear term whose gradient is ``c - c_i``."""
        drift = fl.linear([self._weights()], [self.common - self.control])
        return {**super().losses(batch), "control": drift}

    def server(self) -> fl.Server[ScaffoldState]:
        """Return a server that averages models and adds up the changes of control variates."""
        names = tuple(f"net.{name}" for name in self.controlled)
        return ScaffoldServer(self.weighting, names, self.eta_g)

    def _weights(self) -> Tensor:
        parameters = dict(self.net.named_parameters())
        return torch.cat([parameters[name].flatten() for name in self.controlled])

    def _gradients(self, batch: fl.Batch) -> fl.State:
        parameters: fl.State = dict(self.net.named_parameters())
        buffers = fl.statistics(self.net)
        slopes, _, _ = fl.slopes_at(self.net, parameters, buffers, batch, self.task.loss)
        mean = torch.cat([slopes[name].flatten() for name in self.controlled])
        count = mean.new_tensor(len(batch.y))
        samples = count if batch.weight is None else batch.weight.sum().to(mean.dtype)
        return {"gradient": mean * samples, "samples": samples}

    def _option_one(self, totals: fl.Totals) -> fl.State:
        return {"change": totals.sums["gradient"] / totals.sums["samples"] - self.control}

    def _option_two(self, totals: fl.Totals) -> fl.State:
        """Return ``(x - y) / (K eta) - c``, or zero if no step was taken."""
        way = totals.steps * self.rate
        if self.net_optimizes:
            of = dict(self.net.named_parameters())
            rates = [totals.rates.get(f"net.{name}", 0.0) for name in self.controlled]
            ways = zip(self.controlled, rates, strict=True)
            way = torch.cat([torch.full_like(of[n], rate).flatten() for n, rate in ways])
        mean = (self.start - self._weights()) / torch.where(way > 0, way, 1)
        return {"change": torch.where(way > 0, mean - self.common, 0)}


@dataclass(frozen=True, kw_only=True)
class ScaffoldState(fl.ServerState):
    """The server's state: the model x in ``shared``, and the control variate c.

    Attributes:
        control: c, over all trainable parameters.
        clients: N, the number of clients that have training data.
    """

    control: Tensor
    clients: int


@dataclass(eq=False)
class ScaffoldServer(fl.Server[ScaffoldState]):
    """A server that steps to ``x + eta_g (mean y - x)`` and adds the changes, over N, to ``c``.

    Args:
        controlled: Names of the parameters that have control variates and that ``eta_g`` scales;
            other entries are averaged.
        eta_g: Step size of the server.
        weighting: As in :class:`~pfl.core.server.Server`.
    """

    summed: ClassVar = ("change",)
    controlled: fl.Patterns = ()
    eta_g: float = 1.0

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> ScaffoldState:
        """Return the initial state, with a control variate of zero."""
        flat = torch.cat([shared[name].flatten() for name in self.controlled])
        members = sum(info.samples > 0 for info in clients)
        return ScaffoldState(shared=shared, control=torch.zeros_like(flat), clients=members)

    def broadcast(self, state: ScaffoldState, client: int, round: int) -> fl.Broadcast:
        """Return the model and the control variate, which clients load as ``common``."""
        return fl.Broadcast(shared=state.shared, extra={"common": state.control})

    def begin(self, state: ScaffoldState, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Declare the mean of y, and the sum of the changes of control variates."""
        return {**super().begin(state, senders), "changes": fl.Sum("change")}

    def finish(self, state: ScaffoldState, folded: fl.Folded) -> ScaffoldState:
        """Return the state with the next x and c."""
        after = super().finish(state, folded)
        shared = after.shared
        if self.eta_g != 1:
            shared = fl.stepped(state.shared, shared, self.eta_g, self.controlled)
        control = state.control + folded["changes"] / state.clients
        return replace(after, shared=shared, control=control)
