"""Every partitioner: what it promises, over many sizes and seeds."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from datamodules import (
    IID,
    ByDomain,
    ClientDirichlet,
    ConceptDrift,
    Dirichlet,
    FixedClasses,
    Partitioner,
    QuantitySkew,
    Shards,
    Targets,
)
from tests.helpers.messages import parts

QUANTITIES = st.sampled_from(["random_cuts", "equal", "lognormal"])
SEEDS = st.integers(0, 2**32)


@st.composite
def targets(draw, smallest=1):
    """Draw classes of different sizes in mixed order, with domains."""
    sizes = draw(st.lists(st.integers(smallest, 40), min_size=1, max_size=8))
    rng = np.random.default_rng(draw(SEEDS))
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return Targets(labels, domains=rng.integers(0, 4, len(labels)))


def deal(partitioner, given_targets, num_clients, seed):
    return partitioner(given_targets, num_clients, np.random.default_rng(seed))


def assert_partition(shares, count, num_clients):
    assert len(shares) == num_clients
    assert sorted(np.concatenate(shares).tolist()) == list(range(count))


def assert_equal(a, b):
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@given(
    targets(),
    st.integers(1, 12),
    SEEDS,
    st.sampled_from(
        [
            IID(),
            Dirichlet(0.3, min_samples=0),
            Dirichlet(5.0, min_samples=0, cap=False),
            ClientDirichlet(0.2),
            Shards(1),
            ByDomain(),
        ]
    ),
)
@settings(max_examples=200)
def test_every_sample_goes_to_one_client_and_the_seed_decides(data, clients, seed, partitioner):
    assume(clients <= min(np.bincount(data.domains)[np.unique(data.domains)].min(), len(data)))
    shares = deal(partitioner, data, clients, seed)
    assert_partition(shares, len(data), clients)
    assert_equal(shares, deal(partitioner, data, clients, seed))


@given(targets(), st.integers(1, 12), SEEDS, st.sampled_from([IID(), ClientDirichlet(0.1)]))
def test_sizes_differ_by_one_at_most(data, clients, seed, partitioner):
    assume(clients <= len(data))
    sizes = [len(share) for share in deal(partitioner, data, clients, seed)]
    assert max(sizes) - min(sizes) <= 1


@given(SEEDS, st.integers(2, 10), st.floats(0.3, 100), st.booleans())
@settings(max_examples=50)
def test_dirichlet_gives_every_client_enough(seed, clients, alpha, cap):
    data = Targets(np.tile(np.arange(10), 60))
    partitioner = Dirichlet(alpha, min_samples=5, cap=cap)
    assert min(len(share) for share in deal(partitioner, data, clients, seed)) >= 5


@given(SEEDS, st.integers(1, 10), st.integers(1, 4))
def test_shards_bound_the_number_of_classes(seed, clients, per_client):
    """A shard of at most a class's size touches two classes at most."""
    data = Targets(np.repeat(np.arange(5), 40))
    shares = deal(Shards(per_client), data, clients, seed)
    assert_partition(shares, 200, clients)
    if clients * per_client >= 5:
        assert max(len(np.unique(data.labels[s])) for s in shares) <= 2 * per_client


