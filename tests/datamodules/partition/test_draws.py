"""What partitioners draw, with numbers worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules.partition import draws
from datamodules.partition.partitioner import ClientDirichlet, Dirichlet
from datamodules.partition.slices import QuantitySkew
from datamodules.targets import Targets


def rng(seed=0):
    return np.random.default_rng(seed)


def dirichlet(labels, clients, alpha, generator, cap):
    return Dirichlet(alpha, min_samples=0, cap=cap).draw(Targets(labels), clients, generator)


def client_dirichlet(labels, clients, alpha, generator):
    return ClientDirichlet(alpha).draw(Targets(labels), clients, generator)


def cut_points(size, blocks, quantity, sigma, generator):
    return QuantitySkew(quantity=quantity, sigma=sigma).cut_points(size, blocks, generator)


@given(st.integers(0, 500), st.lists(st.floats(0.01, 10), min_size=1, max_size=20))
def test_apportion_sums_up_and_is_off_by_less_than_one(total, weights):
    shares = draws.apportion(total, np.array(weights))
    assert shares.sum() == total
    assert np.abs(shares - total * np.array(weights) / np.sum(weights)).max() < 1 + 1e-9


@given(
    st.integers(1, 30), st.integers(0, 60), st.sampled_from(["random_cuts", "equal", "lognormal"])
)
def test_no_block_is_empty(blocks, more, quantity):
    points = cut_points(blocks + more, blocks, quantity, 1.5, rng(more))
    sizes = np.diff([0, *points, blocks + more])
    assert len(sizes) == blocks
    assert sizes.min() >= 1


def test_dirichlet_with_cap_counts_all_classes_so_far():
    """Classes of 20 over 4 clients, n/N = 25: only two classes or more together fill a client,
    which then gets nothing of the next. Rounding may leave one sample to the last client."""
    labels = np.repeat(np.arange(5), 20)
    full = 0
    for seed in range(50):
        shares = dirichlet(labels, 4, 0.5, rng(seed), cap=True)
        counts = np.array([np.bincount(labels[share], minlength=5) for share in shares])
        before = counts.cumsum(1) - counts
        assert (counts[before >= 25] <= 1).all()
        assert not counts[:3][before[:3] >= 25].any()
        full += (before >= 25).sum()
    assert full > 50


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_dirichlet_shares_have_the_variance_of_the_distribution(alpha):
    """A share of Dir(alpha * 1_N) has mean 1/N and variance (1/N)(1 - 1/N) / (N alpha + 1)."""
    clients, count = 5, 1000
    labels = np.zeros(count, np.int64)
    shares = np.array(
        [
            [len(s) / count for s in dirichlet(labels, clients, alpha, rng(i), cap=False)]
            for i in range(1500)
        ]
    )
    variance = 0.2 * 0.8 / (clients * alpha + 1)
    assert shares.mean() == pytest.approx(0.2)
    assert shares.var() == pytest.approx(variance, rel=0.1)
    assert shares.mean(0) == pytest.approx([0.2] * 5, abs=4 * np.sqrt(variance / 1500))


@pytest.mark.parametrize(("alpha", "classes"), [(1.0, 10), (5.0, 10), (2.0, 20)])
def test_client_dirichlet_has_the_concentration_of_the_distribution(alpha, classes):
    """Proportions from Dir(alpha / C a class) have an expected sum of squares of
    (alpha / C + 1) / (alpha + 1): 0.55 for alpha 1 and 0.25 for alpha 5 at C = 10.

    Clients dealt last take of what remains; that moves the mean by 3 to 12 %.
    """
    labels = np.repeat(np.arange(classes), 2000)
    found = []
    for seed in range(40):
        shares = client_dirichlet(labels, 40, alpha, rng(seed))
        counts = np.array([np.bincount(labels[s], minlength=classes) for s in shares])
        found += ((counts / counts.sum(1, keepdims=True)) ** 2).sum(1).tolist()
    law = (alpha / classes + 1) / (alpha + 1)
    assert 0.98 * law < np.mean(found) < 1.15 * law
