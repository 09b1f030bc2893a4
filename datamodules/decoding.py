"""Decoding of samples, once, into memory or into a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from datamodules.checks import require
from datamodules.files import progress
from pfl.core.seeds import scoped
from pfl.core.state import nbytes
from pfl.disk.room import Room


def decoded(
    samples: Iterable[Mapping[str, Tensor]], count: int, memory: float
) -> dict[str, Tensor]:
    """Stack samples, each a mapping of names to tensors, into one tensor for each name.

    Random transforms of the samples use a separate random stream.

    Args:
        samples: The samples.
        count: Number of samples, at least one.
        memory: Limit in gigabytes. Larger tensors are stored in temporary files until the process
            ends.

    Returns:
        (count, ...) tensors.

    Raises:
        ValueError: The names, shape or type of a sample differ from the first one's.
    """
    whole: dict[str, Tensor] = {}
    with scoped(0):
        for number, sample in enumerate(progress(samples, f"Decoding {count:,} samples", count)):
            if not whole:
                room = Room(nbytes(sample) * count, memory * 1e9)
                whole = {
                    name: room.empty(torch.Size([count, *value.shape]), value)
                    for name, value in sample.items()
                }
            _check(sample, whole, number)
            for name, value in sample.items():
                whole[name][number] = value
    return whole


def _check(sample: Mapping[str, Tensor], whole: Mapping[str, Tensor], number: int) -> None:
    require(
        sample.keys() == whole.keys(),
        f"sample {number} has {', '.join(sample)}, but sample 0 has {', '.join(whole)}",
    )
    for name, value in sample.items():
        first = whole[name][0]
        require(
            value.shape == first.shape and value.dtype == first.dtype,
            f"{name} of sample {number} is {value.dtype} of shape {tuple(value.shape)}, but that "
            f"of sample 0 is {first.dtype} of shape {tuple(first.shape)}"
            + ("; max_length of HFDataset pads lists of tokens" if value.dim() == 1 else ""),
        )
