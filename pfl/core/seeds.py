"""Random streams that derive from a seed and a path, never from global state.

``generator(seed, "order", round, client, phase, epoch)`` gives the same numbers to every caller, in
any order and in any process. This is why engines agree, and why a resumed run equals an
uninterrupted one.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from pfl.core.devices import on_host

GENERATOR = "splitmix64"
"""That of ``pfl.core.noise``; runs that draw noise record it, as another would draw others."""

_DEFAULT_STREAM = threading.RLock()


def derive(seed: int, *path: str | int) -> int:
    """Derive a 63-bit seed from a seed and a path.

    Args:
        seed: The seed to derive from.
        path: Words and numbers that name the purpose, for instance ``"client", round, client``.

    Example:
        >>> derive(42, "client", 1, 7) == derive(42, "client", 1, 7)
        True
        >>> derive(42, "client", 1, 7) == derive(42, "client", 17)
        False
    """
    key = repr((seed, *path)).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1


def generator(seed: int, *path: str | int) -> torch.Generator:
    """Return a CPU generator seeded by :func:`derive`."""
    return torch.Generator().manual_seed(derive(seed, *path))


@contextmanager
def scoped(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's default stream inside this scope, for code that can only draw from it.

    Such code is the initialisers of ``torch.nn`` and dropout layers. The default stream is restored
    on exit. Only one thread at a time can be inside.
    """
    place = torch.device("cpu") if device is None else device
    others = [] if on_host(place) else [place]
    with _DEFAULT_STREAM, torch.random.fork_rng(devices=others, device_type=place.type):
        torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
        for other in others:
            start = torch.Generator(other).manual_seed(seed).get_state()
            torch.get_device_module(other).set_rng_state(start, other)
        yield


@contextmanager
def everything_scoped(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the default streams of torch, NumPy and Python inside this scope, and restore them.

    This is for code of others, which may draw from any of them and takes no generator. Nothing of
    the project draws from NumPy's or Python's, and they are as before afterwards.
    """
    # All within the scope that one thread at a time can be in: what is restored is nobody's seed.
    with scoped(seed, device):
        numpy, python = np.random.get_state(), random.getstate()
        try:
            np.random.set_state(np.random.RandomState(seed % 2**32).get_state())
            random.setstate(random.Random(seed).getstate())
            yield
        finally:
            np.random.set_state(numpy)
            random.setstate(python)


def default_streams(device: torch.device) -> list[torch.Tensor]:
    """Return the states of torch's default streams on the CPU and on a device."""
    states = [torch.get_rng_state()]
    if not on_host(device):
        states.append(torch.get_device_module(device).get_rng_state(device))
    return states


def streams() -> tuple[bytes, str, object]:
    """Return the states of the default streams of torch, NumPy and Python."""
    state = torch.get_rng_state().numpy().tobytes()
    return state, repr(np.random.get_state(legacy=False)), random.getstate()
