"""Every batch term: padding, vmap over clients, empty steps, half precision, slopes."""

from __future__ import annotations

from itertools import product

import torch
from torch.func import grad, vmap

from lightning_modules.losses import (
    angular,
    class_mean_alignment,
    classifier_variance,
    cross_entropy,
    feature_distillation,
    hyperspherical_energy,
    kernel_discrepancy,
    kl_divergence,
    magnitude,
    mean,
    model_contrastive,
    monte_carlo_cross_entropy,
    prototype_contrast,
    prototype_mse,
    soft_cross_entropy,
    symmetric_kl,
)
from lightning_modules.steps.prototypes import class_means, class_sums
from tests.helpers.draws import batch, normal

CLASSES = 4
SIZE = 4
TABLE = normal(CLASSES, SIZE, seed=1)
PRESENT = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)


def draws(z):
    return torch.stack([z, 2 * z, z - 1])


# Every term that reduces over a batch, as a function of (z, other, y, weight); C = D = 4, so that
# features can stand for logits.
TERMS = {
    "mean": lambda z, o, y, w: mean(z.sum(-1), w),
    "cross_entropy": lambda z, o, y, w: cross_entropy(z, y, w),
    "mc_mean": lambda z, o, y, w: monte_carlo_cross_entropy(draws(z), y, w),
    "mc_sum": lambda z, o, y, w: monte_carlo_cross_entropy(draws(z), y, w, "sum"),
    "distillation": lambda z, o, y, w: feature_distillation(z, o, w),
    "distillation_sum": lambda z, o, y, w: feature_distillation(z, o, w, "sum_dim"),
    "class_mean_alignment": lambda z, o, y, w: class_mean_alignment(z, y, TABLE, w),
    "energy_inverse": lambda z, o, y, w: hyperspherical_energy(z, w),
    "energy_log": lambda z, o, y, w: hyperspherical_energy(z, w, "log"),
    "energy_chord": lambda z, o, y, w: hyperspherical_energy(z, w, "chord"),
    "energy_rbf": lambda z, o, y, w: hyperspherical_energy(z, w, "rbf"),
    "variance": lambda z, o, y, w: classifier_variance(z, w),
    "variance_unbiased": lambda z, o, y, w: classifier_variance(z, w, "var", True),
    "variance_std": lambda z, o, y, w: classifier_variance(z, w, "std", True),
    "class_sums": lambda z, o, y, w: class_means(*class_sums(z, y, CLASSES, w)).square().sum(),
    "prototype_mse": lambda z, o, y, w: prototype_mse(z, y, TABLE, PRESENT, w),
    "prototype_contrast": lambda z, o, y, w: prototype_contrast(z, y, TABLE, 0.5, w),
    "discrepancy_batch": lambda z, o, y, w: kernel_discrepancy(z, o, w, "batch"),
    "soft": lambda z, o, y, w: soft_cross_entropy(z, o, w),
    "kl": lambda z, o, y, w: kl_divergence(z, o, w),
    "discrepancy": lambda z, o, y, w: kernel_discrepancy(z, o, w),
    "angular": lambda z, o, y, w: angular(
        z, y, TABLE.to(torch.promote_types(z.dtype, torch.float32)), w
    ),
    "magnitude": lambda z, o, y, w: magnitude(z, y, TABLE, w),
    "contrastive": lambda z, o, y, w: model_contrastive(z, o, o.flip(-1), w),
    "symmetric_kl": lambda z, o, y, w: symmetric_kl(z, o, w),
}


def padded(parts, size: int, fill: float):
    """Return the batch in ``size`` rows, its own rows first, and the weight that says so."""
    samples = len(parts[0])
    rows = [torch.full((size, *p.shape[1:]), fill).to(p.dtype) for p in parts]
    for row, part in zip(rows, parts, strict=True):
        row[:samples] = part
    weight = (torch.arange(size) < samples).to(torch.float64)
    return *rows, weight


def close(name, found, expected, **tolerance):
    """Check that values are equal up to rounding; name the term where they are not."""
    torch.testing.assert_close(
        found, expected, msg=lambda message: f"{name}: {message}", **tolerance
    )


def test_padding_changes_neither_value_nor_gradient():
    for (name, term), samples, fill in product(TERMS.items(), (1, 2, 5), (0.0, 1.0)):
        z, o, y = batch(samples)
        long_z, long_o, long_y, weight = padded((z, o, y), 7, fill)
        close(name, term(long_z, long_o, long_y, weight), term(z, o, y, None))
        gradient = grad(term)(long_z, long_o, long_y, weight)
        close(name, gradient[:samples], grad(term)(z, o, y, None))
        assert not gradient[samples:].any(), name


def test_vmap_over_clients_of_unequal_size():
    """Three clients with 1, 4 and 6 samples, stacked, against each one alone."""
    clients = [batch(samples, seed) for seed, samples in enumerate((1, 4, 6))]
    stacked = [
        torch.stack(rows) for rows in zip(*(padded(c, 6, 0.5) for c in clients), strict=True)
    ]
    for name, term in TERMS.items():
        values = vmap(term)(*stacked)
        gradients = vmap(grad(term))(*stacked)
        for (z, o, y), value, gradient in zip(clients, values, gradients, strict=True):
            close(name, value, term(z, o, y, None))
            close(name, gradient[: len(z)], grad(term)(z, o, y, None))


def test_a_step_without_any_sample_is_zero_and_finite():
    """A client that has run out of batches computes it beside the others."""
    z, o, y = batch(3)
    weight = torch.zeros(3, dtype=torch.float64)
    for name, term in TERMS.items():
        # Only the magnitude is a root, of the 1e-12 that keeps its gradient finite.
        assert float(term(z, o, y, weight)) == (1e-6 if name == "magnitude" else 0.0), name
        assert torch.equal(grad(term)(z, o, y, weight), torch.zeros_like(z)), name


def test_gradient_is_that_of_the_value():
    """The slope along a direction, against a central difference of step 1e-6."""
    z, o, y = batch(6)
    direction = normal(6, SIZE, seed=9)
    h = 1e-6
    # Bandwidths that follow the batch have no gradient.
    for name in TERMS.keys() - {"energy_rbf", "discrepancy_batch"}:
        slope = (grad(TERMS[name])(z, o, y, None) * direction).sum()
        ahead, behind = (TERMS[name](z + s * h * direction, o, y, None) for s in (1, -1))
        close(name, slope, (ahead - behind) / (2 * h), rtol=1e-5, atol=1e-7)


def test_half_precision_is_computed_in_float32():
    """Under bfloat16 autocast the terms differ only by what rounding their inputs costs."""
    z, o, y = (t.bfloat16() if t.is_floating_point() else t for t in batch(6))
    # The sums and draws of the table itself would round to bfloat16.
    for name in TERMS.keys() - {"mean", "mc_mean", "mc_sum"}:
        with torch.autocast("cpu", torch.bfloat16):
            value = TERMS[name](z, o, y, None)
        expected = TERMS[name](z.double(), o.double(), y, None)
        assert value.dtype in (torch.float32, torch.float64), name
        close(name, value.double(), expected, rtol=1e-5, atol=1e-6)
