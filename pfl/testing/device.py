"""A second device, simulated on the CPU: what would fail on a GPU, or on any other, fails here.

Its tensors compute on the CPU, and refuse to meet tensors of the CPU where a GPU's would. It has a
random stream of its own.

    with simulated():
        FederatedLoop(accelerator=NAME).fit(module, data)

Torch calls it ``lazy``, a type of device that nothing else here uses. Torch can rename a type for
devices like this one, but autograd then gives it a thread that must exist before the first backward
pass of the process. All that differs inside :func:`simulated` is undone at its end.

What it cannot show: how long something takes, and what a real kernel computes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any
from unittest import mock

import torch
from lightning.fabric.accelerators import ACCELERATOR_REGISTRY
from lightning.fabric.accelerators.accelerator import Accelerator
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

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
_SET_DATA: Any = vars(torch._C.TensorBase)["data"].__set__
# These do not reach an operation with their device.
_MAKERS = (torch.tensor, torch.as_tensor, torch.asarray)
# These share the memory of a tensor with NumPy.
_ARRAYS = (torch.Tensor.numpy, torch.Tensor.__array__)


class MixedDevicesError(RuntimeError):
    """An operation got tensors of two devices, or one that only the CPU can use."""


class Device:
    """The state of the simulated device.

    Attributes:
        memory: Bytes that the device says it has free.
        stream: State of its random stream.
    """

    def __init__(self) -> None:
        self.memory = 2**33
        self.stream = torch.Generator().manual_seed(0).get_state()

    def called(self, call: Any, args: Any, kwargs: Any, tensors: list[Tensor], there: bool) -> None:
        """Learn of an operation, the tensors in its arguments, and if its result is ``there``."""

    def listed(self) -> None:
        """Learn that the host took a tensor's numbers as a list."""


_now = Device()
_lock = threading.RLock()


class DeviceTensor(Tensor):
    """A tensor on the simulated device; ``host`` is the tensor of the CPU behind it."""

    host: Tensor

    @staticmethod
    def __new__(cls: type[DeviceTensor], host: Tensor) -> DeviceTensor:
        """Wrap a tensor of the CPU."""
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
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

    def data_ptr(self) -> int:
        """Return the address on the CPU, as there is no other."""
        return self.host.data_ptr()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.host})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, call: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(call, args, kwargs or {})


def _run(call: Any, args: Any, kwargs: Any) -> Any:
    """Run one operation on the CPU, as the device whose tensors it has or makes."""
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
        _now.called(call, args, kwargs, tensors, there)
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
    return return_and_correct_aliasing(call, args, kwargs, result)  # type: ignore[no-untyped-call]


def _refuse(call: Any, name: str, args: Any, tensors: list[Tensor]) -> None:
    """Raise an error where a GPU would; a single number on the host is welcome in most places."""
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
        # What is written to must be on the device.
        aliases = (argument.alias_info for argument in call._schema.arguments[:1])
        written = any(alias and alias.is_write for alias in aliases)
        to_host = isinstance(first, torch.Tensor) and not isinstance(first, DeviceTensor)
        fine = name not in _JOIN and not (written and to_host)
        fine = fine and all(leaf.dim() == 0 for leaf in host)
    if not fine:
        shapes = ", ".join(f"{tuple(leaf.shape)} on {leaf.device}" for leaf in tensors)
        raise MixedDevicesError(f"{name}: tensors on two devices: {shapes}")


def _bare(leaf: Any) -> Any:
    return leaf.host if isinstance(leaf, DeviceTensor) else leaf


def _held(leaf: Any) -> Any:
    plain = isinstance(leaf, torch.Tensor) and not isinstance(leaf, DeviceTensor)
    return DeviceTensor(leaf) if plain else leaf


class _Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Catches what makes tensors out of nothing, such as ``torch.zeros(2, device="accel")``."""

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(call, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Catches what does not reach an operation."""

    def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
        if call is torch.Tensor.tolist and isinstance(args[0], DeviceTensor):
            _now.listed()
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


def _copied(value: Tensor, memo: dict[int, Any]) -> Tensor:
    copy = value.detach().clone()
    if getattr(value, "_is_param", False):
        copy = nn.Parameter(copy, value.requires_grad)
    else:
        copy.requires_grad_(value.requires_grad)
    memo[id(value)] = copy
    return copy


_generator = torch.Generator


class _AnyGenerator(type(_generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _generator)


class _Generator(_generator, metaclass=_AnyGenerator):
    """A generator of the CPU that can say that it is the device's."""

    place: torch.device

    def __new__(cls, device: torch.device | str = HOST) -> _Generator:
        place = torch.device(device)
        made: _Generator = super().__new__(cls, HOST if place.type == NAME else place)  # type: ignore[call-arg]
        made.place = place
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.place


def _inference_mode(mode: bool = True) -> AbstractContextManager[Any]:
    """Stand in for ``torch.inference_mode``, as wrappers of tensors are no inference tensors."""
    return torch.no_grad() if mode else nullcontext()


_torch_autocast, _torch_enabled = torch.autocast, torch.is_autocast_enabled


def _autocast(device_type: str, *args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
    """Stand in for ``torch.autocast``, which does not know the device."""
    return nullcontext() if device_type == NAME else _torch_autocast(device_type, *args, **kwargs)


def _is_autocast_enabled(*device_type: str) -> bool:
    return device_type != (NAME,) and _torch_enabled(*device_type)


class _Module:
    """What torch and the project ask about the device."""

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return _now.memory, 2 * _now.memory

    def get_rng_state(self, device: Any = None) -> Tensor:
        return _now.stream

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        _now.stream = state


# Torch lets Adam count its steps on some devices alone.
_ADAM = import_module("torch.optim.adam")
# One for all scopes, as torch remembers which module it has found.
_MODULE = _Module()


class _Lightnings(Accelerator):
    """What Lightning asks about the device; a CPU's accelerator would have the CPU's device."""

    def setup_device(self, device: torch.device) -> None:
        pass

    def teardown(self) -> None:
        pass

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device(NAME, 0)]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return NAME


@contextmanager
def simulated(device: Device | None = None) -> Iterator[Device]:
    """Make the device available in this scope; everything else is as before afterwards."""
    global _now
    _now = device or Device()
    ACCELERATOR_REGISTRY.register(NAME, _Lightnings)
    try:
        with (
            mock.patch.object(torch, "inference_mode", _inference_mode),
            mock.patch.object(torch, "Generator", _Generator),
            mock.patch.object(torch, NAME, _MODULE, create=True),
            mock.patch.object(torch, "autocast", _autocast),
            mock.patch.object(torch, "is_autocast_enabled", _is_autocast_enabled),
            mock.patch.object(_ADAM, "_get_capturable_supported_devices", return_value=[NAME]),
            _Functions(),
            _Dispatch(),  # type: ignore[no-untyped-call]
        ):
            yield _now
    finally:
        ACCELERATOR_REGISTRY.remove(NAME)
