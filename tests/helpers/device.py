"""A second device, simulated on the CPU: code that fails on a GPU or another device fails here.

Its tensors compute on the CPU, and cannot be combined with CPU tensors where a GPU's cannot. It has
its own random stream, supports autocast, and counts its operations.

    with simulated() as device:
        FederatedLoop(accelerator=NAME).fit(module, data)
    device.reads, device.copies

Torch calls it ``lazy``, a type of device that nothing else here uses. Torch can rename a type for
devices like this one, but autograd then gives it a thread that must exist before the first backward
pass of the process. All changes inside :func:`simulated` are undone at its end, so these tests can
share a process with others.

It cannot show run times, or the results of real kernels.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from unittest import mock

import torch
from lightning.fabric.accelerators import ACCELERATOR_REGISTRY
from lightning.fabric.accelerators.accelerator import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

from pfl.core import devices
from pfl.testing.device import MixedDevicesError

__all__ = ["NAME", "MixedDevicesError", "simulated"]

NAME = "lazy"
HOST = torch.device("cpu")
# These copy between devices.
COPY = {"aten::_to_copy", "aten::copy_", "aten::_foreach_copy_"}
# These take indices on the host, and copy them.
INDEX = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
# These take no number on the host, unlike most operations.
_JOIN = {"aten::cat", "aten::stack"}
# These take lengths, sections or factors on the host.
_LENGTHS = {
    "aten::_pack_padded_sequence",
    "aten::_ctc_loss",
    "aten::ctc_loss",
    "aten::tensor_split",
    "aten::_foreach_addcmul",
    "aten::_foreach_addcmul_",
    "aten::_foreach_addcdiv",
    "aten::_foreach_addcdiv_",
}
_SET_DATA = vars(torch._C.TensorBase)["data"].__set__
# These do not reach an operation with their device.
_MAKERS = (torch.tensor, torch.as_tensor, torch.asarray)
# These share the memory of a tensor with NumPy.
_ARRAYS = (torch.Tensor.numpy, torch.Tensor.__array__)


# What autocast computes in the reduced type, and what always in float32.
_NARROW = {F.linear, F.conv2d, torch.matmul, torch.mm, torch.bmm, torch.Tensor.__matmul__}
_NARROW |= {torch.Tensor.matmul, torch.Tensor.mm, torch.addmm, torch.baddbmm}
_WIDE = {F.cross_entropy, F.softmax, F.log_softmax, F.mse_loss, F.binary_cross_entropy_with_logits}
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


class Device:
    """Properties of the simulated device, and a record of its work.

    Attributes:
        memory: Bytes that the device reports as free.
        stream: State of its random stream.
        operations: Number of calls by the operation's name.
        reads: Where the host waited for a value: a number, a shape or a whole tensor.
        copies: Where a value was copied to the device.
        autocast: The reduced type, if autocast is on.
        float64: Whether it has float64.
    """

    def __init__(self, float64=True):
        self.memory = 2**33
        self.stream = torch.Generator().manual_seed(0).get_state()
        self.autocast = None
        self.float64 = float64
        self.reset()

    def reset(self):
        """Count from zero again."""
        self.operations, self.reads, self.copies = Counter(), Counter(), Counter()

    def count(self, call, args, kwargs, given, there):
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


_now = Device()
_lock = threading.RLock()


class DeviceTensor(torch.Tensor):
    """A tensor on the simulated device; ``host`` is the CPU tensor behind it."""

    @staticmethod
    def __new__(cls, host):
        """Wrap a CPU tensor."""
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device=torch.device(NAME, 0),
        )
        made.host = host
        return made

    def data_ptr(self):
        """Return the address on the CPU, as there is no other."""
        return self.host.data_ptr()

    def __repr__(self):
        return f"DeviceTensor({self.host})"

    @classmethod
    def __torch_dispatch__(cls, call, types, args=(), kwargs=None):
        return _run(call, args, kwargs or {})


def _run(call, args, kwargs):
    """Run one operation on the CPU, as the device of its inputs or outputs."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    here = any(isinstance(leaf, DeviceTensor) for leaf in tensors)
    asked = kwargs.get("device")
    there = here if asked is None else torch.device(asked).type == NAME
    if not here and not there:
        return call(*args, **kwargs)
    name = call._schema.name
    if here:
        _refuse(call, name, args, tensors)
    with _lock:
        _now.count(call, args, kwargs, tensors, there)
    if asked is not None:
        kwargs = {**kwargs, "device": HOST}
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    bare = tree_map(_bare, (args, kwargs))
    if torch.Tag.nondeterministic_seeded in call.tags and kwargs.get("generator") is None:
        with _lock, torch.random.fork_rng(devices=[], device_type=NAME):
            torch.set_rng_state(_now.stream)
            result = call(*bare[0], **bare[1])
            _now.stream = torch.get_rng_state()
    else:
        result = call(*bare[0], **bare[1])
    if name == "aten::copy_":
        return args[0]
    if not there:
        return result
    result = tree_map(_held, result)
    if not here:
        return result
    return return_and_correct_aliasing(call, args, kwargs, result)


