"""The classic mistakes of private averaging: each one is found by a test of this folder."""

from dataclasses import replace

import pytest

from pfl.extras.privacy import clients, clip
from pfl.extras.privacy.clients import ClientAccount
from pfl.extras.privacy.difference import bounded, difference
from pfl.extras.privacy.privacy import Privacy
from pfl.federation.sampling import BernoulliSampler, UniformSampler
from tests.extras.privacy import test_audit as audit
from tests.extras.privacy import test_passage as tests
from tests.extras.privacy import test_private as whole

add_noise = ClientAccount._add_noise
merge = ClientAccount.merge


def clip_per_layer(patch):
    def each(change, most):
        shared = {
            name: value * min(1, most / max(1e-12, float(value.norm())))
            for name, value in change.shared.items()
        }
        return replace(change, shared=shared)

    patch.setattr(clip, "bounded", each)
    patch.setattr(clients, "bounded", each)


def clip_without_extras(patch):
    def network(change, clip):
        return replace(bounded(replace(change, extra={}), clip), extra=change.extra)

    patch.setattr(clip, "bounded", network)
    patch.setattr(clients, "bounded", network)


def weights_by_samples(patch):
    def sized(upload, received, extra):
        return replace(difference(upload, received, extra), samples=upload.samples)

    def weighed(change, clip):
        short = bounded(change, clip)
        shared = {name: value * change.samples for name, value in short.shared.items()}
        return replace(short, shared=shared)

    patch.setattr(clip, "difference", sized)
    patch.setattr(clients, "bounded", weighed)


def denominator_of_those_who_came(patch):
    def shrunk(self, state, uploads, aggregate):
        own = replace(self, clients=max(1, len(uploads)), rate=1.0)
        return merge(own, state, uploads, aggregate)

    patch.setattr(ClientAccount, "merge", shrunk)


def noise_in_the_mean(patch):
    def scaled(self, sums, deviation, of, number):
        add_noise(self, sums, deviation * self.expected, of, number)

    patch.setattr(ClientAccount, "_add_noise", scaled)


def noise_over_the_mean_twice(patch):
    def scaled(self, sums, deviation, of, number):
        add_noise(self, sums, deviation / self.expected, of, number)

    patch.setattr(ClientAccount, "_add_noise", scaled)


def sigma_squared(patch):
    patch.setattr(Privacy, "sum_deviation", lambda self, expected: self.sigma**2)


def noise_of_the_clip_forgotten(patch):
    def scaled(self, sums, deviation, of, number):
        add_noise(self, sums, deviation / self.privacy.clip, of, number)

    patch.setattr(ClientAccount, "_add_noise", scaled)


def the_same_noise_in_every_round(patch):
    def same(self, sums, deviation, of, number):
        add_noise(self, sums, deviation, of, 1)

    patch.setattr(ClientAccount, "_add_noise", same)


def no_noise_in_an_empty_round(patch):
    def lazy(self, state, uploads, aggregate):
        if not uploads:
            return replace(state, round=state.round + 1)
        return merge(self, state, uploads, aggregate)

    patch.setattr(ClientAccount, "merge", lazy)


def a_count_that_is_not_centred(patch):
    def counted(self, state, uploads, aggregate):
        after = merge(self, state, uploads, aggregate)
        share = after.report["whole"] + (len(uploads) / self.expected - 1) / 2
        return replace(after, report={**after.report, "whole": share})

    patch.setattr(ClientAccount, "merge", counted)


def the_whole_sigma_for_update_and_count(patch):
    patch.setattr(Privacy, "sum_deviation", lambda self, expected: self.sigma)


def sampling_without_replacement(patch):
    def fixed(self, clients, rng, round):
        return UniformSampler(self.probability + 0.2)(clients, rng, round)

    patch.setattr(BernoulliSampler, "__call__", fixed)


FOUND_BY = {
    clip_per_layer: tests.test_a_round_by_hand,
    clip_without_extras: tests.test_the_clip_covers_extras_too,
    weights_by_samples: tests.test_samples_do_not_count,
    denominator_of_those_who_came: tests.test_who_is_absent_counts_as_zero,
    noise_in_the_mean: lambda: tests.test_noise_has_the_deviation_that_is_set("seed"),
    noise_over_the_mean_twice: lambda: tests.test_noise_has_the_deviation_that_is_set("seed"),
    sigma_squared: lambda: tests.test_noise_has_the_deviation_that_is_set("seed"),
    noise_of_the_clip_forgotten: lambda: tests.test_noise_has_the_deviation_that_is_set("seed"),
    the_same_noise_in_every_round: tests.test_noise_is_new_in_each_round_and_the_same_for_a_seed,
    no_noise_in_an_empty_round: tests.test_a_round_without_clients_adds_noise,
    a_count_that_is_not_centred: tests.test_absent_clients_count_as_halves,
    the_whole_sigma_for_update_and_count: (tests.test_the_update_of_an_adaptive_run_has_more_noise),
    sampling_without_replacement: whole.test_cohorts_are_poisson,
}


@pytest.mark.parametrize("mistake", FOUND_BY, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_found(mistake, monkeypatch):
    FOUND_BY[mistake]()
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        FOUND_BY[mistake]()


@pytest.mark.long
def test_the_audit_finds_too_little_noise():
    """With a fifth of the noise the same attacker proves more than the epsilon accounted for."""
    assert audit.bound(audit.SIGMA / 5, deviations=3.5) > audit.EPSILON


@pytest.mark.long
def test_the_audit_finds_a_clip_that_is_not_there(monkeypatch):
    monkeypatch.setattr(clip, "bounded", lambda change, clip: change)
    monkeypatch.setattr(clients, "bounded", lambda change, clip: change)
    assert audit.bound(audit.SIGMA, deviations=3.5) > audit.EPSILON
