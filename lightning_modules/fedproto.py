"""FedProto: class prototypes travel, models stay.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022, arXiv
2105.00243; the authors' released code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lightning_modules import base as fl


class FedProto(fl.ClientModule):
    """Private networks whose features are pulled towards shared class prototypes.

    A prototype is the mean feature of a class. Each client trains its own network on the
    cross-entropy plus lambda times the distance of features from the global prototype of their
    class. The global prototypes come down, and the client's prototypes of its own classes go up;
    the whole network stays. A client is tested by the nearest prototype; before the first
    prototypes exist, by its head.

    Args:
        net: A ``SplitNet``. Clients' backbones may only differ if their number of features D is the
            same.
        prototype_weight: lambda, the weight of the distance from the global prototypes. The authors
            use 1 for MNIST and FEMNIST, 0.1 for CIFAR-10.
        weighting: ``uniform`` averages the prototypes of a class equally over the clients that have
            it (all code); ``samples`` weights them by the clients' samples of the class (what the
            paper intends).
        options: See :class:`ClientModule`.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: ``prototype_weight`` is negative.
    """

    record = fl.MethodRecord(
        name="FedProto",
        family="Prototypes and distributions",
        travels="prototypes",
        stays="network",
        apart="prototypes instead of weights",
        paper=fl.Paper(
            "{FedProto}: Federated Prototype Learning across Heterogeneous Clients",
            (
                "Tan, Yue and Long, Guodong and Liu, Lu and Zhou, Tianyi and Lu, Qinghua and "
                "Jiang, Jing and Zhang, Chengqi"
            ),
            "AAAI",
            2022,
            "https://arxiv.org/abs/2105.00243",
        ),
    )

    shared = ("prototypes",)
    kept = ("net.*",)
    extra: tuple[str, ...] = ("classes", "means", "counts")
    global_model = False
    vectorizable = True
    needs = ("classes", "parts", "outputs")
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        prototype_weight: fl.NotNegative[float] = 1.0,
        weighting: Literal["samples", "uniform"] = "uniform",
        **options: Any,
    ) -> None:
        super().__init__(net, weighting=weighting, **options)
        self.prototype_weight = prototype_weight
        size = net.num_classes, net.features
        self.prototypes = nn.Buffer(fl.unknown_prototypes(*size))
        self.means = nn.Buffer(torch.zeros(size))
        self.counts = nn.Buffer(torch.ones(net.num_classes))

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return lambda between the authors' two values."""
        return (fl.Dimension("prototype_weight", 0.1, 1.0, log=True),)

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the global prototypes, and store the client's number of samples of each class."""
        super().receive(broadcast, info)
        self.counts.copy_(info.class_counts)

    @property
    def extra_within(self) -> Mapping[str, str]:
        """Classes of the task, and counts."""
        return {"classes": f"[0, {self.net.num_classes - 1}]", "counts": "[0, inf)"}

    def plan(self) -> fl.Plan:
        """Declare training, then a pass that computes the client's own prototypes."""
        return [
            fl.Phase(name="local", objective=self.losses, epochs=self.epochs),
            fl.means_pass("prototypes", "means", self.net.backbone, self.net.num_classes),
        ]

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return ``ce`` and the weighted distance from the global prototypes."""
        z = self.net.backbone(batch.x)
        values, present = fl.mask_unknown(self.prototypes)
        distance = fl.prototype_mse(z, batch.y, values, present, batch.weight)
        return {
            **self.supervised(self.net.head(z), batch),
            "prototype": self.prototype_weight * distance,
        }

    def upload(self, info: fl.ClientInfo) -> fl.Upload:
        """Return one row for each of the client's classes: C_i (D + 1) numbers, no parameters.

        With ``weighting: samples`` their counts are sent as well.
        """
        sent = fl.means_upload(self.means, info)
        if self.weighting == "samples":
            classes = sent.extra["classes"].long()
            sent.extra["counts"] = self.counts[classes.to(self.counts.device)]
        return sent

    def server(self) -> fl.Server[fl.ServerState]:
        """Return a server that averages prototypes class by class."""
        return FedProtoServer(self.weighting)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits: the negative distances from the prototypes, or the head's logits.

        Classes without a prototype rank behind all others.
        """
        z = self.net.backbone(x)
        values, present = fl.mask_unknown(self.prototypes)
        near = -torch.cdist(z, values.to(z.dtype))
        last = near.amin(-1, keepdim=True) - 1
        near = torch.where(present > 0, near, last)
        logits: Tensor = torch.where(present.any(), near, self.net.head(z))
        return logits


class FedProtoServer(fl.Server[fl.ServerState]):
    """A server that averages each class's prototypes over the clients that have the class.

    Classes without an upload keep their prototype.
    """

    reports: ClassVar = {}

    def begin(self, state: fl.ServerState, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Declare the mean of each class."""
        previous = state.shared["prototypes"]

        def table(upload: fl.Upload) -> tuple[Tensor, Tensor]:
            rows = upload.extra["classes"].long().to(previous.device)
            ones = torch.ones(len(rows), device=previous.device)
            weight = upload.extra.get("counts", ones).to(previous)
            means = torch.zeros_like(previous).index_copy(0, rows, upload.extra["means"])
            return means, previous.new_zeros(len(previous)).index_copy(0, rows, weight)

        return {"prototypes": fl.ClassMeans(previous, table)}

    def finish(self, state: fl.ServerState, folded: fl.Folded) -> fl.ServerState:
        """Return the state with the new prototypes."""
        prototypes = folded["prototypes"]
        _, present = fl.mask_unknown(prototypes)
        return replace(
            state, shared={"prototypes": prototypes}, report={"known_classes": float(present.sum())}
        )
