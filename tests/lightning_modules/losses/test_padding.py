"""Every batch term: padding, vmap over clients, empty steps, half precision, slopes."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, vmap

from lightning_modules.losses import (
    class_mean_alignment,
    classifier_variance,
    cross_entropy,
    feature_distillation,
    hyperspherical_energy,
    mean,
    model_contrastive,
    monte_carlo_cross_entropy,
    symmetric_kl,
)
from lightning_modules.steps.prototypes import (
    angular,
    class_means,
    class_sums,
    magnitude,
    prototype_mse,
)
from tests.draws import batch, normal

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
    "angular": lambda z, o, y, w: angular(
        z, y, TABLE.to(torch.promote_types(z.dtype, torch.float32)), w
    ),
    "magnitude": lambda z, o, y, w: magnitude(z, y, TABLE, w),
    "magnitude_mean": lambda z, o, y, w: magnitude(z, y, TABLE, w, "sample_mean"),
    "contrastive": lambda z, o, y, w: model_contrastive(z, o, o.flip(-1), w),
    "symmetric_kl": lambda z, o, y, w: symmetric_kl(z, o, w),
}


def padded(parts, size: int, fill: float):
    """The batch in ``size`` rows, its own rows first, and the weight that says so."""
    samples = len(parts[0])
    rows = [torch.full((size, *p.shape[1:]), fill).to(p.dtype) for p in parts]
    for row, part in zip(rows, parts, strict=True):
        row[:samples] = part
    weight = (torch.arange(size) < samples).to(torch.float64)
    return *rows, weight


@pytest.mark.parametrize("fill", [0.0, 1.0])
@pytest.mark.parametrize("samples", [1, 2, 5])
@pytest.mark.parametrize("name", TERMS)
def test_padding_changes_neither_value_nor_gradient(name, samples, fill):
    term = TERMS[name]
    z, o, y = batch(samples)
    long_z, long_o, long_y, weight = padded((z, o, y), 7, fill)
    torch.testing.assert_close(term(long_z, long_o, long_y, weight), term(z, o, y, None))
    gradient = grad(term)(long_z, long_o, long_y, weight)
    torch.testing.assert_close(gradient[:samples], grad(term)(z, o, y, None))
    assert torch.equal(gradient[samples:], torch.zeros(7 - samples, SIZE, dtype=z.dtype))


@pytest.mark.parametrize("name", TERMS)
def test_vmap_over_clients_of_unequal_size(name):
    """Three clients with 1, 4 and 6 samples, stacked, against each one alone."""
    term = TERMS[name]
    clients = [batch(samples, seed) for seed, samples in enumerate((1, 4, 6))]
    stacked = [
        torch.stack(rows) for rows in zip(*(padded(c, 6, 0.5) for c in clients), strict=True)
    ]
    values = vmap(term)(*stacked)
    gradients = vmap(grad(term))(*stacked)
    for (z, o, y), value, gradient in zip(clients, values, gradients, strict=True):
        torch.testing.assert_close(value, term(z, o, y, None))
        torch.testing.assert_close(gradient[: len(z)], grad(term)(z, o, y, None))


@pytest.mark.parametrize("name", TERMS)
def test_a_step_without_any_sample_is_zero_and_finite(name):
    """What a client that has run out of batches computes beside the others."""
    z, o, y = batch(3)
    weight = torch.zeros(3, dtype=torch.float64)
    value = TERMS[name](z, o, y, weight)
    # Only the magnitude is a root, of the 1e-12 that keeps its gradient finite.
    assert float(value) == (1e-6 if name == "magnitude" else 0.0)
    assert torch.equal(grad(TERMS[name])(z, o, y, weight), torch.zeros_like(z))


@pytest.mark.parametrize(
    "name", sorted(TERMS.keys() - {"energy_rbf"})
)  # Its bandwidth has no gradient.
def test_gradient_is_that_of_the_value(name):
    """The slope along a direction, against a central difference of step 1e-6."""
    z, o, y = batch(6)
    direction = normal(6, SIZE, seed=9)
    slope = (grad(TERMS[name])(z, o, y, None) * direction).sum()
    h = 1e-6
    ahead, behind = (TERMS[name](z + s * h * direction, o, y, None) for s in (1, -1))
    torch.testing.assert_close(slope, (ahead - behind) / (2 * h), rtol=1e-5, atol=1e-7)


# The sums and draws of the table itself would round to bfloat16.
@pytest.mark.parametrize("name", sorted(TERMS.keys() - {"mean", "mc_mean", "mc_sum"}))
def test_half_precision_is_computed_in_float32(name):
    """Under bfloat16 autocast the terms differ only by what rounding their inputs costs."""
    z, o, y = (t.bfloat16() if t.is_floating_point() else t for t in batch(6))
    with torch.autocast("cpu", torch.bfloat16):
        value = TERMS[name](z, o, y, None)
    expected = TERMS[name](z.double(), o.double(), y, None)
    assert value.dtype in (torch.float32, torch.float64)
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)
