"""Every random number of a run derives from a seed and a path, never from a global stream.

``generator(seed, "order", round, client, phase, epoch)`` gives the same numbers whoever asks, in
whatever order, in whatever process. That is why engines agree and a resumed run equals an unbroken
one.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_DEFAULT_STREAM = threading.RLock()


def derive(seed: int, *path: str | int) -> int:
    """Derive a 63-bit seed for the place ``path`` below ``seed``.

    Args:
        seed: The seed above.
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

    Two kinds of such code exist: the initialisers of ``torch.nn`` and dropout layers. The default
    stream is put back as it was on leaving, so nothing outside can tell that it was borrowed. One
    thread borrows it at a time.
    """
    cuda = device is not None and device.type == "cuda"
    devices = [device] if cuda and device is not None else []
    with _DEFAULT_STREAM, torch.random.fork_rng(devices=devices):
        torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
        if cuda and device is not None:
            torch.cuda.set_rng_state(
                torch.Generator(device).manual_seed(seed).get_state(), device=device
            )
        yield
