"""The number of clients that fit into memory: bytes per client in a stack, and free bytes."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pfl.core import devices
from pfl.core.data import members
from pfl.core.state import nbytes
from pfl.core.types import Inputs, Phase
from pfl.engines.cores import CGROUP
from pfl.training.batching import HELD_BYTES, batch_size

if TYPE_CHECKING:
    from pfl.training.context import Context

# State, gradients, an optimiser's two averages, kept state, upload, and one working copy.
_COPIES = 7
# Files with the limit of a container and what it uses (cgroups of versions 2 and 1).
_GROUPS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def capacity(context: Context) -> int:
    """Return how many clients of the largest size fit into half the free memory, at least one."""
    return max(1, free(context.fabric.device) // 2 // of_client(context))


def of_client(context: Context) -> int:
    """Return the bytes that the client with the most training samples needs in a stack.

    They are calculated, not measured: copies of its state, its samples as floats, and what one
    batch needs for the backward pass or in a test.
    """
    data = context.data
    client = max(members(data), key=lambda c: len(data.split(c, "train")))
    split, phases = data.split(client, "train"), [p for p in context.plan if isinstance(p, Phase)]
    samples = max(1, len(split))
    with context.fabric.autocast():
        probe = split.batch(torch.arange(min(len(split), data.batch_size)))
        count, number = max(1, len(probe.y)), torch.get_default_dtype().itemsize
        saved, widest = (value / count for value in _saved(context, probe.x))
    sample = nbytes(probe.x) / count
    held = sample * samples if sample * samples <= HELD_BYTES else 0
    sizes = [batch_size(context, phase, samples) for phase in phases]
    noise = [number * sum(prod(shape) for shape in p.noise.values()) for p in phases]
    # The gradients of saved values are about as large as the values. Fixed steps keep their draws
    # in separate memory.
    draws = 3 if devices.repeats(context.fabric.device) else 2
    step = 2 * (sample + saved) * max(sizes, default=0) + draws * max(noise, default=0)
    test = 2 * (sample + widest) * data.eval_batch_size
    # Samples are normalised client by client and then stacked, so they exist twice.
    return int(_COPIES * nbytes(context.template) + 2 * held + max(step, test)) + 1


def free(device: torch.device) -> int:
    """Return the free bytes of a device: its own, or the host's within a container's limit."""
    left = devices.free(device)
    return left if left is not None else min(_machine(), *(_group(*files) for files in _GROUPS))


def total() -> int:
    """Return the bytes of the machine's memory, or of its container's."""
    limits = (_number(limit) for limit, _ in _GROUPS)
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *limits)


def _machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        fields = dict(line.split(":") for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        # Where free memory is not reported, assume half of the total.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _group(limit: str, used: str) -> int:
    """Return the free bytes of a container; without a limit, a very large number."""
    return max(0, _number(limit) - _number(used, 0))


def _number(file: str, otherwise: int = 2**62) -> int:
    try:
        return int((CGROUP / file).read_text())
    except (OSError, ValueError):
        return otherwise


def _saved(context: Context, x: Inputs) -> tuple[int, int]:
    """Return the bytes saved for the backward pass, and those of the largest saved tensor."""
    entries = {value.data_ptr() for value in context.entries.values()}
    sizes: dict[int, int] = {}

    def note(value: Tensor) -> Tensor:
        if value.data_ptr() not in entries:
            sizes[value.data_ptr()] = value.nbytes
        return value

    context.module.eval()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
        context.module(x)
    context.module.train()
    return sum(sizes.values()), max(sizes.values(), default=0)
