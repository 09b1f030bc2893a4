"""Promises that every engine gives the same numbers, and that methods run on any device."""

from __future__ import annotations

from functools import partial
from typing import Any

from pfl.core.failure import line_of
from pfl.core.state import named
from pfl.engines import op_threads
from pfl.engines.base import Engine
from pfl.engines.sequential import SequentialEngine
from pfl.engines.threads import ThreadsEngine
from pfl.engines.vectorised import VectorisedEngine
from pfl.federation.run import Run
from pfl.federation.sampling import UniformSampler
from pfl.testing.compare import distance
from pfl.testing.device import DEVICE, MixedDevicesError, SecondDevice
from pfl.testing.federation import ToyFederation, fit, outcome
from pfl.testing.promise import (
    ONE,
    BrokenPromiseError,
    Subject,
    check_same,
    promise,
    vectorizable,
)
from pfl.testing.toy import normed

# The last client is not of the federation.
SIZES = (4, 9, 1, 6, 5)
ASIDE = 4
ROUNDS = 2
# Scores are computed in float32.
CLOSE = {"server": 1e-10, "kept": 1e-10, "history": 1e-5}


def _run(subject: Subject, engine: Engine, **loop: Any) -> Run:
    options = {"sampler": UniformSampler(0.8), "engine": engine, **loop}
    data = subject.data(SIZES)
    data.apart = {"aside": [ASIDE]}
    run = fit(subject.with_momentum(), data, ROUNDS, **options)
    if ASIDE in run.kept:
        raise BrokenPromiseError("a client that is not of the federation takes part in its rounds")
    return run


@promise("clients in threads give exactly the sequential engine's numbers")
def threads_agree(subject: Subject) -> None:
    """Run two rounds with three of four unequal clients under both engines."""
    with op_threads.using(1):
        engines = SequentialEngine(), ThreadsEngine(3)
        alone, beside = (_run(subject, engine) for engine in engines)
    check_same(outcome(alone), outcome(beside), "{name!r} differs")


@promise(
    "stacked clients give the sequential engine's numbers",
    applies=vectorizable,
    nets={**ONE, " (with batch norm)": partial(normed, bias=False)},
)
def stacked_agrees(subject: Subject) -> None:
    """Run two rounds with three of four unequal clients under both engines, in float64."""
    alone, beside = (
        _run(subject, engine, precision="64-true")
        for engine in (SequentialEngine(), VectorisedEngine())
    )
    used = beside.header["engine"]
    if not used.startswith("vectorised"):
        raise BrokenPromiseError(used.removeprefix("sequential, not vectorised: "))
    one, other = outcome(alone), outcome(beside)
    for part, close in CLOSE.items():
        apart, name = distance(named(one[part], part), named(other[part], part))
        if apart > close:
            raise BrokenPromiseError(f"{name!r} differs by {apart:.1e} of its largest value")


@promise("it works on any device")
def works_on_any_device(subject: Subject) -> None:
    """Run two rounds on a device whose tensors cannot be mixed with others."""
    module = subject.with_momentum()
    try:
        with SecondDevice():
            ToyFederation(module, subject.data(), device=DEVICE).play()
    except MixedDevicesError as error:
        raise BrokenPromiseError(f"{error}{line_of(error)}") from error
