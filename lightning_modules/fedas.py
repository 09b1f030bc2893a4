"""FedAS: a shared backbone that each client aligns on arrival, averaged by Fisher traces.

"FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024; released code
``FedAS``, a fork of PFLlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from lightning_modules import base as fl
from lightning_modules.steps.fisher import FisherEstimator, fisher_share, fisher_trace

Normaliser: TypeAlias = Literal["sum", "softmax", "min_max"]
# A newcomer takes the received backbone as its last one, as it has trained none.
LAST = ("net.backbone.", "previous.module.")
StepScale: TypeAlias = Literal["one", "one_over_m"]


class FedAS(fl.ClientModule):
    """FedPer with alignment of the received backbone and averaging by Fisher traces.

    FedAS adds two steps to FedPer:

    - PA, parameter alignment (Eqs. 2-4): before training, the received backbone is trained to
      reproduce the features that the client's own last backbone gives on its data.
    - CS, client synchronisation (Eqs. 5-8): the server weights each upload by the trace of the
      client's Fisher information.

    The backbone travels both ways, and each client also uploads one number, its trace. The head and
    the client's last trained backbone stay, and are the model that is tested. Without ``alignment``
    and ``synchronisation`` training is that of FedPer. Before any broadcast, under a plain Trainer,
    the objective is the cross-entropy of the whole network.

    Where the released code differs from the paper, defaults follow the code, and options give the
    paper's version. There are two exceptions: each client aligns a copy of the received backbone
    (the released code aligns the server's own tensors, so each client of a round receives the
    backbone that the previous one aligned), and class means and trace use all samples.

    Args:
        net: A ``SplitNet``; its backbone gives the features (B, D).
        alignment: Whether to run PA, the alignment of the received backbone before training.
        align_target: ``class_mean`` pulls each feature towards the mean of its class under the last
            backbone (Eqs. 2-4 as released); ``per_sample`` towards the last backbone's feature of
            the same sample (Eqs. 2-4). See :class:`~lightning_modules.steps.alignment.Alignment`.
        align_lr: Learning rate of the alignment, which uses plain SGD.
        align_epochs: Epochs of the alignment.
        align_batch: Batch size of the alignment, in samples.
        synchronisation: Whether to run CS, with weights ``trace_i / sum_k trace_k`` (Eq. 7).
            Without it no trace is computed or sent, and the server uses ``weighting``.
        fisher_estimator: Estimator of the trace: ``batch_sum`` as in the released code,
            ``full_data`` is Eqs. 5-6 as printed. The trace is taken after training, in eval mode,
            over all parameters and all samples, in batches of the data module's size; see
            :func:`~lightning_modules.steps.fisher.fisher_trace`.
        trace_normaliser: How traces become weights: ``sum`` is Eq. 7; ``softmax`` and ``min_max``,
            which is ``(trace - min) / (max - min)`` divided by its sum, are the paper's
            comparisons.
        server_step_scale: c in ``global + c sum_i weight_i (base_i - global)``: ``one``, as in the
            released code; ``one_over_m`` is one over the number of uploads (Eq. 8 as printed).
        buffers: As in :class:`ClientModule`; the released code sends parameters only.
        options: See :class:`ClientModule`. ``lr_decay`` and ``lr_schedule`` also apply to the
            alignment.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="FedAS",
        family="A part of the network stays with the client",
        travels="backbone, Fisher trace",
        stays="head, last backbone",
        apart=(
            "aligns the received backbone to the client's last one; the server weighs "
            "uploads by Fisher traces"
        ),
        paper=fl.Paper(
            "{FedAS}: Bridging Inconsistency in Personalized Federated Learning",
            "Yang, Xiyuan and Huang, Wenke and Ye, Mang",
            "CVPR",
            2024,
            (
                ""
                "https://openaccess.thecvf.com/content/CVPR2024/html/Yang_FedAS_Bridging_Inconsistency_in_Personalized_Federated_Learning_CVPR_2024_paper.html"
            ),
            pages="11986-11995",
        ),
    )

    needs: tuple[str | fl.Need, ...] = ("features", "parts", "outputs")
    shared = ("net.backbone.*",)
    kept: tuple[str, ...] = ("net.head.*", "previous.*")
    evaluate_at = "post_local"
    vectorizable = True
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        alignment: bool = True,
        align_target: fl.AlignTarget = "class_mean",
        align_lr: fl.Positive[float] = 0.01,
        align_epochs: fl.NotNegative[int] = 1,
        align_batch: fl.AtLeastOne = 16,
        synchronisation: bool = True,
        fisher_estimator: FisherEstimator = "batch_sum",
        trace_normaliser: Normaliser = "sum",
        server_step_scale: StepScale = "one",
        buffers: Literal["average", "local"] = "local",
        **options: Any,
    ) -> None:
        super().__init__(net, buffers=buffers, **options)
        self.alignment = alignment
        self.align = fl.Alignment(align_target, align_lr, align_epochs, align_batch)
        self.synchronisation = synchronisation
        self.fisher_estimator = fisher_estimator
        self.trace_normaliser: Normaliser = trace_normaliser
        self.server_step_scale: StepScale = server_step_scale
        self.previous = fl.frozen(net.backbone)
        if synchronisation:
            self.trace = nn.Buffer(torch.zeros(()))
        if alignment and align_target == "class_mean":
            self.needs = (*self.needs, "classes")
            self.class_means = nn.Buffer(torch.zeros(net.num_classes, net.features))

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return rate and epochs of the alignment, around the code's."""
        return (
            fl.Dimension("align_lr", 0.001, 0.1, log=True),
            fl.Dimension("align_epochs", choices=(1, 5)),
        )

    @property
    def extra(self) -> tuple[str, ...]:
        """The trace, if ``synchronisation`` is on."""
        return ("trace",) if self.synchronisation else ()

    @property
    def extra_nonfinite(self) -> tuple[str, ...]:
        """The trace: a round with one that is not finite falls back to ``weighting``."""
        return ("trace",)

    def plan(self) -> fl.Plan:
        """Declare the alignment, training, the trace, and storing the backbone."""
        parts: list[fl.Phase | fl.Pass] = []
        if self.alignment:
            parts += fl.alignment_parts(self, self.align)
        parts.append(fl.Phase(name="local", objective=self.losses, epochs=self.epochs))
        if self.synchronisation:
            parts.append(fl.Pass(name="fisher", statistic=self._fisher, then=self._trace))
        parts.append(fl.remember(self.net.backbone, "previous"))
        return parts

    def personalise(self, broadcast: fl.Broadcast | None, info: fl.ClientInfo) -> None:
        """Load the client's last backbone and its head; the broadcast is not used."""
        fl.assign(self.net.backbone, self.previous.module.state_dict())

    def server(self) -> fl.Server[fl.ServerState]:
        """Return a server that weights uploads by traces, unless ``synchronisation`` is off."""
        if not self.synchronisation:
            return fl.Server(self.weighting, inherits=LAST)
        options = self.weighting, self.trace_normaliser, self.server_step_scale
        return FedASServer(*options, inherits=LAST)

    def _fisher(self, batch: fl.Batch) -> fl.State:
        return fisher_share(self.net, batch, self.fisher_estimator, self.task.loss)

    def _trace(self, totals: fl.Totals) -> fl.State:
        return {"trace": fisher_trace(totals.sums, self.fisher_estimator)}