@given(SEEDS, st.integers(1, 4), st.sampled_from([1, 5]), QUANTITIES, st.sampled_from([1, 4]))
def test_classes_are_dealt_once_a_group(seed, groups, per_client, quantity, superclasses):
    """5 classes of 20, or 4 superclasses of 5 subclasses of 20, in mixed order.

    Every client has ``per_client`` classes (of each superclass), in equal counts; the clients of a
    group have equal sizes, and share none.
    """
    fine = np.random.default_rng(1).permutation(np.repeat(np.arange(5 * superclasses), 20))
    if superclasses == 1:
        data = Targets(fine)
        partitioner = FixedClasses(classes_per_client=per_client, quantity=quantity)
    else:
        data = Targets(fine // 5, fine=fine)
        partitioner = ConceptDrift(subclasses_per_client=per_client, quantity=quantity)
    group = 5 // per_client
    shares = deal(partitioner, data, groups * group, seed)
    assert_partition(shares, len(fine), groups * group)
    counts = np.array([np.bincount(fine[share], minlength=5 * superclasses) for share in shares])
    assert ((counts.reshape(-1, superclasses, 5) > 0).sum(2) == per_client).all()
    assert all(len(set(own[own > 0].tolist())) == 1 for own in counts)
    for start in range(0, len(shares), group):
        together = counts[start : start + group]
        assert len(set(together.sum(1).tolist())) == 1
        assert ((together > 0).sum(0) == 1).all()


@given(targets(smallest=12), st.integers(1, 12), SEEDS, QUANTITIES)
def test_quantity_skew_keeps_the_proportions(data, clients, seed, quantity):
    """A client's share of any class is its share of the smallest, within one sample."""
    shares = deal(QuantitySkew(quantity=quantity), data, clients, seed)
    assert_partition(shares, len(data), clients)
    totals = np.bincount(data.labels)
    counts = np.array([np.bincount(data.labels[s], minlength=len(totals)) for s in shares])
    fractions = counts[:, totals.argmin()] / totals.min()
    assert (np.abs(counts - fractions[:, None] * totals) <= 1 + 1e-9).all()


def test_dirichlet_takes_the_first_draw_in_which_all_have_enough():
    """The first draw's smallest client is just enough; one sample more, and it is not."""
    data = Targets(np.tile(np.arange(5), 40))
    first = deal(Dirichlet(0.5, min_samples=0), data, 5, 0)
    smallest = min(len(share) for share in first)
    assert_equal(deal(Dirichlet(0.5, min_samples=smallest), data, 5, 0), first)
    larger = deal(Dirichlet(0.5, min_samples=smallest + 1), data, 5, 0)
    assert min(len(share) for share in larger) > smallest


@given(SEEDS, st.integers(3, 12))
def test_by_domain_gives_each_client_one_domain(seed, clients):
    data = Targets(np.zeros(120, np.int64), domains=np.repeat([0, 4, 9], [30, 40, 50]))
    shares = deal(ByDomain(), data, clients, seed)
    assert_partition(shares, 120, clients)
    for client, share in enumerate(shares):
        assert set(data.domains[share].tolist()) == {[0, 4, 9][client % 3]}


@given(SEEDS, st.integers(1, 6))
def test_by_domain_deals_whole_domains_to_fewer_clients(seed, clients):
    data = Targets(np.zeros(70, np.int64), domains=np.arange(70) % 7)
    shares = deal(ByDomain(), data, clients, seed)
    assert_partition(shares, 70, clients)
    held = [set(data.domains[share].tolist()) for share in shares]
    assert sum(len(domains) for domains in held) == 7
    assert max(map(len, held)) - min(map(len, held)) <= 1


def test_by_domain_divides_a_domain_as_asked():
    data = Targets(np.tile(np.arange(4), 50), domains=np.repeat([0, 1], 100))
    shares = deal(ByDomain(within=Shards(1)), data, 8, 0)
    assert all(len(np.unique(data.labels[share])) == 1 for share in shares)


HUNDRED = Targets(np.zeros(100, np.int64))
UNLIKELY = Dirichlet(0.01, min_samples=45, cap=False, max_tries=3)
TEN = Targets(np.tile(np.arange(10), 20))
FINE = Targets(TEN.labels // 5, fine=TEN.labels)
SHARED = Targets(np.repeat([0, 1], 20), fine=np.tile([0, 1], 20) + np.repeat([0, 1], 20))
UNEQUAL = Targets(np.repeat(np.arange(10), [3, *[20] * 9]))


@pytest.mark.parametrize(
    ("partitioner", "data", "clients", "message"),
    [
        (IID(), TEN, 0, "num_clients ~ at least 1 ~ 0"),
        (IID(), TEN, 201, "num_clients ~ 201 ~ 200 samples"),
        (UNLIKELY, HUNDRED, 2, "3 draws ~ Dirichlet(alpha=0.01) ~ min_samples=45 ~ max_tries"),
        (Dirichlet(min_samples=40), HUNDRED, 3, "3 clients ~ min_samples=40 ~ 100 samples"),
        (Shards(3), TEN, 100, "shards_per_client=3 ~ 300 samples ~ 200"),
        (FixedClasses(classes_per_client=3), TEN, 10, "classes_per_client=3 ~ 10 classes"),
        (FixedClasses(), TEN, 5, "num_clients=5 ~ 2"),
        (FixedClasses(), TEN, 60, "30 blocks ~ 60 clients ~ 20 samples ~ num_clients"),
        (FixedClasses(), UNEQUAL, 8, "4 blocks ~ 8 clients ~ 3 samples ~ num_clients"),
        (ConceptDrift(), TEN, 5, "ConceptDrift ~ superclasses"),
        (ConceptDrift(), FINE, 7, "num_clients=7 ~ 5"),
        (ConceptDrift(subclasses_per_client=2), FINE, 5, "subclasses_per_client=2 ~ 5 subclasses"),
        (ConceptDrift(), Targets(TEN.labels // 4, fine=TEN.labels), 4, "ConceptDrift ~ 4, 4, 2"),
        (ConceptDrift(), SHARED, 2, "each subclass in one ~ 2, 2"),
        (ByDomain(), TEN, 2, "ByDomain ~ domains"),
    ],
)
def test_recipes_that_do_not_fit_the_data_are_refused(partitioner, data, clients, message):
    with pytest.raises(ValueError, match=parts(message)):
        deal(partitioner, data, clients, 0)


class Broken(Partitioner):
    def __init__(self, shares):
        self.shares = shares

    def draw(self, targets, num_clients, rng):
        return [np.array(share, np.int64) for share in self.shares]


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([[0, 1], [1, 2]], "Broken ~ 3 samples, 0 ~ no client ~ 1 more"),
        ([[0], [2]], "Broken ~ 3 samples, 1 ~ no client ~ 0 more"),
        ([[0, 1, 2]], "Broken ~ 1 shares ~ 2 clients"),
        ([[0, 1], [2, 3]], "Broken ~ 0..2"),
        ([[0, 1], [2, -1]], "Broken ~ 0..2"),
    ],
)
def test_what_is_no_partition_is_refused(shares, message):
    with pytest.raises(ValueError, match=parts(message)):
        deal(Broken(shares), Targets(np.zeros(3, np.int64)), 2, 0)
