"""The difference that a client sends: its upload minus what it received.

A difference is a :class:`pfl.core.types.Upload` in float64. Its norm is that of all entries as one
vector, both in ``shared`` and in ``extra``.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import torch

from pfl.core.devices import wide
from pfl.core.types import Broadcast, State, Upload


def difference(upload: Upload, received: Broadcast, extra: Collection[str] | None) -> Upload:
    """Return what a client sends minus what it received.

    An entry that the client did not receive is taken as zero before. An entry that it received but
    does not send is left out, which means zero.

    Args:
        upload: What the client would send.
        received: What it received.
        extra: Names in ``extra`` to send; ``None`` for all.
    """
    sent = {n: v for n, v in upload.extra.items() if extra is None or n in extra}
    # The number of samples is not part of the difference.
    return Upload(
        upload.client, 1, _minus(upload.shared, received.shared), _minus(sent, received.extra)
    )


def norm(change: Upload) -> float:
    """Return the Euclidean norm of a difference over all entries."""
    values = [*change.shared.values(), *change.extra.values()]
    if not values:
        return 0.0
    lengths = [torch.linalg.vector_norm(value) for value in values]
    return float(torch.linalg.vector_norm(torch.stack(lengths)))


def bounded(change: Upload, clip: float) -> Upload:
    """Return a difference scaled by ``min(1, clip / norm)``: one factor for all entries.

    A difference whose norm is not finite becomes zero.
    """
    length = norm(change)
    if length <= clip:
        return change
    finite, factor = math.isfinite(length), clip / length

    def scaled(values: State) -> State:
        return {n: v * factor if finite else torch.zeros_like(v) for n, v in values.items()}

    return replace(change, shared=scaled(change.shared), extra=scaled(change.extra))


def _minus(values: State, received: State) -> State:
    return {
        name: wide(value) - wide(received[name]) if name in received else wide(value)
        for name, value in values.items()
    }
