"""The counter-based generator of normal draws: known answers, stacks, and how random it is."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from pfl.core import noise
from pfl.core.noise import normals, numbers, stream, streams_of
from pfl.core.seeds import derive

CPU = torch.device("cpu")
GOLDEN = 0x9E3779B97F4A7C15


def drawn(keys, first=0, steps=1, count=1000, dtype=torch.float64):
    return normals(streams_of(keys, CPU), first, steps, count, dtype)


def bits(seed, gamma, count, start=0):
    """Numbers of one stream, as unsigned numbers of 64 bits."""
    out = torch.empty(1, count, dtype=torch.int64)
    pair = (torch.tensor([[noise._signed(value)]]) for value in (seed, gamma))
    numbers(*pair, start, out, torch.empty_like(out))
    return [value % 2**64 for value in out[0].tolist()]


@pytest.mark.parametrize(
    ("seed", "known"),
    [
        (0, (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC)),
        (
            1234567,
            (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431),
        ),
    ],
)
def test_known_answers(seed, known):
    """The first numbers of the published generator, whose gamma is the golden ratio's."""
    assert tuple(bits(seed, GOLDEN, 4)) == known
    assert bits(seed, GOLDEN, 2, start=2) == [*known[2:]]


def test_numbers_far_along_a_stream_are_those_of_whole_numbers():
    """Python's integers do not overflow; products, sums and shifts of 64 bits do, as is meant."""

    def plain(value):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            value = (value ^ value >> shift) * factor % 2**64
        return value

    seed, gamma, start = 2**63 + 11, 2**64 - 12345, 2**40
    expected = [plain((seed + n * gamma) % 2**64) for n in range(start + 1, start + 6)]
    assert bits(seed, gamma, 5, start) == expected


def test_streams_have_odd_gammas_whose_bits_change_often():
    found = [stream(key) for key in range(2000)]
    assert len(set(found)) == 2000
    for _, gamma in found:
        assert gamma % 2 == 1
        assert (gamma ^ gamma >> 1).bit_count() >= 24


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 7, 300])
def test_a_draw_depends_on_key_and_step_alone(count, dtype, monkeypatch):
    """Not on who stands beside it, on what is drawn with it, or on how much is made at once."""
    whole = drawn([3, 4, 5], 0, 6, count, dtype)
    assert whole.shape == (3, 6, count)
    assert whole.dtype == dtype
    assert torch.equal(drawn([4], 2, 3, count, dtype), whole[1:2, 2:5])
    monkeypatch.setattr(noise, "_AT_ONCE_ON_HOST", 16)
    assert torch.equal(drawn([3, 4, 5], 0, 6, count, dtype), whole)


def test_precisions_draw_the_same_numbers():
    fine, coarse = drawn([1], count=100_000), drawn([1], count=100_000, dtype=torch.float32)
    torch.testing.assert_close(coarse.double(), fine, rtol=1e-5, atol=1e-4)


def test_draws_are_normal():
    """First four moments within four standard errors, and the whole distribution."""
    sample = drawn([derive(0, "noise")], count=2**20)[0, 0]
    for power, (moment, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
        error = (variance / len(sample)) ** 0.5
        assert abs(float(sample.pow(power).mean()) - moment) < 4 * error
    assert stats.kstest(sample[:200_000].numpy(), "norm").pvalue > 0.01
    assert 4.5 < float(sample.abs().max()) < 6.7


def test_every_bit_is_a_coin():
    """Each of 64 bits is one as often as zero, and follows none of its neighbours."""
    count = 2**16
    words = torch.tensor([value - 2**63 for value in bits(*stream(derive(1, "bits")), count)])
    coins = (words[:, None] >> torch.arange(64) & 1).double() * 2 - 1
    assert float(coins.mean(0).abs().max()) < 4.5 / count**0.5
    apart = coins.T @ coins / count - torch.eye(64, dtype=torch.float64)
    assert float(apart.abs().max()) < 5 / count**0.5


def test_neighbours_are_not_correlated():
    """Draws of keys that differ by one or one bit, of the next step, and of the next counter."""
    count, key = 2**17, derive(2, "noise")
    first, *others = drawn([key, key + 1, key ^ 1 << 40, key + GOLDEN], count=count)[:, 0]
    whole = drawn([key], 0, 2, count)[0]
    halves = first.chunk(2)
    pairs = [(first, other) for other in others]
    pairs += [(whole[0], whole[1]), (first[1:], first[:-1]), halves]
    for one, other in pairs:
        for own, fellow in ((one, other), (one.square() - 1, other.square() - 1)):
            correlation = float(torch.corrcoef(torch.stack([own, fellow]))[0, 1])
            assert abs(correlation) < 4 / len(own) ** 0.5
