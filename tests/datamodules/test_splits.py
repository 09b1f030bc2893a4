"""From a partition to training, validation and test samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules import IID, ByDomain, Catalogue, Dirichlet, FixedClasses, Targets
from datamodules.splits import Rule, divide


def catalogue(train=200, test=100, classes=5, domains=False):
    count = train + test
    labels = np.arange(count) % classes
    domain = np.arange(count) // classes % 2 if domains else None
    names = ("one", "two") if domains else ()
    return Catalogue(
        Targets(labels, domains=domain), train, tuple("abcdefghij")[:classes], (), names
    )


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


def test_pooled_splits_each_client_75_25():
    """300 samples over 10 clients: 30 each; ceil(0.25 * 30) = 8 for testing, 22 remain."""
    division = divide(catalogue(), IID(), 10, Rule())
    assert {(len(h.train), len(h.val), len(h.test)) for h in division.holdings} == {(22, 0, 8)}


def test_validation_comes_out_of_what_the_test_leaves():
    """30 a client: 8 for testing, of the other 22 ceil(0.1 * 22) = 3 validate."""
    division = divide(catalogue(), IID(), 10, Rule(val_fraction=0.1))
    assert {(len(h.train), len(h.val), len(h.test)) for h in division.holdings} == {(19, 3, 8)}


def test_a_whole_number_is_not_rounded_up():
    """0.1 * 30 is 3.0000000000000004 in floating point; three samples validate, not four."""
    rule = Rule("global", val_fraction=0.1)
    division = divide(catalogue(train=300, test=100), IID(), 10, rule)
    assert {len(h.val) for h in division.holdings} == {3}


def test_a_client_keeps_its_only_sample_for_training():
    division = divide(catalogue(4, 0, 2), IID(), 4, Rule(val_fraction=0.5))
    assert [(len(h.train), len(h.val), len(h.test)) for h in division.holdings] == [(1, 0, 0)] * 4


def test_official_classes_are_those_the_client_trains_on():
    """5 of 10 classes: every client is tested on all 10 official samples of each of its classes."""
    data = catalogue(200, 100, classes=10)
    division = divide(data, FixedClasses(), 4, Rule("official_classes"))
    labels = data.targets.labels
    assert division.pooled_test.tolist() == list(range(200, 300))
    for holding in division.holdings:
        assert set(labels[holding.test]) == set(labels[holding.train])
        assert len(holding.test) == 50


def test_official_classes_mean_subclasses_and_domains_where_there_are_any():
    data = catalogue(200, 100, classes=5, domains=True)
    division = divide(data, ByDomain(), 2, Rule("official_classes"))
    for client, holding in enumerate(division.holdings):
        assert set(data.targets.domains[holding.test]) == {client}
        assert len(holding.test) == 50


def test_matched_divides_each_class_as_in_training():
    """A client's share of a class's 20 test samples is its share of the 40 training samples,
    within one."""
    data = catalogue(200, 100)
    division = divide(data, Dirichlet(0.5, min_samples=1), 4, Rule("matched"))
    labels = data.targets.labels
    for holding in division.holdings:
        train = np.bincount(labels[holding.train], minlength=5)
        test = np.bincount(labels[holding.test], minlength=5)
        assert (np.abs(test - train / 40 * 20) < 1).all()


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


def test_the_split_seed_decides():
    data = catalogue()
    one, two = (divide(data, IID(), 4, Rule(split_seed=seed)) for seed in (1, 2))
    assert set(one.holdings[0].train.tolist()) != set(two.holdings[0].train.tolist())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"test_fraction": 0.0}, r"test_fraction must lie in \(0, 1\), got 0.0"),
        ({"test_fraction": 1.0}, r"test_fraction must lie in \(0, 1\)"),
        ({"val_fraction": 1.0}, r"val_fraction must lie in \[0, 1\), got 1.0"),
        ({"val_fraction": -0.1}, "val_fraction"),
        ({"max_samples": 0}, "max_samples must be at least 1, got 0"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Rule(**arguments)
