"""UniVarFL's regularisers, against hand-worked numbers and bounds."""

from __future__ import annotations

import math
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad

from lightning_modules.losses import (
    classifier_variance,
    feature_distillation,
    hyperspherical_energy,
    monte_carlo_cross_entropy,
    variance_floor,
)
from pfl.core.seeds import generator, scoped
from tests.helpers.draws import normal
from tests.helpers.messages import refuses

SIZE = 4
FORMS = ("inverse", "log", "chord", "rbf")


def one_hot_logits(labels, classes):
    return 1e4 * F.one_hot(torch.tensor(labels), classes).double()


@pytest.mark.parametrize("classes", [2, 5, 10])
def test_perfect_balanced_predictions_reach_the_floor(classes):
    """The variance and the standard deviation."""
    logits = one_hot_logits(list(range(classes)) * 3, classes)
    assert float(classifier_variance(logits)) == pytest.approx(0, abs=1e-12)
    assert float(classifier_variance(logits, statistic="std")) == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("logits", [torch.zeros(6, 10), one_hot_logits([3] * 6, 10).float()])
def test_equal_rows_fall_short_by_the_whole_floor(logits, unbiased):
    """For the standard deviation up to the 1e-4 that its root holds."""
    floor = variance_floor(10, "var", unbiased)
    assert float(classifier_variance(logits, None, "var", unbiased)) == pytest.approx(floor)
    floor = variance_floor(10, "std", unbiased)
    short = float(classifier_variance(logits, None, "std", unbiased))
    assert short == pytest.approx(floor - 1e-4)


@given(st.integers(0, 10**6), st.integers(1, 12), st.floats(0.01, 30))
@settings(max_examples=50, deadline=None)
def test_classifier_variance_lies_between_zero_and_the_floor(seed, samples, scale):
    value = float(classifier_variance(scale * normal(samples, 7, seed=seed)))
    assert 0 <= value <= variance_floor(7) + 1e-12


def test_variance_floor():
    """9/100, 1/10, and their roots 0.3 and 0.3162; C = 100 gives 0.0099 and 0.1."""
    assert variance_floor(10) == pytest.approx(0.09)
    assert variance_floor(10, unbiased=True) == pytest.approx(0.1)
    assert variance_floor(10, "std") == pytest.approx(0.3)
    assert variance_floor(10, "std", unbiased=True) == pytest.approx(0.31623, abs=1e-5)
    assert variance_floor(100) == pytest.approx(0.0099)
    assert variance_floor(100, "std", unbiased=True) == pytest.approx(0.1)
    for unbiased in (False, True):
        variance = torch.eye(6).var(0, unbiased=unbiased).mean()
        assert variance_floor(6, "var", unbiased) == pytest.approx(float(variance))


def test_classifier_variance_by_hand():
    """p = (3/4, 1/4), (1/4, 3/4): each column has variance 1/16 and the floor of C = 2 is 1/4.

    Unbiased: 1/8 against 1/2. Standard deviation: 1/4 against 1/2.
    """
    logits = torch.log(torch.tensor([[3.0, 1.0], [1.0, 3.0]], dtype=torch.float64))
    assert float(classifier_variance(logits)) == pytest.approx(1 / 4 - 1 / 16)
    assert float(classifier_variance(logits, unbiased=True)) == pytest.approx(1 / 2 - 1 / 8)
    assert float(classifier_variance(logits, statistic="std")) == pytest.approx(1 / 4, abs=1e-6)


def test_no_gradient_above_the_floor():
    """Column by column: C = 3 has the floor 2/9.

    Predictions (1, 0, 0) and (0, 1, 0), nearly certain, give the variances 1/4, 1/4, 0: the third
    alone falls short, by 2/9, and nothing pushes the first two. (All columns at once cannot lie
    above the floor: the variances sum to at most 1 - 1/C, which is C times the floor.) With less
    certainty, p = (0.88, 0.12, 0), they lie below it and are pushed.
    """
    signs = torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]], dtype=torch.float64)
    absent = torch.tensor([0.0, 0.0, -60.0], dtype=torch.float64)
    certain, unsure = 3 * signs + absent, signs + absent
    assert float(classifier_variance(certain)) == pytest.approx(2 / 27)
    assert float(grad(classifier_variance)(certain).abs().max()) < 1e-12
    assert float(grad(classifier_variance)(unsure).abs().max()) > 1e-3


@pytest.mark.parametrize("form", FORMS)
@given(seed=st.integers(0, 10**6), samples=st.integers(2, 9))
@settings(max_examples=25, deadline=None)
def test_energy_ignores_order_and_rotation(form, seed, samples):
    """And the scale, but for the rbf form."""
    z = normal(samples, SIZE, seed=seed)
    energy = hyperspherical_energy(z, form=form)
    order = torch.randperm(samples, generator=generator(seed, "order"))
    rotation, _ = torch.linalg.qr(normal(SIZE, SIZE, seed=seed + 1))
    torch.testing.assert_close(hyperspherical_energy(z[order], form=form), energy)
    torch.testing.assert_close(hyperspherical_energy(z @ rotation, form=form), energy)
    if form != "rbf":
        scales = normal(samples, 1, seed=seed + 2).exp()
        torch.testing.assert_close(hyperspherical_energy(z * scales, form=form), energy)
    logits = normal(samples, 5, seed=seed)
    torch.testing.assert_close(classifier_variance(logits[order]), classifier_variance(logits))


def simplex(points: int) -> torch.Tensor:
    """Return a regular simplex: the unit vectors of R^points, centred."""
    eye = torch.eye(points, dtype=torch.float64)
    return eye - eye.mean(0)


