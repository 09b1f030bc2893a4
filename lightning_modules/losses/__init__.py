"""Loss terms: pure functions of tensors, which an objective names and adds up.

Terms that reduce over a batch take ``weight``: (B,), one for a real sample and zero for padding, so
that a padded batch gives the same value as the unpadded one. All terms run under
``torch.func.vmap``.
"""

from lightning_modules.losses.anchors import Widths as Widths
from lightning_modules.losses.anchors import feature_distillation as feature_distillation
from lightning_modules.losses.anchors import kernel_discrepancy as kernel_discrepancy
from lightning_modules.losses.anchors import kl_divergence as kl_divergence
from lightning_modules.losses.anchors import linear as linear
from lightning_modules.losses.anchors import model_contrastive as model_contrastive
from lightning_modules.losses.anchors import proximal as proximal
from lightning_modules.losses.anchors import soft_cross_entropy as soft_cross_entropy
from lightning_modules.losses.anchors import symmetric_kl as symmetric_kl
from lightning_modules.losses.class_vectors import angular as angular
from lightning_modules.losses.class_vectors import class_mean_alignment as class_mean_alignment
from lightning_modules.losses.class_vectors import magnitude as magnitude
from lightning_modules.losses.class_vectors import prototype_contrast as prototype_contrast
from lightning_modules.losses.class_vectors import prototype_mse as prototype_mse
from lightning_modules.losses.classification import cross_entropy as cross_entropy
from lightning_modules.losses.classification import (
    monte_carlo_cross_entropy as monte_carlo_cross_entropy,
)
from lightning_modules.losses.gaussian import Moments as Moments
from lightning_modules.losses.gaussian import gaussian_kl as gaussian_kl
from lightning_modules.losses.gaussian import mean_field_kl as mean_field_kl
from lightning_modules.losses.gaussian import mean_field_kl_slopes as mean_field_kl_slopes
from lightning_modules.losses.numerics import mean as mean
from lightning_modules.losses.spread import EnergyForm as EnergyForm
from lightning_modules.losses.spread import SpreadStatistic as SpreadStatistic
from lightning_modules.losses.spread import classifier_variance as classifier_variance
from lightning_modules.losses.spread import hyperspherical_energy as hyperspherical_energy
from lightning_modules.losses.spread import variance_floor as variance_floor
