"""The sizes reported for pFedVEM's partitions at 100 clients, held against the law of its recipe.

CIFAR-10: 10 classes of 5,000, 5 a client: 50 blocks a class, so a client has 5 times a spacing of
49 distinct points in 1..4,999. CIFAR-100: 100 classes of 500, 20 a client: 20 blocks a class, 20
times a spacing of 19 points in 1..499. Mean size 50,000 / 100 = 500 in both.
"""

from math import comb

import numpy as np
import pytest

from datamodules import ConceptDrift, FixedClasses, Targets

CIFAR10 = (FixedClasses(), Targets(np.repeat(np.arange(10), 5000)), 5, 5000, 50)
CIFAR100 = (
    ConceptDrift(),
    Targets(np.repeat(np.arange(100) // 5, 500), fine=np.repeat(np.arange(100), 500)),
    20,
    500,
    20,
)


def sizes_of(partitioner, targets, seeds):
    return np.array(
        [
            [len(share) for share in partitioner(targets, 100, np.random.default_rng(seed))]
            for seed in range(seeds)
        ]
    )


def chance_of_more(size, blocks, limit):
    """Return P(one given block > limit) for ``blocks`` non-empty blocks of ``size`` in all.

    All C(size - 1, blocks - 1) choices of cut points are equally likely, and those with a given
    block above the limit are as many as the choices for ``size - limit``.
    """
    return comb(size - limit - 1, blocks - 1) / comb(size - 1, blocks - 1)


@pytest.mark.parametrize("case", [CIFAR10, CIFAR100], ids=["label skew", "concept drift"])
def test_sizes_follow_the_law_of_the_recipe(case):
    """The mean is exactly 500; the share of clients above once, twice and four times the mean is
    what counting the cut points gives, within four standard errors of the independent groups."""
    partitioner, targets, classes, size, blocks = case
    sizes = sizes_of(partitioner, targets, seeds=40)
    assert (sizes.mean(1) == 500).all()
    assert (sizes % classes == 0).all()
    assert sizes.min() >= classes
    groups = sizes[:, :: 100 // blocks]
    for times in (1, 2, 4):
        expected = chance_of_more(size, blocks, times * 500 // classes)
        error = np.sqrt(expected * (1 - expected) / groups.size)
        assert (groups > times * 500).mean() == pytest.approx(expected, abs=4 * error)
