import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl.core.seeds import generator
from pfl.federation.sampling import AllFirst, BernoulliSampler, FixedStragglers, UniformSampler


@given(st.integers(1, 60), st.floats(0.01, 1.0), st.integers(0, 99))
def test_uniform_takes_the_rounded_down_share_of_the_clients(clients, fraction, seed):
    """max(1, int(n * fraction)), distinct, ascending, and the same for the same rng."""
    sampler = UniformSampler(fraction)
    cohort = sampler(range(clients), generator(seed), 1)
    assert len(cohort.uploads) == min(clients, max(1, int(clients * fraction + 1e-9)))
    assert list(cohort.uploads) == sorted(set(cohort.uploads))
    assert cohort.trains == cohort.uploads
    assert cohort == sampler(range(clients), generator(seed), 1)


def test_floating_point_does_not_lose_a_client():
    assert len(UniformSampler(0.29)(range(100), generator(0), 1).uploads) == 29


def test_train_all():
    cohort = UniformSampler(0.4, train_all=True)([3, 5, 8, 13, 20], generator(0), 1)
    assert cohort.trains == (3, 5, 8, 13, 20)
    assert len(cohort.uploads) == 2
    assert {*cohort.uploads} < {*cohort.trains}


@given(st.integers(2, 50), st.integers(0, 99))
def test_bernoulli_draws_again_until_enough_upload(clients, seed):
    cohort = BernoulliSampler(0.05)(range(clients), generator(seed), 1)
    assert len(cohort.uploads) >= 2
    assert cohort.trains == tuple(range(clients))


def test_bernoulli_mean():
    """400 draws of 50 clients at 0.1 upload 2000 times on average; 5 deviations: 212."""
    sampler = BernoulliSampler(0.1, minimum=0)
    drawn = sum(len(sampler(range(50), generator(0, i), 1).uploads) for i in range(400))
    assert abs(drawn - 2000) < 212


@pytest.mark.parametrize(
    ("probability", "minimum", "clients"), [(1e-12, 2, 20), (1e-3, 5, 50), (0.5, 900, 1000)]
)
def test_a_cohort_that_would_never_come_is_refused(probability, minimum, clients):
    """Of 20 clients two upload with probability 190 * 1e-24: drawing again would never end."""
    sampler = BernoulliSampler(probability, minimum)
    given = f"probability={probability} .*minimum={minimum} uploads from {clients} clients"
    with pytest.raises(ValueError, match=f"{given}.*raise probability .*{minimum / clients:.2g}"):
        sampler(range(clients), generator(0), 1)


def test_a_rare_cohort_is_waited_for():
    """Both of two clients at 0.01: one draw of 10,000."""
    assert BernoulliSampler(0.01)(range(2), generator(0), 1).uploads == (0, 1)
    assert BernoulliSampler(1.0, minimum=3)(range(3), generator(0), 1).uploads == (0, 1, 2)
    nobody = BernoulliSampler(1e-12, minimum=0, train_all=False)(range(3), generator(0), 1)
    assert nobody.uploads == () == nobody.trains


@given(st.integers(1, 40), st.floats(0, 0.99), st.floats(0, 1), st.integers(0, 99))
def test_fixed_stragglers_are_the_same_in_all_rounds(clients, share, probability, seed):
    sampler = FixedStragglers(share, probability, seed)
    late = int(share * clients + 1e-9)
    cohorts = [
        sampler(range(clients), generator(seed, number), number).uploads for number in range(5)
    ]
    always = set.intersection(*map(set, cohorts))
    assert len(always) >= clients - late >= 1
    never = FixedStragglers(share, 0, seed)(range(clients), generator(7), 1).uploads
    assert len(never) == clients - late
    assert set(never) <= always


def test_stragglers_take_part_by_chance():
    """400 rounds of 10 stragglers at 0.2: 800 on average; 5 deviations: 127."""
    sampler = FixedStragglers(0.5, 0.2)
    drawn = sum(len(sampler(range(20), generator(0, i), i).uploads) - 10 for i in range(400))
    assert abs(drawn - 800) < 127


def test_all_take_part_in_the_first_round():
    """FedOTP's released code; the others are drawn as without."""
    then = UniformSampler(0.2)
    assert AllFirst(then)(range(20), generator(1), 1).uploads == tuple(range(20))
    for number in (2, 3):
        drawn = [one(range(20), generator(number), number) for one in (then, AllFirst(then))]
        assert drawn[0] == drawn[1]
        assert len(drawn[0].uploads) == 4


def test_numpy_seed_draws_pfllibs_cohorts():
    """FedAS's released code seeds numpy's global stream with 0 and chooses 4 of 20 once a round."""
    stream, sampler = np.random.RandomState(0), UniformSampler(0.2, numpy_seed=0)
    for number in range(1, 6):
        wanted = sorted(stream.choice(20, 4, replace=False).tolist())
        assert list(sampler(range(20), generator(number), number).uploads) == wanted
    assert sampler(range(20), generator(0), 1).uploads == (1, 8, 18, 19)


def test_numpy_seed_draws_pfedvems_cohorts():
    """Its released code draws 100 uniform numbers, again while fewer than two are below 0.1."""
    stream, sampler = np.random.default_rng(1234), BernoulliSampler(0.02, numpy_seed=1234)
    for number in range(1, 8):
        joined = []
        while len(joined) < 2:
            joined = np.flatnonzero(stream.uniform(size=100) < 0.02).tolist()
        cohort = sampler(range(100), generator(number), number)
        assert list(cohort.uploads) == joined
        assert cohort.trains == tuple(range(100))
