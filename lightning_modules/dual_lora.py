"""DualLoRA (FedDPA): a global and a local low-rank adapter, mixed for each test sample.

Yang, Long, Shen, Jiang and Blumenstein, "Dual-Personalizing Adapter for Federated Foundation
Models", NeurIPS 2024, arXiv 2403.19211.

Departs from the authors' code in: the gate weighs the local adapter (``gate: global`` is the test
code's); anchors are the first training samples, and not drawn anew for each test sample; a client
that sat out keeps its local adapter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from lightning_modules import base as fl


class DualLoRA(fl.ClientModule):
    """Two low-rank adapters on the same frozen layers: a global one, and one that never leaves.

    With a in [0, 1], the weight of the local adapter in all layers, an adapted layer computes ``W x
    + b + (1 - a) s B_g A_g x + a s B_l A_l x``. For a test sample a is ``gate_scale max(c, 0)``,
    where c is the mean cosine of its features with those of ``anchors`` training samples.

    FedDPA-T trains the local adapter at a = ``mix`` while the global one is constant, and the
    global one at a = 0. FedDPA-F trains the global one alone; before each test a copy of it is
    tuned, at a = 1, to be the local adapter.

    Args:
        net: A network adapted by :class:`LoRA` or by ``peft``, with a backbone and a head; changed
            in place.
        form: FedDPA-``T`` or FedDPA-``F``.
        mix: a while the local adapter is trained; the authors compare 0.3, 0.5 and 0.7.
        anchors: S, the number of training samples that a test sample is compared with, the first.
        gate_scale: The largest a.
        gate: Whose weight grows with c: the ``local`` adapter's, or the ``global`` one's as in the
            authors' test code; ``fixed`` is a = ``mix``.
        gate_features: The adapter by which features are computed, or the ``base`` network.
        clamp: Whether negative c count as zero.
        local_sees: Whether the local phase is before the global one, and sees the adapter as
            ``received``, or after it, beside the adapter as ``trained``.
        warmup: Rounds without a local phase.
        global_phase: From the second round on, train the global adapter ``alone``, or ``beside``
            the local one, at a = ``mix``.
        head: What is trained beside the adapters: ``global`` travels and is trained in the global
            phase; ``local`` stays and is trained in the local one; ``dual`` is one of each, whose
            logits are mixed.
        ft_epochs: Epochs of FedDPA-F's tuning; ``None`` means ``epochs``.
        weighting: Weights in the average; ``uniform`` is the authors'.
        options: See :class:`ClientModule`.

    Raises:
        TypeError: The network is not adapted.
        NeedError: It has no backbone or no head.
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="DualLoRA",
        family="Adapters on a frozen network",
        travels="global adapter, head",
        stays="local adapter",
        apart="a global and a local adapter, mixed for each test sample (FedDPA-T, FedDPA-F)",
        paper=fl.Paper(
            "Dual-Personalizing Adapter for Federated Foundation Models",
            "Yang, Yiyuan and Long, Guodong and Shen, Tao and Jiang, Jing and Blumenstein, Michael",
            "NeurIPS",
            2024,
            "https://arxiv.org/abs/2403.19211",
        ),
        shown=None,
    )

    vectorizable = True
    needs = ("parts", "outputs", fl.ADAPTERS)
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        form: Literal["T", "F"] = "T",
        mix: fl.Fraction = 0.5,
        anchors: fl.AtLeastOne = 5,
        gate_scale: fl.Fraction = 0.5,
        gate: Literal["local", "global", "fixed"] = "local",
        gate_features: Literal["global", "local", "base"] = "global",
        clamp: bool = True,
        local_sees: Literal["received", "trained"] = "received",
        warmup: fl.NotNegative[int] = 1,
        global_phase: Literal["alone", "beside"] = "alone",
        head: Literal["global", "dual", "local"] = "global",
        ft_epochs: fl.NotNegative[int] | None = None,
        weighting: Literal["samples", "uniform"] = "uniform",
        **options: Any,
    ) -> None:
        super().__init__(net, weighting=weighting, **options)
        self.form, self.mix, self.gate_scale, self.gate = form, float(mix), gate_scale, gate
        self.gate_features, self.clamp, self.local_sees = gate_features, clamp, local_sees
        self.warmup, self.global_phase, self.head = warmup, global_phase, head
        self.ft_epochs = self.epochs if ft_epochs is None else ft_epochs
        factors = fl.factors_of(net)
        self.share, self.seed = Share(), fl.seed_of(net)
        for place in fl.adapted_layers(factors):
            net.set_submodule(place, DualLayer(net.get_submodule(place), self.share))
        self.both = own_and_common(net)
        self.others = factors.others
        if head == "dual":
            self.own_head = copy.deepcopy(net.head)
        self.global_model = head != "local"
        self.anchors = nn.Buffer(torch.zeros(anchors, net.features))
        self.filled = nn.Buffer(torch.zeros(anchors))
        # One in a client's own model, whose adapters are mixed; zero at the start of each job.
        self.personal = nn.Buffer(torch.zeros(()))
        if form == "T":
            self.drawn = nn.Buffer(torch.zeros((), dtype=torch.int64))

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return the share of the local adapter in its training, as in the paper's ablation."""
        return (fl.Dimension("mix", choices=(0.3, 0.5, 0.7)),)

    @property
    def shared(self) -> fl.Patterns:
        """The global adapter, and the head that travels."""
        return (*self.both.values(), *(self.others if self.head != "local" else ()))

    @property
    def kept(self) -> fl.Patterns:
        """The local adapter of FedDPA-T, and the head that stays."""
        return (*((*self.both, "drawn") if self.form == "T" else ()), *self._own_head)

    @property
    def _own_head(self) -> fl.Patterns:
        return {"global": (), "dual": ("own_head.*",), "local": self.others}[self.head]

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the global adapter; a client draws its local A when it first takes part."""
        super().receive(broadcast, info)
        if self.form == "T" and not self.drawn:
            rng = fl.generator(self.seed, "own", info.client)
            entries = self.state_dict()
            for name in filter(fl.is_down, self.both):
                entries[name].copy_(fl.uniform_rows(entries[name].shape, rng))
            self.drawn.fill_(1)

    def plan(self) -> fl.Plan:
        """Declare the local and the global phase of FedDPA-T, or the global one alone."""
        alone = fl.Phase(
            name="local", objective=self._at(0.0), epochs=self.epochs, trains=self.shared
        )
        if self.form == "F":
            return [alone]
        own = self._own_phase("own", self._at(self.mix), self._from(self.warmup + 1))
        common = [alone]
        if self.global_phase == "beside":
            first = replace(alone, epochs=lambda _, info: self.epochs * (info.round <= 1))
            beside = replace(alone, name="beside", objective=self._at(self.mix))
            common = [first, replace(beside, epochs=self._from(2))]
        return [*own, *common] if self.local_sees == "received" else [*common, *own]

    def personalise(self, broadcast: fl.Broadcast | None, info: fl.ClientInfo) -> None:
        """Load the global adapter beside the local one, which is a copy of it in FedDPA-F."""
        if broadcast is not None:
            super().receive(broadcast, info)
        if self.form == "F":
            entries = self.state_dict()
            fl.assign(self, {own: entries[common] for own, common in self.both.items()})
        self.personal.fill_(1)

    def adapt(self) -> fl.Plan:
        """Declare FedDPA-F's tuning of the local adapter, and the features of the anchors."""
        tune = self._own_phase("tune", self._at(1.0), self.ft_epochs)
        look = [fl.Pass(name="anchors", subset=self._first, collect=self._look, then=self._hold)]
        return [*(tune if self.form == "F" else ()), *(look if self.gate != "fixed" else ())]

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits, with the adapters mixed for each sample."""
        return self._logits(x, self.personal * self.weight(x))

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return the loss of the global adapter alone."""
        return self._at(0.0)(batch)

    def weight(self, x: Tensor) -> Tensor:
        """Return a, the (B,) weights of the local adapter, of (B, ...) inputs."""
        if self.gate == "fixed":
            return self.anchors.new_full((len(x),), self.mix)
        near = F.cosine_similarity(self._features(x)[:, None], self.anchors[None], dim=-1)
        c = (near * self.filled).sum(1) / self.filled.sum().clamp_min(1)
        a = self.gate_scale * (c.clamp_min(0) if self.clamp else c)
        return 1 - a if self.gate == "global" else a

    def _features(self, x: Tensor) -> Tensor:
        """Return the (B, D) inputs of the head, by which test samples are compared."""
        of = {"global": 0.0, "local": 1.0, "base": None}[self.gate_features]
        with self.share.set(of):
            z: Tensor = self.net.backbone(x)
        return z

    def _logits(self, x: Tensor, a: Tensor | float) -> Tensor:
        with self.share.set(a):
            z = self.net.backbone(x)
        logits: Tensor = self.net.head(z)
        return mixed(logits, self.own_head(z), a) if self.head == "dual" else logits

    def _at(self, a: float) -> Callable[[fl.Batch], fl.Terms]:
        """Return the objective of cross-entropy at one weight of the local adapter."""
        return lambda batch: self.supervised(self._logits(batch.x, a), batch)

    def _from(self, first: int) -> fl.Count:
        return lambda _, info: self.epochs if info.round >= first else 0

    def _own_phase(
        self, name: str, objective: Callable[[fl.Batch], fl.Terms], epochs: fl.Count
    ) -> list[fl.Phase]:
        """Return a phase that trains the local adapter and the client's own head, if any."""
        trains = (*self.both, *self._own_head)
        phase = fl.Phase(name=name, objective=objective, epochs=epochs, trains=trains)
        return [phase] if trains else []

    def _first(self, state: fl.State, info: fl.ClientInfo) -> Tensor:
        return torch.arange(min(len(self.anchors), info.samples))

    def _look(self, batch: fl.Batch) -> fl.State:
        with torch.no_grad():
            return {"z": self._features(batch.x)}

    def _hold(self, totals: fl.Totals) -> fl.State:
        """Store the anchors' features; a client with fewer samples has fewer anchors."""
        z = totals.rows["z"]
        anchors, filled = torch.zeros_like(self.anchors), torch.zeros_like(self.filled)
        anchors[: len(z)], filled[: len(z)] = z, 1
        return {"anchors": anchors, "filled": filled}


