"""The choice of GPU kernels whose results repeat bit for bit, in full float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def repeatable() -> Iterator[None]:
    """Make cuDNN's convolutions deterministic, without choosing them by timing, in this scope.

    Convolutions use TF32 (10 bits of mantissa) only if ``torch.set_float32_matmul_precision``
    allows it for matrix products; by default PyTorch allows it for convolutions.
    """
    with torch.backends.cudnn.flags(
        enabled=torch.backends.cudnn.enabled,
        benchmark=False,
        deterministic=True,
        allow_tf32=torch.get_float32_matmul_precision() != "highest",
    ):
        yield


def kernels() -> dict[str, bool]:
    """Return the current kernel settings, for the records of a run."""
    return {
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "tf32": torch.backends.cudnn.allow_tf32,
    }
