"""Which kernels a GPU computes with: those that give the same bits again, in full float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def repeatable() -> Iterator[None]:
    """Inside, cuDNN's convolutions are deterministic and not chosen by the clock.

    They use TF32, whose products have 10 bits, only where
    ``torch.set_float32_matmul_precision`` allows it to products of matrices; PyTorch by itself
    allows it to convolutions.
    """
    with torch.backends.cudnn.flags(
        enabled=torch.backends.cudnn.enabled,
        benchmark=False,
        deterministic=True,
        allow_tf32=torch.get_float32_matmul_precision() != "highest",
    ):
        yield


def kernels() -> dict[str, bool]:
    """Return what is at present chosen of it, for the records of a run."""
    return {
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "tf32": torch.backends.cudnn.allow_tf32,
    }