@pytest.mark.parametrize("points", [2, 3, 5])
def test_energy_of_a_simplex_is_the_least(points):
    """Cosines are -1/(N-1), the energy 1 / (1 + 1/(N-1) + eps)."""
    least = 1 / (1 + 1 / (points - 1) + 1e-3)
    assert float(hyperspherical_energy(simplex(points))) == pytest.approx(least)
    for seed in range(10):
        assert float(hyperspherical_energy(normal(points, 6, seed=seed))) >= least - 1e-12


def test_energies_by_hand():
    """Cosines 0, 0 and 1/sqrt(2) between (1,0,0), (0,0,2) and (3,3,0); s = 1/sqrt(2) for one pair.

    The squared distances 5, 9 + 4 = 13 and 22 have the median 13.
    """
    z = torch.tensor([[1.0, 0, 0], [0, 0, 2.0], [3.0, 3.0, 0]], dtype=torch.float64)
    gap, eps = 1 - 1 / math.sqrt(2), 0.1
    expected = {
        "inverse": (2 / 1.1 + 1 / (gap + eps)) / 3,
        "log": -(2 * math.log(1.1) + math.log(gap + eps)) / 3,
        "chord": (2 / 2.1 + 1 / (2 * gap + eps)) / 3,
        "rbf": (math.exp(-5 / 13) + math.exp(-1) + math.exp(-22 / 13)) / 3,
    }
    for form, value in expected.items():
        assert float(hyperspherical_energy(z, None, form, eps)) == pytest.approx(value), form


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_energy_of_orthogonal_and_of_identical_features(dtype):
    """1 / (1 + eps) and 1 / eps."""
    eye = 3 * torch.eye(4, dtype=dtype)
    assert float(hyperspherical_energy(eye)) == pytest.approx(1 / 1.001)
    same = normal(1, 8).to(dtype).expand(5, 8)
    assert float(hyperspherical_energy(same)) == pytest.approx(1e3, rel=1e-3)
    assert float(hyperspherical_energy(same, form="rbf")) == 1


@pytest.mark.parametrize("eps", [1e-3, 1e-6])
@pytest.mark.parametrize("form", FORMS)
def test_identical_features_have_a_finite_gradient(form, eps):
    same = normal(1, 8).float().expand(5, 8).contiguous()
    assert grad(lambda z: hyperspherical_energy(z, None, form, eps))(same).isfinite().all()


@pytest.mark.parametrize("form", FORMS)
def test_a_zero_feature_is_orthogonal_to_all(form):
    """u = 0, s = 0, the pair costs 1 / (1 + eps)."""
    z = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    if form == "inverse":
        assert float(hyperspherical_energy(z)) == pytest.approx(1 / 1.001)
    slope = grad(lambda z: hyperspherical_energy(z, None, form))(z)
    assert float(slope.abs().max()) <= 2, "not 1e12 times that"


def test_a_step_down_the_energy_parts_two_near_features():
    for form in FORMS:
        z = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.5, 2.0]], dtype=torch.float64)
        step = grad(lambda z, form=form: hyperspherical_energy(z, None, form))(z)
        moved = z - 1e-3 * step
        cosine = F.cosine_similarity(z[0], z[1], dim=0)
        assert F.cosine_similarity(moved[0], moved[1], dim=0) < cosine, form


def test_energy_leaves_the_classifier_alone_and_variance_reaches_all():
    with scoped(0):
        encoder, head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 5)
        z = encoder(torch.rand(6, 3))
    weights = [encoder.weight, head.weight]
    energy = hyperspherical_energy(z)
    slopes = torch.autograd.grad(energy, weights, retain_graph=True, allow_unused=True)
    assert slopes[0].any()
    assert slopes[1] is None
    for slope in torch.autograd.grad(classifier_variance(head(z)), weights):
        assert slope.any()


ALONE = {form: partial(hyperspherical_energy, form=form) for form in FORMS}
for unbiased, statistic in product((False, True), ("var", "std")):
    options = {"statistic": statistic, "unbiased": unbiased}
    ALONE[f"{statistic} {unbiased}"] = partial(classifier_variance, **options)


@pytest.mark.parametrize("term", ALONE.values(), ids=ALONE)
def test_one_sample_adds_nothing(term):
    z = normal(1, 4)
    assert float(term(z)) == 0
    assert torch.equal(grad(term)(z), torch.zeros_like(z))


def test_rbf_bandwidth_leaves_out_duplicates():
    """Points 0, 0, 1, 3: squared distances 0, 1, 9, 1, 9, 4; of 1 1 4 9 9 the median is 4."""
    z = torch.tensor([[0.0], [0.0], [1.0], [3.0]], dtype=torch.float64)
    pairs = [math.exp(-d / 4) for d in (0, 1, 9, 1, 9, 4)]
    assert float(hyperspherical_energy(z, form="rbf")) == pytest.approx(sum(pairs) / 6)


def test_rbf_bandwidth_is_a_constant():
    """Points 0 and 1: exp(-d^2 / 1) has the slope -2 / e; moving with d it would have none."""
    z = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    slope = grad(lambda z: hyperspherical_energy(z, form="rbf"))(z)
    assert slope.flatten().tolist() == pytest.approx([2 / math.e, -2 / math.e])


def test_what_is_unknown_is_refused():
    """Not taken for another word that is known."""
    z, y = normal(2, 3), torch.tensor([0, 1])
    refuses(partial(hyperspherical_energy, z), "inverse, log, chord, rbf", form="cosine")
    refuses(partial(hyperspherical_energy, z), "positive", eps=0)
    refuses(partial(classifier_variance, z), "var, std", statistic="variance")
    refuses(partial(feature_distillation, z, z), "mean, sum_dim", reduction="sum")
    refuses(partial(monte_carlo_cross_entropy, z[None], y), "mean, sum", reduction="sum_dim")
