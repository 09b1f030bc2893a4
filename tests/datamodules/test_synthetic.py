"""The generator: each dial moves what it says, and nothing else."""

import numpy as np
import pytest

from datamodules import ByDomain, ConceptDrift, Synthetic


def make(**arguments):
    return Synthetic(**{"num_clients": 4, "partition": ByDomain(), "samples": 800} | arguments)


def table(data):
    """Return (domains, classes) counts of labels."""
    targets = data.contents.targets
    return np.array(
        [np.bincount(targets.labels[targets.domains == d], minlength=4) for d in range(4)]
    )


def patterns(data):
    """Return the mean image of each (domain, label)."""
    whole = data.arrays
    return {
        (d, c): whole.pixels[(whole.targets.domains == d) & (whole.targets.labels == c)].mean(0)
        for d in range(4)
        for c in range(4)
    }


def test_without_shift_domains_are_alike():
    data = make(noise=0.0)
    assert table(data).tolist() == [[50] * 4] * 4
    means = patterns(data)
    assert all(np.array_equal(means[d, c], means[0, c]) for d in range(4) for c in range(4))


def test_label_shift_gives_a_domain_its_own_class():
    """200 a domain, shift 0.5: 0.5 / 4 of 200 = 25 of every class, 100 more of class d."""
    assert table(make(label_shift=0.5)).tolist() == (25 + 100 * np.eye(4)).tolist()
    assert table(make(label_shift=1.0)).tolist() == (200 * np.eye(4)).tolist()


def test_concept_shift_turns_the_labels():
    """Pattern c bears the label c + 1 modulo 4 in domain 1; with half the classes, of 0 and 1 only
    the labels change places in domains 1 and 3."""
    means = patterns(make(noise=0.0, concept_shift=1.0))
    assert all(np.array_equal(means[1, (c + 1) % 4], means[0, c]) for c in range(4))
    means = patterns(make(noise=0.0, concept_shift=0.5))
    for domain, order in enumerate(([0, 1, 2, 3], [1, 0, 2, 3], [0, 1, 2, 3], [1, 0, 2, 3])):
        assert all(np.array_equal(means[domain, order[c]], means[0, c]) for c in range(4))


def test_domains_of_a_group_have_the_same_labels():
    """Two groups: domains 0 and 2 name pattern c class c, domains 1 and 3 class c + 1 modulo 4."""
    means = patterns(make(noise=0.0, concept_shift=1.0, concept_groups=2))
    for domain, turn in enumerate((0, 1, 0, 1)):
        assert all(np.array_equal(means[domain, (c + turn) % 4], means[0, c]) for c in range(4))


def test_feature_shift_makes_domains_darker_and_brighter():
    """Shift 0.4 over four domains: brightness -0.2, -0.067, 0.067, 0.2 of 255."""
    plain = patterns(make(noise=0.0))
    shifted = patterns(make(noise=0.0, feature_shift=0.4))
    for domain, expected in enumerate((-51, -17, 17, 51)):
        for label in range(4):
            difference = shifted[domain, label] - plain[domain, label]
            assert difference == pytest.approx(np.full((1, 8, 8), expected), abs=1)


def test_quantity_shift_makes_sizes_differ():
    sizes = table(make(quantity_shift=1.5)).sum(1)
    assert sizes.sum() == 800
    assert sizes.max() > 2 * sizes.min() >= 2


def test_subclasses_have_patterns_of_their_own():
    data = make(subclasses=5, noise=0.0, partition=ConceptDrift(), num_clients=5, domains=1)
    whole = data.arrays
    assert len(np.unique(whole.pixels.reshape(800, -1), axis=0)) == 20
    assert (whole.targets.fine // 5 == whole.targets.labels).all()
    assert data.contents.fine_names[7] == "class 1/2"
    data.setup()


def test_the_data_seed_decides_the_samples_and_nothing_else():
    one, two, other = make(), make(split_seed=5), make(data_seed=1)
    assert np.array_equal(one.arrays.pixels, two.arrays.pixels)
    assert not np.array_equal(one.arrays.pixels, other.arrays.pixels)


def test_there_is_a_client_for_each_domain():
    assert make(num_clients=None, domains=3, partition=ByDomain()).num_clients == 3
