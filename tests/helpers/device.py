"""The simulated device of :mod:`pfl.testing.device`, with autocast; it counts what it has to do.

    with simulated() as device:
        FederatedLoop(accelerator=NAME).fit(module, data)
    device.reads, device.copies

All that differs inside :func:`simulated` is undone at its end, so these tests share a process with
the others.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from functools import partial
from unittest import mock

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from pfl.core import devices
from pfl.testing import device as plain
from pfl.testing.device import COPY, INDEX, NAME, DeviceTensor, MixedDevicesError

__all__ = ["NAME", "MixedDevicesError", "simulated"]

# What autocast computes in fewer bits, and what always in 32.
_NARROW = {F.linear, F.conv2d, torch.matmul, torch.mm, torch.bmm, torch.Tensor.__matmul__}
_NARROW |= {torch.Tensor.matmul, torch.Tensor.mm, torch.addmm, torch.baddbmm}
_WIDE = {F.cross_entropy, F.softmax, F.log_softmax, F.mse_loss, F.binary_cross_entropy_with_logits}
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


class Device(plain.Device):
    """What the simulated device was asked to do.

    Attributes:
        operations: Number of calls by the operation's name.
        reads: Where the host waited for a value: a number, a shape or a whole tensor.
        copies: Where something was copied to the device.
        autocast: The type of fewer bits, where autocast is on.
        float64: Whether it has float64.
    """

    def __init__(self, float64=True):
        super().__init__()
        self.autocast = None
        self.float64 = float64
        self.reset()

    def reset(self):
        """Count from zero again."""
        self.operations, self.reads, self.copies = Counter(), Counter(), Counter()

    def listed(self):
        self.reads["tolist"] += 1

    def called(self, call, args, kwargs, given, there):
        name = call._schema.name
        if not self.float64 and there:
            kept = [tensor.dtype for tensor in given[:1] if isinstance(tensor, DeviceTensor)]
            moved = [tensor.dtype for tensor in given[:1] if name == "aten::_to_copy"]
            if torch.float64 in ([kwargs["dtype"]] if kwargs.get("dtype") else kept + moved):
                raise TypeError(f"{name}: the device has no float64")
        self.operations[name] += 1
        if name in COPY:
            if name == "aten::_to_copy":
                pairs = [(given[0], there)]
            else:
                several = name == "aten::_foreach_copy_"
                into, out = (args[0], args[1]) if several else ([args[0]], [args[1]])
                pairs = [(b, isinstance(a, DeviceTensor)) for a, b in zip(into, out, strict=True)]
            self.reads[name] += sum(isinstance(b, DeviceTensor) and not to for b, to in pairs)
            self.copies[name] += sum(not isinstance(b, DeviceTensor) and to for b, to in pairs)
        elif name in INDEX:
            indices = [i for i in args[1] if i is not None]
            self.reads[name] += any(i.dtype == torch.bool for i in indices)
            self.copies[name] += sum(not isinstance(i, DeviceTensor) for i in indices)
        elif name == "aten::repeat_interleave" and kwargs.get("output_size") is not None:
            return
        elif {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(call.tags):
            self.reads[name] += 1


class _Autocast(TorchFunctionMode):
    """Computes in the types that autocast chooses."""

    def __init__(self, device):
        super().__init__()
        self._device = device

    def __torch_function__(self, call, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self._device.autocast is not None and (call in _NARROW or call in _WIDE):
            dtype = self._device.autocast if call in _NARROW else torch.float32
            args, kwargs = tree_map(partial(_cast, dtype=dtype), (args, kwargs))
        return call(*args, **kwargs)


def _cast(leaf, dtype):
    own = isinstance(leaf, torch.Tensor) and leaf.device.type == NAME
    return leaf.to(dtype) if own and leaf.dtype in _FLOATS else leaf


@contextmanager
def simulated(float64=True):
    """Make the device available in this scope; everything else is as before afterwards.

    Args:
        float64: Whether the device has float64.
    """
    device = Device(float64)
    without = devices.WITHOUT_FLOAT64 if float64 else {NAME}
    usual, enabled = torch.autocast, torch.is_autocast_enabled

    def autocast(device_type, dtype=None, enabled=True, **more):
        """Stand in for ``torch.autocast``, which does not know the device."""
        if device_type != NAME:
            return usual(device_type, dtype, enabled, **more)
        return mock.patch.object(device, "autocast", (dtype or torch.float16) if enabled else None)

    def is_enabled(*kind):
        return device.autocast is not None if kind == (NAME,) else enabled(*kind)

    with (
        plain.simulated(device),
        mock.patch.object(devices, "WITHOUT_FLOAT64", without),
        mock.patch.object(torch, "autocast", autocast),
        mock.patch.object(torch, "is_autocast_enabled", is_enabled),
        _Autocast(device),
    ):
        yield device
