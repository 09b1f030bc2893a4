"""The arithmetic of a private round: one clip, equal weights, a fixed denominator, noise of sC."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl.core.server import ServerState
from pfl.core.types import Upload
from pfl.extras.privacy.clip import WHOLE
from pfl.extras.privacy.difference import norm
from tests.extras.privacy.toy import after, passage, played, uploaded

ONE = {"a": [3.0, 0.0], "b": [4.0]}
NONE = {"a": [0.0, 0.0], "b": [0.0]}
NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32)


def test_a_round_by_hand():
    """(3, 0, 4) of norm 5 becomes (0.6, 0, 0.8), and (0.3, 0, 0) stays; both over q N = 2."""
    found = played(passage(clients=4, rate=0.5), ONE, {"a": [0.3, 0.0], "b": [0.0]})
    assert found.shared["a"].tolist() == pytest.approx([0.45, 0])
    assert found.shared["b"].tolist() == pytest.approx([0.4])
    assert (found.round, found.client_report) == (1, None)


def test_the_clip_covers_extras_too():
    found = played(passage(clients=1, extra=["c"]), {**NONE, "a": [3.0, 0.0], "c": 4.0})
    assert found.shared["a"].tolist() == pytest.approx([0.6, 0])
    assert found.report["c"] == pytest.approx(0.8)


def test_who_is_absent_counts_as_zero():
    """The denominator is q N, however many clients have come."""
    one, two = played(passage(), ONE), played(passage(), ONE, NONE)
    assert torch.equal(one.shared["a"], two.shared["a"])
    assert one.shared["b"].tolist() == pytest.approx([0.4])


@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_a_client_whose_update_is_zero_changes_no_number(sigma):
    own = passage(sigma=sigma)
    with_it, without = played(own, ONE, NONE), played(own, ONE)
    assert all(torch.equal(with_it.shared[n], without.shared[n]) for n in "ab")


def test_samples_do_not_count():
    own = passage()
    few, many = uploaded(own, ONE, samples=1), uploaded(own, ONE, samples=1000)
    assert few[0].samples == many[0].samples == 1
    assert torch.equal(after(own, few).shared["a"], after(own, many).shared["a"])


def test_a_round_without_clients_adds_noise():
    found = played(passage(sigma=1.0))
    assert found.shared["a"].count_nonzero() == 2
    assert found.round == 1


@given(st.lists(NUMBERS, min_size=3, max_size=3), st.floats(1e-3, 1e3))
@settings(max_examples=100, deadline=None)
def test_no_difference_is_longer_than_the_clip(values, clip):
    first, *others = values
    (sent,) = uploaded(passage(clip), {"a": others, "b": [first]})
    assert norm(sent) <= clip * (1 + 1e-12)


@pytest.mark.parametrize("factor", [2.0**20, 3.0])
def test_scaling_a_difference_above_the_clip_changes_nothing(factor):
    large = {name: [factor * value for value in values] for name, values in ONE.items()}
    plain, scaled = played(passage(), ONE), played(passage(), large)
    for name in "ab":
        assert torch.allclose(plain.shared[name], scaled.shared[name], rtol=1e-7, atol=0)


def test_what_arrives_is_clipped_again():
    """A site may send what it likes: neither longer vectors nor other entries count."""
    wild = Upload(0, 1, {"a": torch.tensor([30.0, 0.0]).double(), "z": torch.ones(5)}, {})
    found = after(passage(clients=1), [wild])
    assert found.shared["a"].tolist() == [1, 0]
    assert "z" not in found.shared


@pytest.mark.parametrize("source", ["seed", "system"])
def test_noise_has_the_deviation_that_is_set(source):
    """Of the estimate: sigma C / (q N) = 2 * 3 / 5."""
    own = passage(clip=3.0, sigma=2.0, clients=10, rate=0.5, noise=source)
    wide = {"a": torch.zeros(200_000), "b": torch.zeros(1)}
    found = played(own, start=wide)
    assert found.shared["a"].std().item() == pytest.approx(1.2, rel=0.01)
    assert abs(found.shared["a"].mean().item()) < 0.02


def test_noise_is_new_in_each_round_and_the_same_for_a_seed():
    own, state = passage(sigma=1.0), ServerState(played(passage(sigma=1.0)).shared, round=1)
    again, later = played(own), played(own, state=state)
    assert torch.equal(again.shared["a"], state.shared["a"])
    assert not torch.equal(later.shared["a"] - state.shared["a"], again.shared["a"])


def test_noise_of_the_system_is_never_the_same():
    own = passage(sigma=1.0, noise="system")
    assert not torch.equal(played(own).shared["a"], played(own).shared["a"])


# The adaptive clip.


def test_the_clip_follows_the_share_of_short_differences():
    """One of two differences is short: b = 1/2, so C stays; both are: C exp(-0.2 (1 - 0.5))."""
    own = passage(clip=1.0, adaptive=True)
    half, both = played(own, ONE, NONE), played(own, NONE, NONE)
    assert half.report == {"clip": 1.0, "whole": 0.5}
    assert own.clip(half) == 1.0
    assert own.clip(both) == pytest.approx(math.exp(-0.1))
    neither = played(own, ONE, ONE)
    assert own.clip(neither) == pytest.approx(math.exp(0.1))


def test_the_next_round_is_clipped_by_the_new_clip():
    own = passage(clip=1.0, adaptive=True, clients=1)
    first = played(own, ONE)
    (sent,) = uploaded(own, ONE, state=first)
    assert norm(replace(sent, extra={})) == pytest.approx(math.exp(0.1))
    assert sent.extra == {WHOLE: torch.tensor(-0.5)}


def test_absent_clients_count_as_halves():
    """Each bit is centred, so that one client moves the count by a half and not by one."""
    own = passage(adaptive=True, clients=2)
    assert played(own).report["whole"] == 0.5
    assert played(own, NONE).report["whole"] == 0.75


def test_the_count_has_noise_of_its_own():
    """Its deviation is q N / 20, which is 1/20 of the share."""
    shares = [
        played(passage(sigma=1.0, clients=20, adaptive=True, seed=seed)).report["whole"]
        for seed in range(1000)
    ]
    assert torch.tensor(shares).std().item() == pytest.approx(0.05, rel=0.1)


def test_the_update_of_an_adaptive_run_has_more_noise():
    """sigma 3 and sigma_b 100 / 20 = 5: (1/9 - 1/100) ** -0.5 = 3.1449."""
    own = passage(sigma=3.0, clients=100, adaptive=True)
    assert own.privacy.sum_deviation(own.expected) == pytest.approx(3.144854510)
    wide = {"a": torch.zeros(200_000), "b": torch.zeros(1)}
    found = played(own, start=wide)
    assert found.shared["a"].std().item() == pytest.approx(0.03144854510, rel=0.01)
