import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pfl.core import state
from pfl.core.seeds import generator
from tests.helpers.messages import parts


def test_weighted_mean_by_hand():
    """0.25 * [1, 2] + 0.75 * [5, 6] = [4, 5]; the counter takes the largest."""
    a = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
    b = {"w": torch.tensor([5.0, 6.0]), "n": torch.tensor(2)}
    mean = state.weighted_mean([a, b], torch.tensor([0.25, 0.75], dtype=torch.float64))
    assert mean["w"].tolist() == [4.0, 5.0]
    assert mean["n"] == 3
    assert a["w"].tolist() == [1.0, 2.0]


@given(st.integers(0, 10**6), st.lists(st.integers(1, 999), min_size=1, max_size=9))
def test_mean_of_equal_states_is_that_state(seed, sizes):
    value = {"w": torch.randn(7, generator=generator(seed))}
    weights = torch.tensor(sizes, dtype=torch.float64)
    mean = state.weighted_mean([value] * len(sizes), weights / weights.sum())
    assert torch.equal(mean["w"], value["w"])


@given(st.integers(0, 10**6), st.lists(st.integers(1, 999), min_size=2, max_size=9))
def test_a_mean_from_which_one_is_missing_is_that_of_the_others_but_for_its_rounding(seed, sizes):
    """Sums are divided at the end, in double precision, so that the last bit may be another one.

    Both ways make at most n + 2 roundings of terms whose sum is as large as the mean of absolute
    values; then they are rounded to single precision.
    """
    rng, known = generator(seed), sum(sizes)
    states = [{"w": torch.randn(7, generator=rng)} for _ in sizes]
    left = [*zip(states, sizes, strict=True)][:-1]
    late, total = state.RunningMean(), sum(size for _, size in left)
    for one, size in left:
        late.add(one, size / known)
    weights = torch.tensor([size for _, size in left], dtype=torch.float64)
    mean = state.weighted_mean([one for one, _ in left], weights / weights.sum())["w"].double()
    sizes_of = sum(one["w"].double().abs() * size / total for one, size in left)
    allowed = mean.abs() * 2.0**-23 + sizes_of * (len(sizes) + 2) * 2.0**-52
    assert ((late.value(total / known)["w"] - mean).abs() <= allowed).all()


def test_mean_needs_a_weight_for_each_state():
    with pytest.raises(ValueError, match=parts("0 states ~ 0 weights")):
        state.weighted_mean([], torch.ones(0))
    one, two = {"a": torch.ones(1)}, {"a": torch.ones(1), "b": torch.ones(1)}
    for states in ([one, two], [two, one]):
        with pytest.raises(ValueError, match="'b' cannot be averaged"):
            state.weighted_mean(states, torch.ones(2) / 2)


def test_assign_refuses_unknown_names():
    with pytest.raises(KeyError, match=parts("Linear ~ 'bais'")):
        state.assign(nn.Linear(1, 1), {"bais": torch.zeros(1)})


def test_fingerprint_sees_every_bit_name_and_type():
    a = {"w": torch.zeros(2)}
    marks = {
        state.fingerprint([a]),
        state.fingerprint([{"v": torch.zeros(2)}]),
        state.fingerprint([{"w": torch.tensor([0.0, -0.0])}]),
        state.fingerprint([{"w": torch.zeros(2, dtype=torch.float64)}]),
        state.fingerprint([{"w": torch.zeros(2, 1)}]),
    }
    assert len(marks) == 5
    assert state.fingerprint([{"w": torch.zeros(2)}]) in marks


def test_finite():
    assert state.finite({})
    assert state.finite({"w": torch.ones(1), "n": torch.tensor(1)})
    assert not state.finite({"w": torch.tensor([1.0, float("nan")])})
    assert not state.finite({"w": torch.tensor([float("inf")])})


def test_a_mean_in_blocks_has_the_bits_of_one_without():
    """Of entries below, at and above the size of a block, in either layout, and signed zeros."""
    rng = torch.Generator().manual_seed(0)
    sizes = {"few": (7,), "edge": (2**15,), "many": (3, 2**15 + 5), "images": (64, 64, 4, 4)}
    states = [{n: torch.randn(size, generator=rng) for n, size in sizes.items()} for _ in range(3)]
    for one in states:
        one["few"][0] = -0.0
        one["images"] = one["images"].contiguous(memory_format=torch.channels_last)
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    found = state.weighted_mean(states, weights)
    for name in sizes:
        first, *others = (one[name].double() for one in states)
        total = first * weights[0]
        for other, weight in zip(others, weights[1:].tolist(), strict=True):
            total.add_(other, alpha=weight)
        assert torch.equal(found[name].view(torch.int32), total.float().view(torch.int32))
