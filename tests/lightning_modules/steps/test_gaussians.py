"""Gaussians of features and their classifier: hand-worked numbers, and independent references."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal
from torch.func import grad

from lightning_modules.steps.gaussians import (
    Gaussians,
    blend,
    choose_coefficients,
    discriminant,
    estimate,
)
from lightning_modules.steps.gaussians import _folds as folds
from lightning_modules.steps.gaussians import _loss as loss
from lightning_modules.steps.gaussians import _losses_on_grid as losses_on_grid
from pfl.core.seeds import generator
from tests.helpers.draws import normal


def some_gaussians(seed=0, classes=3, size=4):
    root = normal(size, size, seed=seed + 1)
    return Gaussians(normal(classes, size, seed=seed), root @ root.T + 0.1 * torch.eye(size))


def uniform(classes=3):
    return torch.full((classes,), 1 / classes, dtype=torch.float64)


def sample(gaussians, count, seed=0):
    """Draw samples of equally likely classes."""
    classes, size = gaussians.means.shape
    y = torch.randint(classes, (count,), generator=generator(seed, "classes"))
    root = torch.linalg.cholesky(gaussians.covariance)
    return gaussians.means[y] + normal(count, size, seed=seed + 7) @ root.T, y


def smooth(covariance, eps):
    identity = torch.eye(len(covariance), dtype=covariance.dtype)
    return (1 - eps) * covariance + eps * covariance.trace() / len(covariance) * identity


@pytest.mark.parametrize("eps", [1e-4, 0.5])
def test_logits_are_log_densities(eps):
    """Up to a constant in the class: log N(z; m_y, S~) + log pi_y."""
    gaussians, z = some_gaussians(), normal(5, 4, seed=3)
    prior = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    weight, bias = discriminant(gaussians, prior, eps)
    logits = z @ weight.T + bias
    densities = [
        MultivariateNormal(mean, smooth(gaussians.covariance, eps)).log_prob(z)
        for mean in gaussians.means
    ]
    expected = torch.stack(densities, 1) + prior.log()
    torch.testing.assert_close(logits.log_softmax(1), expected.log_softmax(1))


def test_it_is_the_bayes_rule():
    """Two classes at distance 2 in the metric of S err with probability 0.1587."""
    gaussians = Gaussians(
        torch.tensor([[0.0, 0.0], [4.0, 0.0]]).double(),
        torch.diag(torch.tensor([4.0, 9.0])).double(),
    )
    z, y = sample(gaussians, 20000)
    weight, bias = discriminant(gaussians, uniform(2))
    wrong = ((z @ weight.T + bias).argmax(1) != y).double().mean().item()
    assert wrong == pytest.approx(0.1587, abs=0.01)


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_a_common_shift_changes_no_difference_of_logits(seed):
    gaussians, z, shift = (
        some_gaussians(seed),
        normal(5, 4, seed=seed + 9),
        normal(4, seed=seed + 5),
    )
    shifted = gaussians._replace(means=gaussians.means + shift)
    found = []
    for model, features in ((gaussians, z), (shifted, z + shift)):
        weight, bias = discriminant(model, uniform())
        found.append((features @ weight.T + bias).log_softmax(1))
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


def test_the_identity_makes_it_nearest_mean():
    means, z = normal(3, 4), normal(50, 4, seed=8)
    weight, bias = discriminant(Gaussians(means, torch.eye(4).double()), uniform())
    nearest = torch.cdist(z, means).argmin(1)
    assert torch.equal((z @ weight.T + bias).argmax(1), nearest)


COMMON = Gaussians(
    torch.tensor([[7.0, 7.0], [5.0, 5.0], [6.0, 6.0]]).double(), 3 * torch.eye(2).double()
)


def test_estimate_by_hand():
    """Class 0 has (0, 0), (2, 0), (4, 0): mean (2, 0); class 1 has two samples, class 2 none.

    Both keep the common mean; deviations are (-2, 0), (0, 0), (2, 0), twice (1, 2) around (5, 5):
    the scatter is [[8 + 2, 4], [4, 8]] / (5 - 1).
    """
    z = torch.tensor([[0.0, 0.0], [2.0, 0.0], [4.0, 0.0], [6.0, 7.0], [6.0, 7.0]]).double()
    y = torch.tensor([0, 0, 0, 1, 1])
    scatter = torch.tensor([[2.5, 1.0], [1.0, 2.0]]).double()
    small, official = (estimate(z, y, COMMON, kind) for kind in ("small", "official"))
    assert small.means.tolist() == [[2.0, 0.0], [5.0, 5.0], [6.0, 6.0]]
    torch.testing.assert_close(small.covariance, scatter + 1e-4 * torch.eye(2).double())
    torch.testing.assert_close(official.covariance, scatter + 1e-4 + torch.eye(2).double())


def test_one_sample_has_no_scatter():
    found = estimate(torch.ones(1, 2).double(), torch.tensor([1]), COMMON)
    assert torch.equal(found.means, COMMON.means)
    assert torch.equal(found.covariance, COMMON.covariance)


@given(st.integers(0, 10**6), st.integers(2, 12))
@settings(max_examples=20, deadline=None)
def test_estimates_are_symmetric_and_positive_definite(seed, count):
    """Also with fewer samples than features, and of one class."""
    common = some_gaussians(seed, size=6)
    y = torch.zeros(count, dtype=torch.long)
    for kind in ("official", "small"):
        found = estimate(normal(count, 6, seed=seed), y, common, kind).covariance
        torch.testing.assert_close(found, found.T)
        assert torch.linalg.eigvalsh(found).min() > 0


def test_blend_ends():
    """0 is global, 1 is local; means and covariance have one coefficient each."""
    local, common = some_gaussians(1), some_gaussians(5)
    assert all(map(torch.equal, blend(local, common, torch.zeros(2)), common))
    for found, own in zip(blend(local, common, torch.ones(2)), local, strict=True):
        torch.testing.assert_close(found, own)
    mixed = blend(local, common, torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(mixed.means, local.means)
    assert torch.equal(mixed.covariance, common.covariance)


def a_problem(seed=0, count=60):
    """Draw samples of some Gaussians, and common Gaussians that are off."""
    true = some_gaussians(seed)
    z, y = sample(true, count, seed)
    return z, y, Gaussians(true.means + normal(3, 4, seed=seed + 2), 2 * true.covariance)


def test_the_grid_is_the_loss():
    """Every point of the grid, computed from shared factorisations, against the plain formula."""
    z, y, common = a_problem()
    parts = folds(z, y, common, "small")
    shares = torch.tensor([0.0, 0.3, 1.0]).double()
    table = losses_on_grid(parts, common, uniform(), 1e-4, shares)
    for row, b_mean in enumerate(shares):
        for column, b_cov in enumerate(shares):
            value = loss(parts, common, uniform(), 1e-4, torch.stack([b_mean, b_cov]))
            torch.testing.assert_close(table[row, column], value)


@pytest.mark.parametrize("seed", range(4))
def test_coefficients_are_least(seed):
    """Better than every point of the grid, and stationary inside the square."""
    z, y, common = a_problem(seed)
    found = choose_coefficients(z, y, common, uniform(), regulariser="small")
    parts = folds(z, y, common, "small")
    shares = torch.linspace(0, 1, 11, dtype=torch.float64)
    table = losses_on_grid(parts, common, uniform(), 1e-4, shares)
    assert ((found >= 0) & (found <= 1)).all()
    assert loss(parts, common, uniform(), 1e-4, found) <= table.min() + 1e-12
    slope = grad(lambda b: loss(parts, common, uniform(), 1e-4, b))(found)
    inside = (found > 1e-6) & (found < 1 - 1e-6)
    assert (slope[inside].abs() < 1e-2).all()


def test_coefficients_where_nothing_can_be_learnt():
    """No class of two samples: 0. One class: 1/2. Both whatever the rest."""
    common = some_gaussians()
    assert choose_coefficients(normal(3, 4), torch.arange(3), common, uniform()).tolist() == [0, 0]
    one = torch.tensor([2, 2, 2, 0])
    assert choose_coefficients(normal(4, 4), one, common, uniform()).tolist() == [0.5, 0.5]
