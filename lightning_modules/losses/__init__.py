"""Loss terms: pure functions of tensors, which an objective names and adds up."""

from lightning_modules.losses.anchors import linear, model_contrastive, proximal, symmetric_kl
from lightning_modules.losses.spread import (
    EnergyForm,
    Spread,
    class_mean_alignment,
    classifier_variance,
    cross_entropy,
    feature_distillation,
    gaussian_kl,
    hyperspherical_energy,
    mean,
    monte_carlo_cross_entropy,
    variance_floor,
)

__all__ = [
    "EnergyForm",
    "Spread",
    "class_mean_alignment",
    "classifier_variance",
    "cross_entropy",
    "feature_distillation",
    "gaussian_kl",
    "hyperspherical_energy",
    "linear",
    "mean",
    "model_contrastive",
    "monte_carlo_cross_entropy",
    "proximal",
    "symmetric_kl",
    "variance_floor",
]
