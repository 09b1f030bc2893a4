"""From a partition to training, validation and test samples."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules import (
    IID,
    ByDomain,
    Catalogue,
    ClientDirichlet,
    ConceptDrift,
    Dirichlet,
    FixedClasses,
    QuantitySkew,
    Shards,
    Targets,
)
from datamodules.partition.splits import Rule, divide


def catalogue(train=200, test=100, classes=5, domains=False):
    count = train + test
    labels = np.arange(count) % classes
    domain = np.arange(count) // classes % 2 if domains else None
    names = ("one", "two") if domains else ()
    return Catalogue(
        Targets(labels, domains=domain), train, tuple("abcdefghij")[:classes], (), names
    )


def counts_of(data, division, name, classes):
    labels = data.targets.labels
    return np.array([np.bincount(labels[h.of(name)], minlength=classes) for h in division.holdings])


def flat(division, name):
    return np.concatenate([holding.of(name) for holding in division.holdings])


@given(
    st.integers(1, 12),
    st.floats(0.05, 0.9),
    st.floats(0, 0.9),
    st.integers(0, 2**32),
    st.sampled_from(["pooled", "official_classes", "matched", "global"]),
    st.sampled_from([300, 200]),
    st.sampled_from([None, 120]),
)
def test_parts_are_disjoint_and_complete(clients, test, val, seed, protocol, train, limit):
    """Training and validation samples are somebody's alone, test samples nobody's of these."""
    data = catalogue(train, 300 - train)
    rule = Rule(protocol, test, val, seed, limit)
    division = divide(data, IID(), clients, rule)
    own = np.concatenate([flat(division, "train"), flat(division, "val")])
    assert len(set(own.tolist())) == len(own)
    assert not set(own.tolist()) & set(flat(division, "test").tolist())
    assert len(division.samples()) == (limit or 300)
    assert all(len(holding.train) for holding in division.holdings)
    if protocol == "pooled":
        assert division.pooled_test is None
        assert len(own) + len(flat(division, "test")) == (limit or 300)
    else:
        assert not set(own.tolist()) & set(division.pooled_test.tolist())
    if protocol == "matched":
        assert sorted(flat(division, "test").tolist()) == division.pooled_test.tolist()
    if protocol == "global":
        assert not len(flat(division, "test"))
    again = divide(data, IID(), clients, rule)
    for a, b in zip(division.holdings, again.holdings, strict=True):
        assert all(np.array_equal(a.of(name), b.of(name)) for name in ("train", "val", "test"))


FOUR = catalogue(4, 0, 2)
TIMED = replace(FOUR, targets=replace(FOUR.targets, columns={"time": np.arange(4.0)}))


@pytest.mark.parametrize(
    ("data", "clients", "rule", "sizes"),
    [
        # 300 samples over 10 clients: 30 each; ceil(0.25 * 30) = 8 for testing, 22 remain.
        (catalogue(), 10, Rule(), (22, 0, 8)),
        # Of these 22 ceil(0.1 * 22) = 3 validate.
        (catalogue(), 10, Rule(val_fraction=0.1), (19, 3, 8)),
        # 0.07 * 100 is 7.000000000000001 in floating point: seven samples validate, not eight.
        (catalogue(300, 100), 3, Rule("global", val_fraction=0.07), (93, 7, 0)),
        # A client keeps its only sample for training, and its earliest one.
        (FOUR, 4, Rule(val_fraction=0.5), (1, 0, 0)),
        (TIMED, 2, Rule("future", test_fraction=0.8), (1, 0, 1)),
    ],
)
def test_fractions_are_of_each_clients_own_samples(data, clients, rule, sizes):
    division = divide(data, IID(), clients, rule)
    assert {(len(h.train), len(h.val), len(h.test)) for h in division.holdings} == {sizes}


def test_official_classes_are_those_the_client_trains_on():
    """5 of 10 classes: every client is tested on all 10 official samples of each of its classes."""
    data = catalogue(200, 100, classes=10)
    division = divide(data, FixedClasses(), 4, Rule("official_classes"))
    labels = data.targets.labels
    assert division.pooled_test.tolist() == list(range(200, 300))
    for holding in division.holdings:
        assert set(labels[holding.test]) == set(labels[holding.train])
        assert len(holding.test) == 50


def test_official_classes_mean_domains_too_where_these_are_divided():
    data = catalogue(200, 100, classes=5, domains=True)
    division = divide(data, ByDomain(), 2, Rule("official_classes"))
    for client, holding in enumerate(division.holdings):
        assert set(data.targets.domains[holding.test]) == {client}
        assert len(holding.test) == 50


def test_matched_follows_subclasses_where_there_are_any():
    """A client is tested on the subclasses that it trains on, and not on their siblings."""
    fine = np.tile(np.arange(10), 30)
    targets = Targets(fine // 5, fine=fine)
    data = Catalogue(targets, 200, ("x", "y"), tuple("abcdefghij"))
    division = divide(data, ConceptDrift(quantity="equal"), 5, Rule("matched"))
    for holding in division.holdings:
        assert set(fine[holding.test]) == set(fine[holding.train])
        assert len(holding.test) == 20


def test_matched_by_domain_tests_a_writer_where_it_trains():
    """Writer 0 trains on both classes, writer 1 on class 0 only: both are tested by themselves, and
    so is writer 1 on class 1, of which it has no training sample."""
    labels = np.array([0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1])
    writer = np.array([0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 0])
    data = Catalogue(Targets(labels, domains=writer), 6, ("a", "b"), (), ("w0", "w1"))
    division = divide(data, ByDomain(), 2, Rule("matched"))
    assert [h.test.tolist() for h in division.holdings] == [[6, 10], [7, 8, 9]]


def test_matched_deals_a_class_that_nobody_trains_on_by_size():
    """Ten training samples of class 0 over two clients, four test samples of class 1: two each."""
    data = Catalogue(Targets(np.repeat([0, 1], [10, 4])), 10, ("a", "b"))
    division = divide(data, IID(), 2, Rule("matched"))
    assert [len(h.test) for h in division.holdings] == [2, 2]


@pytest.mark.parametrize("protocol", ["official_classes", "matched", "global"])
def test_without_an_official_test_set_one_is_set_aside(protocol):
    """A quarter of each of 5 classes of 60: 15 each."""
    data = catalogue(300, 0)
    division = divide(data, IID(), 3, Rule(protocol))
    assert np.bincount(data.targets.labels[division.pooled_test]).tolist() == [15] * 5


def test_max_samples_takes_classes_and_parts_in_proportion():
    """60 of 300: 40 of 200 training and 20 of 100 test samples, 8 and 4 of each class."""
    data = catalogue()
    division = divide(data, IID(), 4, Rule("global", max_samples=60))
    labels = data.targets.labels
    assert np.bincount(labels[flat(division, "train")]).tolist() == [8] * 5
    assert np.bincount(labels[division.pooled_test]).tolist() == [4] * 5


def test_max_train_samples_comes_after_max_samples_and_the_test_set():
    """Without an official test set: 150 of 300, of which a quarter tests, 38 rounded; of the other
    112 then 40 train."""
    data = catalogue(300, 0)
    rule = Rule("global", max_samples=150, max_train_samples=40)
    division = divide(data, IID(), 4, rule)
    assert len(division.pooled_test) == 38
    assert counts_of(data, division, "train", 5).sum(0).tolist() == [8] * 5


def fingerprint(division):
    """Return eight digits that depend on every sample of every client, in order."""
    digest = hashlib.sha256()
    for holding in division.holdings:
        for name in ("train", "val", "test"):
            digest.update(np.append(holding.of(name), -1).astype("<i8").tobytes())
    return digest.hexdigest()[:8]


FINGERPRINTS = [
    (IID(), Rule(), "c3dcba5c"),
    (Dirichlet(0.5), Rule(), "4d48de65"),
    (Dirichlet(0.5, cap=False), Rule(), "4d48de65"),
    (ClientDirichlet(), Rule(), "d769fcdc"),
    (Shards(2), Rule(), "4101414c"),
    (FixedClasses(), Rule(), "6a200e6a"),
    (ConceptDrift(), Rule(), "b867e347"),
    (QuantitySkew(quantity="lognormal"), Rule(), "408fcec4"),
    (ByDomain(), Rule(), "5054359e"),
    (ByDomain(Dirichlet(0.5, min_samples=1)), Rule(), "fed3adf1"),
    (Dirichlet(0.5), Rule("matched"), "fe068417"),
    (Dirichlet(0.5), Rule("official_classes"), "7dd4a4fa"),
    (Dirichlet(0.5), Rule("global", val_fraction=0.2), "c3066168"),
    (Dirichlet(0.5), Rule("global", max_samples=300), "41448671"),
    (Dirichlet(0.5), Rule("matched", max_train_samples=200), "ccdc9f82"),
    (ByDomain(), Rule("matched"), "29c41067"),
    (ByDomain(), Rule("official_classes"), "29c41067"),
    (ByDomain(), Rule("global", val_fraction=0.2), "e40a4ead"),
    (ByDomain(), Rule("global", max_samples=300), "b0d1a1a5"),
    (ByDomain(), Rule("matched", max_train_samples=200), "130981ab"),
]


@pytest.mark.parametrize(("partitioner", "rule", "expected"), FINGERPRINTS)
def test_a_recipe_gives_the_partition_it_always_gave(partitioner, rule, expected):
    """Kept runs stay comparable: a change of these numbers makes other federations of old configs.

    1,440 samples of 10 classes (20 subclasses), 4 domains; the last 240 are the official test set.
    """
    numbers = np.random.default_rng(0).permutation(1440)
    targets = Targets(numbers % 20 // 2, numbers % 20, numbers // 20 % 4)
    names = tuple("abcdefghijklmnopqrst")
    data = Catalogue(targets, 1200, names[:10], names, names[:4])
    assert fingerprint(divide(data, partitioner, 4, rule)) == expected
