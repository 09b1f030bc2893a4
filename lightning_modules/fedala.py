"""FedALA: each round starts from a learned element-wise mix of the global and the local model.

Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI 2023,
arXiv 2212.01197; the authors' released code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from typing_extensions import Unpack

from lightning_modules import base as fl


class FedALA(fl.ClientModule):
    """FedAvg whose rounds start from an element-wise mix of the global and the client's own model.

    From its second participation on, a client takes ``own + (global - own) * W`` in its top layers
    and the global model below them, then trains as in FedAvg. Before mixing it learns the weights
    W, element by element and within [0, 1], by gradient steps on the cross-entropy of the mix.
    Before a test it mixes in the same way, on a copy. The whole network travels both ways; the
    client's own network and W stay.

    Args:
        net: The network.
        top: p, the number of last layers that are mixed, or ``all``.
        mix_lr: eta_w, the learning rate of W, which takes plain gradient steps.
        mix_percent: s, the percentage of the training samples on which W is learned, drawn anew
            each time.
        threshold: The first learning of W stops when the standard deviation of the losses of the
            last ``window`` epochs falls below this value; later ones last one epoch. The loss of an
            epoch is that of its last batch, and more than ``window`` epochs are needed to stop.
        window: Number of epochs; see ``threshold``.
        max_init_epochs: Maximum number of epochs of the first learning of W.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="FedALA",
        family="A separate network for each client or group",
        travels="network",
        stays="last network, mixing weights",
        apart="learns an element-wise mixture of its own and the global network",
        paper=fl.Paper(
            "{FedALA}: Adaptive Local Aggregation for Personalized Federated Learning",
            (
                "Zhang, Jianqing and Hua, Yang and Wang, Hao and Song, Tao and Xue, Zhengui "
                "and Ma, Ruhui and Guan, Haibing"
            ),
            "AAAI",
            2023,
            "https://arxiv.org/abs/2212.01197",
        ),
    )

    kept = ("own.*", "mix.*", "visits")
    needs = ("outputs",)

    def __init__(
        self,
        net: nn.Module,
        *,
        top: int | Literal["all"] = 1,
        mix_lr: fl.NotNegative[float] = 1.0,
        mix_percent: Annotated[float, fl.Range("(0, 100]")] = 80.0,
        threshold: fl.NotNegative[float] = 0.1,
        window: fl.AtLeastOne = 10,
        max_init_epochs: fl.AtLeastOne = 50,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        if not (top == "all" or (isinstance(top, int) and top >= 1)):
            raise ValueError(f"top must be all or a number of layers, at least 1, got {top!r}")
        patterns = ("*",) if top == "all" else fl.last_layers(net, top)[0]
        self.top = [name for name, _ in net.named_parameters() if fl.matches(name, patterns)]
        self.mix_lr = mix_lr
        self.mix_percent = mix_percent
        self.threshold = threshold
        self.window = window
        self.max_init_epochs = max_init_epochs
        self.own = fl.frozen(net)
        parameters = dict(net.named_parameters())
        self.mix = nn.ParameterDict({_key(n): torch.ones_like(parameters[n]) for n in self.top})
        self.visits = nn.Buffer(torch.zeros((), dtype=torch.int64))

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return eta_w and s up to the authors' values."""
        return (
            fl.Dimension("mix_lr", 0.1, 1.0, log=True),
            fl.Dimension("mix_percent", choices=(20.0, 40.0, 80.0)),
        )

    @property
    def kept_later(self) -> Mapping[str, Sequence[float]]:
        """W is learned for long in a client's second round, and for one epoch in later ones."""
        return {"visits": (1, 2)}

    def plan(self) -> fl.Plan:
        """Declare learning W, mixing, training, and storing the trained network."""
        train = fl.Phase(name="local", objective=self.losses, epochs=self.epochs, trains=("net.*",))
        remember = fl.Pass(name="remember", then=self._remember)
        return [*self.adapt(), train, remember]

    def adapt(self) -> fl.Plan:
        """Declare learning W and mixing, for clients that have their own model."""
        learn = fl.Phase(
            name="mix",
            objective=self._mixing,
            epochs=self._mixing_epochs,
            until=self._settled,
            share=self.mix_percent / 100,
            drop_last=False,
            trains=("mix.*",),
            optimizer=partial(UnitIntervalSGD, lr=self.mix_lr),
        )
        return [
            learn,
            fl.Pass(name="mixed", then=self._mix, when=lambda entries, _: bool(entries["visits"])),
        ]

    def _mixing_epochs(self, entries: fl.State, info: fl.ClientInfo) -> int:
        """Return the epochs: none the first time, ``max_init_epochs`` the second, then one."""
        return (0, self.max_init_epochs, 1)[min(int(entries["visits"]), 2)]

    def _mixing(self, batch: fl.Batch) -> fl.Terms:
        """Return the cross-entropy of the mix, as a function of W alone."""
        # Changes to running statistics are discarded.
        buffers = fl.clone(fl.statistics(self.net))
        logits = functional_call(self.net, {**self._mixed_top(), **buffers}, (batch.x,))
        return self.supervised(logits, batch)

    def _mixed_top(self) -> fl.State:
        last = dict(self.own.module.named_buffers())
        received = dict(self.net.named_parameters())
        # Exactly the client's own value at 0 and the global one at 1.
        return {n: torch.lerp(last[n], received[n].detach(), self.mix[_key(n)]) for n in self.top}

    def _mix(self, totals: fl.Totals) -> fl.State:
        return {f"net.{name}": value for name, value in self._mixed_top().items()}

    def _remember(self, totals: fl.Totals) -> fl.State:
        """Return the trained network as the client's own."""
        trained = self.net.state_dict()
        last = {f"own.module.{name}": value for name, value in trained.items()}
        return {**last, "visits": self.visits + 1}

    def _settled(self, losses: Sequence[float]) -> bool:
        recent = losses[-self.window :]
        return len(losses) > self.window and float(np.std(recent)) < self.threshold


class UnitIntervalSGD(torch.optim.SGD):
    """SGD whose steps are each followed by projection onto [0, 1]."""

    def step(self, closure: Any = None) -> Any:  # noqa: ANN401
        """Take one step."""
        loss = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.clamp_(0, 1)
        return loss


def _key(name: str) -> str:
    """Return the key of a parameter's mixing weights, without dots, which would nest modules."""
    return name.replace(".", "/")