@dataclass(eq=False)
class FedASServer(fl.Server[fl.ServerState]):
    """A server that weights uploads by their Fisher traces (Eqs. 7-8).

    If all traces are zero, one is not finite, or all are equal with ``min_max``, the round falls
    back to ``weighting``. The server reports ``trace_fallback``, which is 1 in such a round and 0
    otherwise, and each client's ``trace``.

    Args:
        weighting: Weighting to which a round falls back.
        normaliser: See :class:`FedAS`, ``trace_normaliser``.
        step_scale: See :class:`FedAS`, ``server_step_scale``.
    """

    reports: ClassVar = {**fl.Server.reports, "trace": "trace of Fisher information"}
    normaliser: Normaliser = "sum"
    step_scale: StepScale = "one"

    def begin(self, state: fl.ServerState, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Declare the mean by traces, and the one to which a round falls back."""
        folds = super().begin(state, senders)
        # Only a sum over all traces divides them, so the others hold all uploads.
        traced = fl.Mean(_trace) if self.normaliser == "sum" else fl.Uploads(extra=())
        return {**folds, "traced": traced}

    def finish(self, state: fl.ServerState, folded: fl.Folded) -> fl.ServerState:
        """Return the state with the averaged values; see :meth:`Server.finish`."""
        after = super().finish(state, folded)
        scores = None if folded.private else self._scores(folded.uploads)
        mean, report = after.shared, after.client_report
        if scores is not None:
            shares, mean = scores / scores.sum(), folded["traced"]
            if self.normaliser != "sum":
                mean = fl.weighted_mean([upload.shared for upload in mean], shares)
            report = self.reported(folded, weight=shares)
        if self.step_scale == "one_over_m":
            mean = fl.stepped(state.shared, mean, 1 / folded.count)
        told = None if folded.private else {"trace_fallback": float(scores is None)}
        return replace(after, shared=mean, report=told, client_report=report)

    def _scores(self, uploads: Sequence[fl.Upload]) -> Tensor | None:
        """Return (m,) unnormalised weights, or ``None`` if the traces give none."""
        scores = traces = fl.received(uploads, "trace").cpu().double()
        if self.normaliser == "softmax":
            scores = traces.softmax(0)
        elif self.normaliser == "min_max":
            scores = (traces - traces.min()) / (traces.max() - traces.min())
        told = traces.isfinite().all() and traces.any() and scores.isfinite().all()
        return scores if told else None


def _trace(upload: fl.Upload) -> float:
    return float(upload.extra["trace"])
