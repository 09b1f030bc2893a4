"""FedYogi: the server takes an adaptive step along the mean of the clients' changes.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, arXiv 2003.00295, Algorithm 2.

Departs from the paper in: batch-norm statistics are averaged, without a step; clients are weighted
by samples, as in its experiments (``weighting: uniform`` is the printed mean).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from lightning_modules import base as fl


class FedYogi(fl.ClientModule):
    """FedAvg with an adaptive server, which takes the mean of the clients' changes for a gradient.

    With Delta the weighted mean of the changes ``w_i - w``, the server computes for each parameter

        m <- beta1 m + (1 - beta1) Delta
        v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)
        w <- w + server_lr m / (sqrt(v) + tau)

    from m = 0 and v = tau^2. Unlike Adam's, v grows and shrinks by at most ``(1 - beta2) Delta^2``.

    Args:
        net: The network.
        server_lr: eta, the server's rate; the paper searches powers of the root of ten.
        beta1: Decay of m.
        beta2: Decay of v.
        tau: Smallest deviation by which a step is divided.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="FedYogi",
        family="One model for all, and where to tune it",
        travels="network",
        apart="the server takes an adaptive step along the mean of the clients' changes",
        paper=fl.Paper(
            "Adaptive Federated Optimization",
            (
                "Reddi, Sashank J. and Charles, Zachary and Zaheer, Manzil and Garrett, Zachary "
                "and Rush, Keith and Konečný, Jakub and Kumar, Sanjiv and McMahan, H. Brendan"
            ),
            "ICLR",
            2021,
            "https://arxiv.org/abs/2003.00295",
        ),
    )

    vectorizable = True
    one_model = True

    def __init__(
        self,
        net: nn.Module,
        *,
        server_lr: fl.NotNegative[float] = 0.03,
        beta1: Annotated[float, fl.Range("[0, 1)")] = 0.9,
        beta2: Annotated[float, fl.Range("[0, 1)")] = 0.99,
        tau: fl.Positive[float] = 1e-3,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.adaptive = server_lr, beta1, beta2, tau

    def server(self) -> fl.Server[Any]:
        """Return a server that takes adaptive steps with the parameters."""
        names = tuple(f"net.{name}" for name, _ in self.net.named_parameters())
        return YogiServer(self.weighting, names, *self.adaptive)


@dataclass(frozen=True, kw_only=True)
class YogiState(fl.ServerState):
    """The server's state: the model and its moments.

    Attributes:
        momentum: m by parameter name.
        scale: v by parameter name.
    """

    momentum: fl.State
    scale: fl.State


@dataclass(eq=False)
class YogiServer(fl.Server[YogiState]):
    """A server that takes a step of Yogi along the mean of the clients' changes.

    Args:
        parameters: Names of the parameters; other entries are only averaged.
        lr: eta.
        beta1: Decay of the momentum.
        beta2: Decay of the scale.
        tau: Smallest deviation.
    """

    parameters: fl.Patterns = ()
    lr: float = 0.03
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> YogiState:
        """Return the state before the first round: m = 0, v = tau^2."""
        sent = fl.select(shared, self.parameters)
        return YogiState(
            shared=shared,
            momentum={name: torch.zeros_like(value) for name, value in sent.items()},
            scale={name: torch.full_like(value, self.tau**2) for name, value in sent.items()},
        )

    def finish(self, state: YogiState, folded: fl.Folded) -> YogiState:
        """Return the state after a step towards the mean of the uploads."""
        after = super().finish(state, folded)
        steps = {name: self._step(state, name, folded.mean[name]) for name in state.momentum}
        shared, momentum, scale = (
            {name: step[place] for name, step in steps.items()} for place in range(3)
        )
        return replace(after, shared={**after.shared, **shared}, momentum=momentum, scale=scale)

    def _step(self, state: YogiState, name: str, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return w, m and v of a parameter after the step."""
        old = state.shared[name]
        change = mean - old
        square = change.square()
        m = self.beta1 * state.momentum[name] + (1 - self.beta1) * change
        v = state.scale[name]
        v = v - (1 - self.beta2) * square * torch.sign(v - square)
        return old + self.lr * m / (v.sqrt() + self.tau), m, v
