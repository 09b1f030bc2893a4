"""FedAS: a shared backbone, aligned by each client as it arrives and averaged by Fisher traces.

"FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024; released code
``FedAS``, a fork of PFLlib. What travels: the backbone both ways, and up one number, the trace of
the Fisher information. What stays: the head, and the backbone as the client last left it; the two
are its personalised model.

Two additions to FedPer:

- PA, parameter alignment (Eqs. 2-4): before training, the received backbone is drawn to the
  features that the client's own last backbone gives on its data;
- CS, client synchronisation (Eqs. 5-8): the server weighs uploads by their Fisher traces.

Defaults follow the released code where it and the paper differ, except that every client aligns a
private copy of the received backbone (the released code aligns the server's own tensors in place,
so that each client of a round receives what the one before it has aligned) and that no sample is
left out of the class means or the trace. Every other difference is a switch, named below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from lightning_modules.base import ClientModule
from lightning_modules.layers import frozen
from lightning_modules.nets import SplitNet
from lightning_modules.steps.alignment import (
    Alignment,
    AlignTarget,
    alignment_parts,
    remember_backbone,
)
from lightning_modules.steps.fisher import FisherEstimator, fisher_share, fisher_trace
from pfl.core.server import Server, ServerState, weight_report
from pfl.core.state import add, assign, subtract
from pfl.core.types import Batch, Broadcast, ClientInfo, Pass, Phase, Plan, State, Totals, Upload

Normaliser: TypeAlias = Literal["sum", "softmax", "min_max"]
StepScale: TypeAlias = Literal["one", "one_over_m"]


class FedAS(ClientModule):
    """The backbone travels, aligned on arrival; head and last own backbone stay.

    Without ``alignment`` and ``synchronisation`` it trains as FedPer does. Before any broadcast,
    under a plain Trainer, it is cross-entropy on the whole network.

    Args:
        net: Its backbone gives the features (B, D).
        alignment: PA, the phase that draws the received backbone to the client's last one.
        align_target: ``class_mean`` draws each feature to the mean of its class, Eqs. 2-4 as
            released; ``per_sample`` to the last backbone's feature of the same sample, as printed.
            See :class:`~lightning_modules.steps.alignment.Alignment`.
        align_lr: Learning rate of that phase, plain SGD.
        align_epochs: Its length in walks over the data.
        align_batch: Its batch size, in samples.
        synchronisation: CS, weights ``trace_i / sum_k trace_k`` (Eq. 7). Without it the server
            weighs by samples (``weighting``), and no trace is computed or sent.
        fisher_estimator: Of the trace, after training, in eval mode, over all parameters and all
            samples, in batches of the data module's size; see
            :func:`~lightning_modules.steps.fisher.fisher_trace`. ``batch_sum`` is the released
            code's, ``full_data`` Eqs. 5-6 as printed.
        trace_normaliser: Makes weights of traces: ``sum`` is Eq. 7; ``softmax`` and ``min_max``,
            ``(trace - min) / (max - min)`` divided by its sum, are the paper's comparisons.
        server_step_scale: c in ``global + c sum_i weight_i (base_i - global)``: ``one`` (released
            code), or ``one_over_m``, one over the number of uploads (Eq. 8 as printed).
        buffers: As in :class:`ClientModule`; the released code moves parameters only.
        options: See :class:`ClientModule`. ``lr_decay`` and ``lr_schedule`` also apply to
            the alignment.

    Raises:
        ValueError: A number is out of its range.
    """

    shared = ("net.backbone.*",)
    kept = ("net.head.*", "previous.*")
    evaluate_at = "post_local"
    vectorizable = True
    net: SplitNet
    trace: Tensor
    class_means: Tensor

    def __init__(
        self,
        net: SplitNet,
        *,
        alignment: bool = True,
        align_target: AlignTarget = "class_mean",
        align_lr: float = 0.01,
        align_epochs: int = 1,
        align_batch: int = 16,
        synchronisation: bool = True,
        fisher_estimator: FisherEstimator = "batch_sum",
        trace_normaliser: Normaliser = "sum",
        server_step_scale: StepScale = "one",
        buffers: Literal["average", "local"] = "local",
        **options: Any,
    ) -> None:
        super().__init__(net, buffers=buffers, **options)
        self.alignment = alignment
        self.align = Alignment(align_target, align_lr, align_epochs, align_batch)
        self.synchronisation = synchronisation
        self.fisher_estimator = fisher_estimator
        self.trace_normaliser: Normaliser = trace_normaliser
        self.server_step_scale: StepScale = server_step_scale
        self.previous = frozen(net.backbone)
        if synchronisation:
            self.register_buffer("trace", torch.zeros(()))
        if alignment and align_target == "class_mean":
            means = torch.zeros(net.num_classes, net.features)
            self.register_buffer("class_means", means)

    @property
    def extra(self) -> tuple[str, ...]:
        """The trace, with ``synchronisation``."""
        return ("trace",) if self.synchronisation else ()

    @property
    def needs_classes(self) -> bool:
        """With alignment to the means of classes."""
        return self.alignment and self.align.target == "class_mean"

    def plan(self) -> Plan:
        """Declare alignment, training, the trace, and remembering the backbone."""
        parts: list[Phase | Pass] = []
        if self.alignment:
            parts += alignment_parts(self, self.align)
        parts.append(Phase(name="local", objective=self.losses, epochs=self.epochs))
        if self.synchronisation:
            parts.append(Pass(name="fisher", statistic=self._fisher, then=self._trace))
        parts.append(remember_backbone(self))
        return parts

    def upload(self, info: ClientInfo) -> Upload:
        """Return the backbone, and the trace."""
        extra = {"trace": self.trace.clone()} if self.synchronisation else {}
        return replace(super().upload(info), extra=extra)

    def personalise(self, broadcast: Broadcast | None, info: ClientInfo) -> None:
        """Become the client's own last backbone and head; the broadcast plays no part."""
        assign(self.net.backbone, self.previous.module.state_dict())

    def server(self) -> Server[ServerState]:
        """Return a server that weighs by traces, unless ``synchronisation`` is off."""
        if not self.synchronisation:
            return super().server()
        return FedASServer(self.weighting, self.trace_normaliser, self.server_step_scale)

    def _fisher(self, batch: Batch) -> State:
        return fisher_share(self.net, batch, self.fisher_estimator, self.task.loss)

    def _trace(self, totals: Totals) -> State:
        return {"trace": fisher_trace(totals.sums, self.fisher_estimator)}


