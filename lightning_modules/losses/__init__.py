"""Loss terms: pure functions of tensors, which an objective names and adds up.

Terms that reduce over a batch take ``weight``: (B,), one for a real sample and zero for padding, so
that a padded batch gives the same value as the unpadded one. All terms run under
``torch.func.vmap``.
"""

from lightning_modules.losses.anchors import (
    feature_distillation,
    linear,
    model_contrastive,
    proximal,
    symmetric_kl,
)
from lightning_modules.losses.class_vectors import (
    angular,
    class_mean_alignment,
    magnitude,
    prototype_mse,
)
from lightning_modules.losses.classification import cross_entropy, monte_carlo_cross_entropy
from lightning_modules.losses.gaussian import (
    Moments,
    gaussian_kl,
    mean_field_kl,
    mean_field_kl_slopes,
)
from lightning_modules.losses.numerics import mean
from lightning_modules.losses.spread import (
    EnergyForm,
    Spread,
    classifier_variance,
    hyperspherical_energy,
    variance_floor,
)

__all__ = [
    "EnergyForm",
    "Moments",
    "Spread",
    "angular",
    "class_mean_alignment",
    "classifier_variance",
    "cross_entropy",
    "feature_distillation",
    "gaussian_kl",
    "hyperspherical_energy",
    "linear",
    "magnitude",
    "mean",
    "mean_field_kl",
    "mean_field_kl_slopes",
    "model_contrastive",
    "monte_carlo_cross_entropy",
    "prototype_mse",
    "proximal",
    "symmetric_kl",
    "variance_floor",
]