def _refuse(call, name, args, tensors):
    """Raise an error where a GPU would; most operations accept a single number on the host."""
    host = [leaf for leaf in tensors if not isinstance(leaf, DeviceTensor)]
    first = args[0] if args else None
    if name in COPY or name in _LENGTHS or not host:
        return
    if name in INDEX:
        values = args[2:3] if len(args) > 2 else ()
        fine = isinstance(first, DeviceTensor) and all(
            isinstance(v, DeviceTensor) or not v.dim() for v in values
        )
    else:
        # The output tensor must be on the device.
        aliases = (argument.alias_info for argument in call._schema.arguments[:1])
        written = any(alias and alias.is_write for alias in aliases)
        to_host = isinstance(first, torch.Tensor) and not isinstance(first, DeviceTensor)
        fine = name not in _JOIN and not (written and to_host)
        fine = fine and all(leaf.dim() == 0 for leaf in host)
    if not fine:
        shapes = ", ".join(f"{tuple(leaf.shape)} on {leaf.device}" for leaf in tensors)
        raise MixedDevicesError(f"{name}: tensors on two devices: {shapes}")


def _bare(leaf):
    return leaf.host if isinstance(leaf, DeviceTensor) else leaf


def _held(leaf):
    plain = isinstance(leaf, torch.Tensor) and not isinstance(leaf, DeviceTensor)
    return DeviceTensor(leaf) if plain else leaf


class _Dispatch(TorchDispatchMode):
    """Catches calls without tensors, such as ``torch.zeros(2, device="accel")``."""

    def __torch_dispatch__(self, call, types, args=(), kwargs=None):
        return _run(call, args, kwargs or {})


_ITEMS = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}