class FedASServer(Server[ServerState]):
    """A server that weighs uploads by their Fisher traces (Eqs. 7-8).

    Where the traces give no weights, because all are zero, or one is not a finite number, or
    ``min_max`` finds them all equal, the round falls back on ``weighting``. Reports
    ``trace_fallback``, 1 in such a round and else 0, and each client's ``trace``.

    Args:
        weighting: What a round falls back on.
        normaliser: See :class:`FedAS`, ``trace_normaliser``.
        step_scale: See :class:`FedAS`, ``server_step_scale``.
    """

    reports: ClassVar = {**Server.reports, "trace": "trace of Fisher information"}

    def __init__(
        self,
        weighting: Literal["samples", "uniform"] = "samples",
        normaliser: Normaliser = "sum",
        step_scale: StepScale = "one",
    ) -> None:
        super().__init__(weighting)
        self.normaliser = normaliser
        self.step_scale = step_scale

    def weights(self, uploads: Sequence[Upload]) -> Tensor:
        """Return (len(uploads),) float64 weights that sum to one."""
        scores = self._scores(_traces(uploads))
        return super().weights(uploads) if scores is None else scores / scores.sum()

    def aggregate(self, state: ServerState, uploads: Sequence[Upload]) -> ServerState:
        """Return the state after a round; see :meth:`Server.aggregate`."""
        after = super().aggregate(state, uploads)
        if not uploads:
            return after
        traces = _traces(uploads)
        if self.step_scale == "one_over_m":
            step = subtract(after.shared, state.shared)
            after = replace(after, shared=add(state.shared, step, scale=1 / len(uploads)))
        return replace(
            after,
            report={"trace_fallback": float(self._scores(traces) is None)},
            client_report={**(after.client_report or {}), "trace": weight_report(uploads, traces)},
        )

    def _scores(self, traces: Tensor) -> Tensor | None:
        """Return (m,) unnormalised weights, or ``None`` if the traces do not tell."""
        scores = traces
        if self.normaliser == "softmax":
            scores = traces.softmax(0)
        elif self.normaliser == "min_max":
            scores = (traces - traces.min()) / (traces.max() - traces.min())
        told = traces.isfinite().all() and traces.any() and scores.isfinite().all()
        return scores if told else None


def _traces(uploads: Sequence[Upload]) -> Tensor:
    """Return (len(uploads),) traces in float64."""
    return torch.stack([upload.extra["trace"].cpu().double() for upload in uploads])
