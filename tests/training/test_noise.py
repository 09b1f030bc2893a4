"""The draws of a phase, step by step."""

from __future__ import annotations

import torch

from pfl.core import noise
from pfl.core.types import ClientInfo, Job, Phase
from pfl.training.noise import Noise


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


def test_a_phase_without_noise_draws_nothing():
    phase = Phase(name="one", objective=dict)
    assert Noise.of(phase, [], 3, torch.device("cpu")).of_step(0) == {}


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
