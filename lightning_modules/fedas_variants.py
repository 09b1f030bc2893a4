"""FedAS with other kinds of alignment: during training, or to features of all clients.

"FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024, Fig. 4b.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor, nn

from lightning_modules import base as fl
from lightning_modules.fedas import LAST, FedAS, FedASServer

Manner: TypeAlias = Literal["serial", "parallel"]
Object: TypeAlias = Literal["own", "global"]


class FedASVariant(FedAS):
    """FedAS that aligns in ``parallel`` with training, or to ``global`` features, or both.

    Fig. 4b of the paper compares when (serial or parallel) and to which features (own or global) a
    client aligns the received backbone; FedAS itself is serial and own. Global features are the
    mean feature of each class under each client's trained backbone, averaged by samples over the
    last uploads of all clients; a class without a global mean keeps the client's own target. As in
    FedAS the backbone and the trace travel, and head and last backbone stay; with global features,
    class means also come down, and sums and counts of features go up.

    The paper gives no details. The weight of the alignment in the loss and this definition of
    global features are our choice.

    Args:
        net: A ``SplitNet``; its backbone gives the features (B, D).
        align_manner: ``serial`` is FedAS's phase before training; ``parallel`` adds the distance to
            the loss of every batch instead.
        align_object: ``own`` aligns to features of the client's last backbone, ``global`` to class
            means over all clients.
        align_weight: Weight of the distance in the loss, with ``parallel``.
        options: See :class:`~lightning_modules.fedas.FedAS`.

    Raises:
        ValueError: A number is out of range, ``alignment`` is off, or ``global`` features are
            requested without class means or without synchronisation, whose server stores them.
    """

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        align_manner: Manner = "parallel",
        align_object: Object = "global",
        align_weight: fl.NotNegative[float] = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(net, **options)
        if not self.alignment:
            raise ValueError("alignment: false is for FedAS: FedASVariant always aligns")
        self.align_manner: Manner = align_manner
        self.align_weight = align_weight
        self.to_all = align_object == "global"
        if self.to_all and not (self.synchronisation and self.align.target == "class_mean"):
            raise ValueError(
                "align_object: global needs synchronisation and align_target: class_mean"
            )
        if self.to_all:
            size = net.num_classes, net.features
            self.global_means = nn.Buffer(fl.unknown_prototypes(*size))
            self.feature_sums = nn.Buffer(torch.zeros(size))
            self.feature_counts = nn.Buffer(torch.zeros(net.num_classes))

    @property
    def extra(self) -> tuple[str, ...]:
        """The trace; with global features also their sums and counts for each class."""
        features = ("feature_sums", "feature_counts") if self.to_all else ()
        return (*super().extra, *features)

    @property
    def extra_within(self) -> Mapping[str, str]:
        """Counts of samples."""
        return {"feature_counts": "[0, inf)"}

    def plan(self) -> fl.Plan:
        """Declare FedAS's parts, with the alignment moved into training or given global targets."""
        parts: list[fl.Phase | fl.Pass] = []
        for part in super().plan():
            if part.name == "align" and self.align_manner == "parallel":
                continue
            if part.name == "local" and self.align_manner == "parallel":
                part = replace(cast(fl.Phase, part), objective=self._both)
            if part.name == "fisher" and self.to_all:
                sums = fl.sums_by_class(self.net.backbone, self.net.num_classes)
                parts.append(fl.Pass(name="features", statistic=sums, then=self._features))
            parts.append(part)
            if part.name == "targets" and self.to_all:
                parts.append(fl.Pass(name="global_targets", then=self._global_targets))
        return parts

    def server(self) -> fl.Server[fl.ServerState]:
        """Return FedAS's server; with global features, one that stores them."""
        if not self.to_all:
            return super().server()
        size = self.net.num_classes, self.net.features
        options = self.weighting, self.trace_normaliser, self.server_step_scale
        return FeatureServer(*options, size=size, inherits=LAST)

    def _both(self, batch: fl.Batch) -> fl.Terms:
        z = self.net.backbone(batch.x)
        distance = fl.misalignment(self, self.align, z, batch)
        return {**self.supervised(self.net.head(z), batch), "mse": self.align_weight * distance}

    def _global_targets(self, totals: fl.Totals) -> fl.State:
        values, present = fl.mask_unknown(self.global_means)
        return {"class_means": torch.where(present[:, None] > 0, values, self.class_means)}

    def _features(self, totals: fl.Totals) -> fl.State:
        return {"feature_sums": totals.sums["sums"], "feature_counts": totals.sums["counts"]}


@dataclass(frozen=True, kw_only=True)
class FeatureState(fl.ServerState):
    """The server's state, with the features of all clients.

    Attributes:
        sums: (N, C, D) feature sums of each client's last upload.
        counts: (N, C) number of samples in each sum.
    """

    sums: Tensor
    counts: Tensor


@dataclass(eq=False, kw_only=True)
class FeatureServer(FedASServer):
    """FedAS's server that also sends the mean feature of each class over all clients.

    Args:
        size: Numbers of classes and features, C and D.
    """

    size: tuple[int, int]

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> FeatureState:
        """Return the initial state, without features."""
        like = next(iter(shared.values()))
        return FeatureState(
            shared=shared,
            sums=like.new_zeros(len(clients), *self.size),
            counts=like.new_zeros(len(clients), self.size[0]),
        )

    def broadcast(self, state: fl.ServerState, client: int, round: int) -> fl.Broadcast:
        """Return the backbone and the class means; a class without samples has a row of NaN."""
        held = cast(FeatureState, state)
        sums, counts = held.sums.sum(0), held.counts.sum(0)
        means = torch.where(counts[:, None] > 0, fl.class_means(sums, counts), torch.nan)
        return replace(super().broadcast(state, client, round), extra={"global_means": means})

    def begin(self, state: fl.ServerState, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Declare the average, and the features."""
        features = fl.Uploads(shared=(), extra=("feature_*",))
        return {**super().begin(state, senders), "features": features}

    def finish(self, state: fl.ServerState, folded: fl.Folded) -> fl.ServerState:
        """Return the state with the averaged backbone and the uploaded features stored."""
        after = cast(FeatureState, super().finish(state, folded))
        sums, counts = after.sums.clone(), after.counts.clone()
        for upload in folded["features"]:
            sums[upload.client] = upload.extra["feature_sums"].to(sums)
            counts[upload.client] = upload.extra["feature_counts"].to(counts)
        return replace(after, sums=sums, counts=counts)
