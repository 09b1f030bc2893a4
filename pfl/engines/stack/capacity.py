"""The number of clients that fit into memory: bytes per client in a stack."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from pfl.core import devices
from pfl.core.data import members
from pfl.core.state import nbytes
from pfl.core.types import Inputs, Phase
from pfl.engines.memory import free
from pfl.training.batching import HELD_BYTES, batch_size
from pfl.training.context import Context

# State, gradients, an optimiser's two averages, kept state, upload, and one working copy.
_COPIES = 7


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
