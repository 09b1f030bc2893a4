"""FedAS's parameter alignment: fit a received backbone to features of the client's last one.

"FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024, Eqs. 2-4 and the last
paragraph of section 3.2, which adds it to any method.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from lightning_modules.layers import Frozen
from lightning_modules.losses import class_mean_alignment, feature_distillation
from lightning_modules.nets import SplitNet
from lightning_modules.steps.prototypes import means_pass
from pfl import method as fl

AlignTarget: TypeAlias = Literal["class_mean", "per_sample"]


class Aligned(Protocol):
    """The attributes of a module that alignment uses.

    Attributes:
        net: Network whose backbone is aligned.
        previous: The client's last trained backbone, which stays with the client.
    """

    net: SplitNet
    previous: Frozen

    @property
    def class_means(self) -> Tensor:
        """(C, D) buffer, used with ``class_mean`` targets."""


@dataclass(frozen=True)
class Alignment:
    """The ``align_*`` options of a method.

    Args:
        target: ``class_mean`` pulls each feature towards the mean of its class, Eqs. 2-4 as
            released: ``sum_c 1/(n_c D) sum_{j in c} ||f(a, x_j) - p_c||^2`` over the classes c of a
            batch. ``per_sample`` pulls it towards the last backbone's feature of the same sample,
            Eqs. 2-4 up to the divisor, which they do not print: ``1/(B D) sum_j ||f(a, x_j) -
            h_j||^2``.
        lr: Learning rate of plain SGD.
        epochs: Number of epochs.
        batch: Batch size, in samples.

    Raises:
        ValueError: A number is out of range, or the target is unknown.
    """

    target: AlignTarget
    lr: fl.Positive[float]
    epochs: fl.NotNegative[int]
    batch: fl.AtLeastOne

    def __post_init__(self) -> None:
        fl.check_arguments(self)


def alignment_parts(module: Aligned, align: Alignment) -> list[fl.Phase | fl.Pass]:
    """Return the parts of a plan that align the backbone; only its parameters change."""

    def objective(batch: fl.Batch) -> fl.Terms:
        z = module.net.backbone(batch.x)
        return {"mse": misalignment(module, align, z, batch)}

    phase = fl.Phase(
        name="align",
        objective=objective,
        epochs=align.epochs,
        batch_size=align.batch,
        trains=("net.backbone.*",),
        # The alignment changes parameters only, not the statistics of batch norms.
        evals=("net.backbone",),
        optimizer=partial(torch.optim.SGD, lr=align.lr),
    )
    if align.target == "per_sample":
        return [phase]
    classes = module.net.num_classes
    return [means_pass("targets", "class_means", module.previous, classes), phase]


def misalignment(module: Aligned, align: Alignment, z: Tensor, batch: fl.Batch) -> Tensor:
    """Compute the distance of (B, D) features from their targets; see :class:`Alignment`."""
    if align.target == "class_mean":
        return class_mean_alignment(z, batch.y, module.class_means, batch.weight)
    with torch.no_grad():
        last = module.previous(batch.x)
    return feature_distillation(z, last, batch.weight)
