"""Partitions of the papers' released codes, by numbers of those codes.

The numbers are those of the original data sets, of which only the class of each sample matters:
CIFAR-10 has 5,000 and 1,000 of each of 10 classes, CIFAR-100 500 and 100 of each of 100.
"""

import hashlib

import numpy as np
import pytest

from datamodules import ConceptDrift, Digits, FixedClasses, PFLlibDirichlet, Targets
from datamodules.inspect import sheets
from datamodules.partition.splits import Rule, divide
from datamodules.survey import count_hashes
from datamodules.targets import Catalogue


def catalogue(targets, num_train):
    names = [str(label) for label in range(100)]
    return Catalogue(targets, num_train, names[: 1 + targets.labels.max()], names)


def cifar(classes, shuffled=False):
    """Return the labels of CIFAR-10 or CIFAR-100, sorted by class or in random order."""
    labels = [np.repeat(np.arange(classes), size // classes) for size in (50_000, 10_000)]
    if shuffled:
        labels = [np.random.default_rng(0).permutation(part) for part in labels]
    return catalogue(Targets(np.concatenate(labels)), 50_000)


def counts(data, shares):
    labels = data.targets.finest
    return np.stack([np.bincount(labels[own], minlength=labels.max() + 1) for own in shares])


def digest(found):
    return hashlib.sha256(found.astype("<i8").tobytes()).hexdigest()[:16]


def held(division):
    return [np.concatenate([h.train, h.val, h.test]) for h in division.holdings]


@pytest.mark.parametrize("shuffled", [False, True])
def test_fedas_generator_on_cifar10(shuffled):
    """Sizes, counts and test counts of seed 1 at alpha 0.1, whatever the order of the images."""
    data = cifar(10, shuffled)
    division = divide(data, PFLlibDirichlet(0.1), 20, Rule(split_seed=1))
    found = counts(data, held(division))
    assert found.sum(1).tolist() == [
        *(1621, 1814, 1211, 2080, 5128, 4264, 1440, 2622, 2974, 3236),
        *(1164, 1964, 5994, 1527, 3100, 4325, 4252, 3175, 5449, 2660),
    ]
    assert found[0].tolist() == [0, 9, 0, 668, 476, 287, 5, 167, 0, 9]
    assert digest(found) == "618cac877cd063df"
    tests = counts(data, [h.test for h in division.holdings])
    assert tests.sum(1)[:5].tolist() == [406, 454, 303, 520, 1282]
    assert tests[0].tolist() == [0, 5, 0, 158, 127, 75, 1, 38, 0, 2]
    assert digest(tests) == "fcd914c7edef1e4d"


def by_turns(labels, alpha, clients, seed, least, fraction):
    """Return training and test samples as the released generator draws them, in plain steps."""
    stream, smallest = np.random.RandomState(seed), 0
    while smallest < least:
        own = [[] for _ in range(clients)]
        for label in np.unique(labels):
            positions = np.flatnonzero(labels == label)
            stream.shuffle(positions)
            share = stream.dirichlet([alpha] * clients)
            share[[len(have) >= len(labels) / clients for have in own]] = 0
            cuts = (np.cumsum(share / share.sum()) * len(positions)).astype(int)[:-1]
            for have, more in zip(own, np.split(positions, cuts), strict=True):
                have.extend(more)
        smallest = min(map(len, own))
    halves = []
    for have in own:
        order, tested = stream.permutation(len(have)), int(np.ceil(fraction * len(have)))
        halves.append((np.array(have)[order[tested:]], np.array(have)[order[:tested]]))
    return halves


@pytest.mark.parametrize(("alpha", "seed", "least"), [(0.3, 1, 40), (0.5, 42, 1), (2.0, 3, 150)])
def test_every_sample_and_its_order_are_the_generators(alpha, seed, least):
    """alpha 2 draws normal numbers in pairs, and 150 of 3,000 samples take more than one try."""
    labels = np.random.default_rng(seed).integers(0, 10, 3_000)
    data = catalogue(Targets(labels), 2_500)
    rule = Rule(test_fraction=0.25, split_seed=seed)
    division = divide(data, PFLlibDirichlet(alpha, min_samples=least), 10, rule)
    wanted = by_turns(labels, alpha, 10, seed, least, 0.25)
    for holding, (train, test) in zip(division.holdings, wanted, strict=True):
        assert holding.train.tolist() == train.tolist()
        assert holding.test.tolist() == test.tolist()
        assert holding.val.size == 0


def test_a_validation_part_leaves_the_test_samples_alone():
    data = cifar(10)
    plain, more = (
        divide(data, PFLlibDirichlet(0.5), 20, Rule(val_fraction=part)) for part in (0, 0.1)
    )
    for a, b in zip(plain.holdings, more.holdings, strict=True):
        assert a.test.tolist() == b.test.tolist()
        assert a.train.tolist() == [*b.val, *b.train]


def official(partition, data, clients):
    rule = Rule(test_protocol="official_classes", split_seed=42)
    division = divide(data, partition, clients, rule)
    return counts(data, [h.train for h in division.holdings])


def test_pfedvem_on_cifar10():
    """The released code has sizes from 5 to 5,125 at 100 clients and seed 42."""
    found = official(FixedClasses(released=True), cifar(10), 100)
    assert (found.sum(1).min(), found.sum(1).max()) == (5, 5125)
    assert found.sum(1)[:8].tolist() == [650, 650, 775, 775, 295, 295, 10, 10]
    assert digest(found) == "0482487f584e4bb0"


def test_pfedvem_on_cifar100():
    """The released code has sizes from 20 to 1,800 at 100 clients and seed 42.

    It shuffles each superclass's list of subclasses again for every five clients.
    """
    data, classes = cifar(100), np.arange(100) // 5
    fine = data.targets.labels
    data = catalogue(Targets(classes[fine], fine=fine), 50_000)
    found = official(ConceptDrift(released=True), data, 100)
    assert (found.sum(1).min(), found.sum(1).max()) == (20, 1800)
    dealer = np.random.default_rng(42)
    lists = [list(range(5 * place, 5 * place + 5)) for place in range(20)]
    for group in range(20):
        for subclasses in lists:
            dealer.shuffle(subclasses)
        for member, wanted in enumerate(zip(*lists, strict=True)):
            assert np.flatnonzero(found[5 * group + member]).tolist() == sorted(wanted)
    assert digest(found) == "eba98b4832b8689f"


def test_the_count_hash_is_that_of_the_oracle():
    """Splits without samples have none, and the table shows each."""
    data = Digits(num_clients=5, partition=PFLlibDirichlet(0.5, min_samples=10))
    found = {
        name: np.stack(
            [data.split(c, name).targets.bincount(minlength=10).numpy() for c in range(5)]
        )
        for name in ("train", "test")
    }
    hashes = count_hashes(data)
    assert hashes == {
        "train": digest(found["train"]),
        "test": digest(found["test"]),
        "all": digest(found["train"] + found["test"]),
    }
    (notes,) = [sheet.notes for sheet in sheets(data) if sheet.notes]
    assert notes[1:] == [f"class counts, sha256 {name}: {h}" for name, h in hashes.items()]


@pytest.mark.parametrize(
    ("partition", "seed"),
    [(PFLlibDirichlet(), -1), (PFLlibDirichlet(), 2**32), (FixedClasses(released=True), -1)],
)
def test_a_seed_that_the_released_code_cannot_have_is_refused(partition, seed):
    with pytest.raises(ValueError, match=f"split_seed.*{seed}"):
        divide(cifar(10), partition, 20, Rule(split_seed=seed))