class Share:
    """The weight of the local adapter in all layers of a network.

    Attributes:
        value: a, a number or (B,) one for each sample; ``None`` switches both adapters off.
    """

    value: float | Tensor | None = 0.0

    @contextmanager
    def set(self, value: float | Tensor | None) -> Iterator[None]:
        """Set the weight inside this scope."""
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before


class DualLayer(nn.Module):
    """An adapted layer with a second pair of factors.

    Args:
        layer: The layer, whose own factors are the global ones.
        share: The weight of the second pair, which starts as a copy.
    """

    def __init__(self, layer: nn.Module, share: Share) -> None:
        super().__init__()
        self.layer, self.share = layer, share
        # Names of entries have no dots, but those of peft's parameters have.
        self.names = {n.replace(".", "-"): n for n, _ in layer.named_parameters()}
        self.own = nn.ParameterDict(
            {key: layer.get_parameter(name).detach().clone() for key, name in self.names.items()}
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs with both products, weighted; the frozen weights count once."""
        a = self.share.value
        if isinstance(a, float) and a == 0:
            return cast(Tensor, self.layer(x))
        own = {
            name: torch.zeros_like(self.own[key]) if a is None else self.own[key]
            for key, name in self.names.items()
        }
        outputs: Tensor = functional_call(self.layer, own, (x,))
        if a is None or (isinstance(a, float) and a == 1):
            return outputs
        return mixed(self.layer(x), outputs, a)


def mixed(common: Tensor, own: Tensor, a: Tensor | float) -> Tensor:
    """Return ``(1 - a) common + a own`` of (B, ...) tensors, or of windows of B samples."""
    if isinstance(a, float):
        return torch.lerp(common, own, a)
    a = a.to(own.dtype).repeat_interleave(len(own) // len(a))
    return torch.lerp(common, own, a.view(-1, *[1] * (own.dim() - 1)))


def own_and_common(net: nn.Module) -> dict[str, str]:
    """Return the names of the local factors in a client's ``net``, each with its global one."""
    return {
        f"net.{place}.own.{key}": f"net.{place}.layer.{name}"
        for place, layer in net.named_modules()
        if isinstance(layer, DualLayer)
        for key, name in layer.names.items()
    }
