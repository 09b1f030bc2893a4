"""The classic mistakes of private averaging: each one is found by a test of this folder."""

from dataclasses import replace
from functools import partial

import pytest

from pfl.core.server import Round
from pfl.extras.privacy import clients, clip
from pfl.extras.privacy.clients import ClientAccount
from pfl.extras.privacy.difference import bounded
from pfl.extras.privacy.terms import Terms
from pfl.federation.sampling import BernoulliSampler, UniformSampler
from tests.extras.privacy import test_audit as audit
from tests.extras.privacy import test_passage as tests
from tests.extras.privacy import test_private as whole

add_noise, fold = ClientAccount._add_noise, ClientAccount.fold
sends = clip.difference


def noise(factor):
    """Noise of another deviation."""

    def scaled(self, sums, deviation, of, number):
        add_noise(self, sums, deviation * factor(self), of, number)

    return scaled


def per_layer(change, most):
    lengths = {name: max(1e-12, float(value.norm())) for name, value in change.shared.items()}
    factors = {name: min(1, most / length) for name, length in lengths.items()}
    return replace(change, shared={n: v * factors[n] for n, v in change.shared.items()})


def without_extras(change, most):
    return replace(bounded(replace(change, extra={}), most), extra=change.extra)


def by_samples(change, most):
    short = bounded(change, most)
    return replace(short, shared={n: v * change.samples for n, v in short.shared.items()})


class Counts(Round):
    """The sum of a round, which ends in another way; it counts who came."""

    def __init__(self, own, state, end):
        super().__init__()
        self.own, self.sum, self.count, self.end = own, fold(own, state), 0, end

    def add(self, upload):
        self.count += 1
        self.sum.add(upload)

    def finish(self, without=()):
        return self.end(self)


def of_those_who_came(self, state):
    def end(found):
        found.sum._account = replace(self, clients=max(1, found.count), rate=1.0)
        return found.sum.finish()

    return Counts(self, state, end)


def lazy(self, state):
    def end(found):
        return found.sum.finish() if found.count else replace(state, round=state.round + 1)

    return Counts(self, state, end)


def not_centred(self, state):
    def end(found):
        after = found.sum.finish()
        share = after.report["whole"] + (found.count / self.expected - 1) / 2
        return replace(after, report={**after.report, "whole": share})

    return Counts(self, state, end)


BOUNDS = ((clip, "bounded"), (clients, "bounded"))
NOISE, FOLD = ((ClientAccount, "_add_noise"),), ((ClientAccount, "fold"),)
SUM = ((Terms, "sum_deviation"),)
DEVIATION = partial(tests.test_noise_has_the_deviation_that_is_set, "seed")
# What stands where of the right one, and the test that finds it.
MISTAKES = {
    "clip per layer": (BOUNDS, per_layer, tests.test_a_round_by_hand),
    "clip without extras": (BOUNDS, without_extras, tests.test_the_clip_covers_extras_too),
    "denominator of those who came": (
        *(FOLD, of_those_who_came, tests.test_who_is_absent_counts_as_zero),
    ),
    "noise in the mean": (NOISE, noise(lambda own: own.expected), DEVIATION),
    "noise over the mean twice": (NOISE, noise(lambda own: 1 / own.expected), DEVIATION),
    "noise of the clip forgotten": (NOISE, noise(lambda own: 1 / own.privacy.clip), DEVIATION),
    "sigma squared": (SUM, lambda self, expected: self.sigma**2, DEVIATION),
    "the same noise in every round": (
        NOISE,
        lambda self, sums, deviation, of, number: add_noise(self, sums, deviation, of, 1),
        tests.test_noise_is_new_in_each_round_and_the_same_for_a_seed,
    ),
    "no noise in an empty round": (FOLD, lazy, tests.test_a_round_without_clients_adds_noise),
    "a count that is not centred": (FOLD, not_centred, tests.test_absent_clients_count_as_halves),
    "the whole sigma for update and count": (
        SUM,
        lambda self, expected: self.sigma,
        tests.test_the_update_of_an_adaptive_run_has_more_noise,
    ),
    "sampling without replacement": (
        ((BernoulliSampler, "__call__"),),
        lambda self, *given: UniformSampler(self.probability + 0.2)(*given),
        whole.test_cohorts_are_poisson,
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake, monkeypatch):
    places, wrong, finds = MISTAKES[mistake]
    finds()
    for owner, name in places:
        monkeypatch.setattr(owner, name, wrong)
    # A test finds it, or already the account, which looks at clip and noise itself.
    with pytest.raises((AssertionError, ValueError)):
        finds()


def test_weights_by_samples_are_found(monkeypatch):
    tests.test_samples_do_not_count()
    monkeypatch.setattr(
        clip, "difference", lambda up, *given: replace(sends(up, *given), samples=up.samples)
    )
    monkeypatch.setattr(clients, "bounded", by_samples)
    with pytest.raises((AssertionError, ValueError)):
        tests.test_samples_do_not_count()


@pytest.mark.long
def test_the_audit_finds_too_little_noise():
    """With a fifth of the noise the same attacker proves more than the epsilon accounted for."""
    assert audit.bound(audit.SIGMA / 5, deviations=3.5) > audit.EPSILON


@pytest.mark.long
def test_the_audit_finds_a_clip_that_is_not_there(monkeypatch):
    monkeypatch.setattr(clip, "bounded", lambda change, clip: change)
    monkeypatch.setattr(clients, "bounded", lambda change, clip: change)
    with pytest.raises(ValueError, match="the difference of client 0 was not clipped"):
        audit.bound(audit.SIGMA)
    monkeypatch.setattr(clients, "_check_clipped", lambda change, clip: None)
    assert audit.bound(audit.SIGMA, deviations=3.5) > audit.EPSILON