class _Functions(TorchFunctionMode):
    """Catches calls that do not reach an operation."""

    def __torch_function__(self, call, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        device, generator = kwargs.get("device"), kwargs.get("generator")
        if generator is not None:
            place = args[0].device if args and isinstance(args[0], torch.Tensor) else device or HOST
            if generator.device.type != torch.device(place).type:
                raise RuntimeError(f"{call.__name__} needs a generator of {place}")
        if call in _MAKERS and device is not None and torch.device(device).type == NAME:
            if isinstance(args[0], torch.Tensor):
                return args[0].to(device, kwargs.get("dtype", args[0].dtype))
            return call(*args, **{**kwargs, "device": HOST}).to(device)
        if call in _ITEMS and isinstance(args[0], DeviceTensor):
            args = args[0], _placed(args[1], args[0].device), *args[2:]
        if call is torch.Tensor.tolist and isinstance(args[0], DeviceTensor):
            _now.reads["tolist"] += 1
            return args[0].host.tolist()
        if call in _ARRAYS and isinstance(args[0], DeviceTensor):
            if not kwargs.get("force"):
                raise MixedDevicesError(f"NumPy cannot use a tensor on {NAME}:0: take .cpu() first")
            return args[0].detach().cpu().numpy()
        if call == _SET_DATA and isinstance(args[0], DeviceTensor):
            call(*args)
            args[0].host = args[1].host
            return None
        if call is torch.Tensor.__deepcopy__ and isinstance(args[0], DeviceTensor):
            return _copied(*args)
        return call(*args, **kwargs)


def _placed(index, device):
    """Return an index whose lists are tensors on a device, which torch itself makes beneath."""
    if isinstance(index, list):
        return torch.tensor(index).to(device)
    return tuple(_placed(one, device) for one in index) if isinstance(index, tuple) else index


def _copied(value, memo):
    copy = value.detach().clone()
    if getattr(value, "_is_param", False):
        copy = nn.Parameter(copy, value.requires_grad)
    else:
        copy.requires_grad_(value.requires_grad)
    memo[id(value)] = copy
    return copy


_generator = torch.Generator


class _AnyGenerator(type(_generator)):
    def __instancecheck__(cls, instance):
        return isinstance(instance, _generator)


class _Generator(_generator, metaclass=_AnyGenerator):
    """A CPU generator that can report the simulated device as its own."""

    def __new__(cls, device=HOST):
        place = torch.device(device)
        made = super().__new__(cls, HOST if place.type == NAME else place)
        made.place = place
        return made

    @property
    def device(self):
        return self.place


def _inference_mode(mode=True):
    """Replace ``torch.inference_mode``, as wrappers of tensors are no inference tensors."""
    return torch.no_grad() if mode else nullcontext()


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


class _Module:
    """Torch's and the project's interface to the device."""

    def mem_get_info(self, device=None):
        return _now.memory, 2 * _now.memory

    def get_rng_state(self, device=None):
        return _now.stream

    def set_rng_state(self, state, device=None):
        _now.stream = state


# Torch lets Adam count its steps on some devices only.
_ADAM = import_module("torch.optim.adam")
# One for all scopes, as torch caches the module.
_MODULE = _Module()


class _Lightnings(Accelerator):
    """Lightning's interface to the device; a CPU accelerator would have the CPU's device."""

    def setup_device(self, device):
        pass

    def teardown(self):
        pass

    @staticmethod
    def parse_devices(devices):
        return devices

    @staticmethod
    def get_parallel_devices(devices):
        return [torch.device(NAME, 0)]

    @staticmethod
    def auto_device_count():
        return 1

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def name():
        return NAME


@contextmanager
def simulated(float64=True):
    """Make the device available in this scope; restore everything afterwards.

    Args:
        float64: Whether the device has float64.
    """
    global _now
    _now = device = Device(float64)
    without = devices.WITHOUT_FLOAT64 if float64 else {NAME}
    usual, enabled = torch.autocast, torch.is_autocast_enabled

    def autocast(device_type, dtype=None, enabled=True, **more):
        """Replace ``torch.autocast``, which does not support the device."""
        if device_type != NAME:
            return usual(device_type, dtype, enabled, **more)
        return mock.patch.object(device, "autocast", (dtype or torch.float16) if enabled else None)

    def is_enabled(*kind):
        return device.autocast is not None if kind == (NAME,) else enabled(*kind)

    ACCELERATOR_REGISTRY.register(NAME, _Lightnings)
    try:
        with (
            mock.patch.object(torch, "inference_mode", _inference_mode),
            mock.patch.object(torch, "Generator", _Generator),
            mock.patch.object(torch, NAME, _MODULE, create=True),
            mock.patch.object(_ADAM, "_get_capturable_supported_devices", return_value=[NAME]),
            mock.patch.object(devices, "WITHOUT_FLOAT64", without),
            mock.patch.object(torch, "autocast", autocast),
            mock.patch.object(torch, "is_autocast_enabled", is_enabled),
            _Functions(),
            _Dispatch(),
            _Autocast(device),
        ):
            yield device
    finally:
        ACCELERATOR_REGISTRY.remove(NAME)
