"""The counter-based generator of normal draws: known answers, stacks, and the steps of a phase."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from pfl.core import noise
from pfl.core.noise import Noise, normals, numbers, stream, streams_of
from pfl.core.seeds import derive
from pfl.core.types import ClientInfo, Job, Phase

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
@pytest.mark.parametrize("host", [True, False], ids=["numpy", "torch"])
def test_known_answers(seed, known, host, monkeypatch):
    """The first numbers of the published generator, whose gamma is the golden ratio's."""
    monkeypatch.setattr(noise, "on_host", lambda device: host)
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


def test_draws_are_normal():
    """First four moments within four standard errors, and the whole distribution."""
    sample = drawn([derive(0, "noise")], count=2**20)[0, 0]
    for power, (moment, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
        error = (variance / len(sample)) ** 0.5
        assert abs(float(sample.pow(power).mean()) - moment) < 4 * error
    assert stats.kstest(sample[:200_000].numpy(), "norm").pvalue > 0.01
    assert 4.5 < float(sample.abs().max()) < 6.7


# The draws of a phase, step by step.


def draws(*seeds, name="one", steps=5, **shapes):
    phase = Phase(name=name, objective=dict, noise=shapes or {"a": (2, 3), "b": (5,)})
    jobs = [Job(ClientInfo(0, 1, None), {}, None, seed) for seed in seeds]
    return Noise.of(phase, jobs, steps, torch.device("cpu"))


def test_draws_bear_names_and_shapes_and_differ_from_step_to_step():
    own = draws(7)
    first, second = own.of_step(0), own.of_step(1)
    assert {name: d.shape for name, d in first.items()} == {"a": (1, 2, 3), "b": (1, 5)}
    assert not torch.equal(first["a"], second["a"])
    assert not torch.equal(first["a"].flatten()[:5], first["b"].flatten())


def test_phases_and_clients_have_draws_of_their_own():
    one, other, named = draws(7), draws(8), draws(7, name="other")
    found = [source.of_step(0)["a"] for source in (one, other, named)]
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_stack_draws_what_its_clients_draw_alone(monkeypatch):
    """Whoever is done draws no more; few or many steps at once, and steps that are left out."""
    for at_once in (4, 10, 2**10):
        monkeypatch.setattr(noise, "_AT_ONCE_ON_HOST", at_once)
        together, alone = draws(7, 8, 9), [draws(seed) for seed in (7, 8, 9)]
        for number, clients in ((0, 3), (1, 3), (3, 2), (4, 1)):
            found = together.of_step(number, clients)
            for name, value in found.items():
                own = torch.cat([one.of_step(number)[name] for one in alone[:clients]])
                assert torch.equal(value, own)


def test_draws_have_the_precision_of_the_run():
    torch.set_default_dtype(torch.float64)
    try:
        assert draws(7).of_step(0)["a"].dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
