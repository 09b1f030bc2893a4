"""Capabilities of devices and settings of kernels: the one place that tells device types apart.

A device that Lightning does not know can be used once it is registered with Lightning as an
accelerator and with torch as a device (``torch.get_device_module`` finds its functions).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import torch
from lightning.fabric import Fabric
from lightning.fabric.accelerators.cpu import CPUAccelerator
from lightning.fabric.plugins.precision.amp import MixedPrecision
from lightning.fabric.strategies.single_device import SingleDeviceStrategy

HOST = torch.device("cpu")
"""The CPU, as torch and Lightning name it: without a number."""

WITHOUT_FLOAT64 = {"mps"}
"""Types of devices that have no float64."""


def fabric(accelerator: str, devices: int | str | list[int], precision: Any) -> Fabric:  # noqa: ANN401
    """Return Lightning's Fabric with a device and a precision; all arguments are Lightning's.

    Raises:
        RuntimeError: There is no such device.
        MisconfigurationException: There are fewer devices than requested.
    """
    made = Fabric(accelerator=accelerator, devices=devices, precision=precision)
    known, place, plugin = made.strategy.accelerator, made.device, made.strategy.precision
    if known is not None and not isinstance(known, CPUAccelerator) and on_host(place):
        # Lightning finds a registered accelerator, but would use the CPU.
        place, *_ = known.get_parallel_devices(known.parse_devices(devices))
    if isinstance(plugin, MixedPrecision) and plugin.device != place.type:
        # For all devices but the CPU it takes CUDA's autocast, which then does nothing.
        plugin = MixedPrecision(cast(Any, plugin.precision), place.type)
    elif isinstance(plugin, MixedPrecision) and on_host(place):
        plugin = HostPrecision(cast(Any, plugin.precision), place.type)
    if place == made.device and plugin is made.strategy.precision:
        return made
    strategy = SingleDeviceStrategy(device=place, accelerator=known)
    return Fabric(strategy=strategy, devices=1, plugins=plugin)


class HostPrecision(MixedPrecision):
    """Mixed precision on the CPU, without autocast's cache of cast weights.

    All threads share that cache, and each empties it after its own step. So where a step uses a
    weight more than once, as a recurrent layer does, the last bits of its gradient would depend on
    what other threads do.
    """

    def forward_context(self) -> AbstractContextManager[Any]:
        """Return autocast without its cache."""
        # On the CPU, Fabric replaces float16 by bfloat16.
        return torch.autocast(self.device, torch.bfloat16, cache_enabled=False)


def on_host(device: torch.device) -> bool:
    """Return ``True`` for the CPU, whose memory is the host's and whose results need no waiting.

    A CPU with a number is the simulated device of :mod:`pfl.testing.device`, and as far from the
    host as a GPU.
    """
    return device == HOST


def roomy(device: torch.device) -> bool:
    """Return ``True`` if a device's memory can hold the samples of all clients as floats."""
    return on_host(device)


def repeats(device: torch.device) -> bool:
    """Return ``True`` if steps should be all alike, so that they can be captured as a graph."""
    # On MPS, torch's Adam cannot count its steps on the device.
    return not on_host(device) and device.type != "mps"


def widest(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type that a device has."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def wide(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64, or in the widest type that its device has."""
    return value.to(widest(value.device))


def free(device: torch.device) -> int | None:
    """Return the free bytes of a device's own memory; ``None`` if unknown or if it is the host."""
    module = torch.get_device_module(device)
    if hasattr(module, "mem_get_info"):
        left, _ = module.mem_get_info(device)
        # Memory that torch has reserved but does not use is free too.
        if hasattr(module, "memory_reserved"):
            left += module.memory_reserved(device) - module.memory_allocated(device)
        return int(left)
    if hasattr(module, "recommended_max_memory"):
        return int(module.recommended_max_memory() - module.driver_allocated_memory())
    return None


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
