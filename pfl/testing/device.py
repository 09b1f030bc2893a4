"""A simulated second device: CPU tensors that cannot be mixed with others, like a GPU's.

    with SecondDevice():
        x = torch.zeros(4, device=DEVICE)
        x + torch.ones(4)  # raises MixedDevicesError

Torch treats ``cpu:0`` as the CPU, so everything computes there; only in this scope it differs from
``cpu``, as it does for :func:`pfl.core.devices.on_host`. A tensor is on it if it was made there,
moved there, or computed from tensors there. Its random stream is the CPU's. Operations inside
torch's own functions are not checked.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._C import _functorch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from pfl.core.devices import HOST

DEVICE = torch.device("cpu", 0)
_GET_DEVICE: Any = vars(torch._C.TensorBase)["device"].__get__
# These copy into their first argument from any device, or only check whether they could.
_COPIES = {"copy_", "_foreach_copy_", "__set__", "_has_compatible_shallow_copy_type"}
# These take indices, sections or lengths on the host for a tensor on a device.
_INDEXING = {"__getitem__", "__setitem__", "tensor_split", "_pack_padded_sequence", "ctc_loss"}
# These make tensors on the host from numbers on any device.
_MAKERS = {"tensor", "as_tensor", "asarray"}
# These share the memory of a tensor with NumPy.
_ARRAYS = {"numpy", "__array__"}


class MixedDevicesError(RuntimeError):
    """An operation got tensors on two devices, or on one that it cannot use."""


class SecondDevice(TorchFunctionMode):
    """The scope in which :data:`DEVICE` is a device other than the CPU."""

    def __init__(self) -> None:
        super().__init__()
        # Storages by address; kept alive, so that no other tensor reuses their memory.
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._patches = ExitStack()

    def __enter__(self) -> SecondDevice:
        """Give ``torch.cpu`` the functions of a random stream, which it lacks."""
        for call in (_get_rng_state, _set_rng_state):
            name = call.__name__.removeprefix("_")
            self._patches.enter_context(mock.patch.object(torch.cpu, name, call, create=True))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the scope."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._patches.close()

    def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch, as the device whose tensors it has or makes."""
        kwargs, name = kwargs or {}, getattr(call, "__name__", str(call))
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if call == _GET_DEVICE:
            return DEVICE if any(map(self._has, given)) else call(*args)
        if name in _COPIES:
            return call(*args, **kwargs)
        computes = self._computes(name, args, kwargs, given)
        if computes and kwargs.get("generator") is not None:
            raise MixedDevicesError(f"{name}: the generator is not on the tensor's device")
        result = call(*args, **kwargs)
        return tree_map(self._put if computes else self._take, result)

    def _computes(self, name: str, args: Any, kwargs: Any, given: list[Tensor]) -> bool:
        """Return ``True`` if a call's result is on the device; refuse what a GPU refuses."""
        asked = self._asked(name, args, kwargs)
        if asked is not None:
            return asked == DEVICE
        if not any(map(self._has, given)):
            return False
        self._check(name, args, kwargs, given)
        return name not in _MAKERS or isinstance(args[0], Tensor)

    def _has(self, value: Tensor) -> bool:
        return _storage(value).data_ptr() in self._storages

    def _asked(self, name: str, args: Any, kwargs: Any) -> torch.device | None:
        """Return the device that a call asks for; ``None`` if it asks for none."""
        asked = kwargs.get("device")
        if name == "cpu":
            return HOST
        if name in ("to", "type_as") and len(args) > 1:
            asked = args[1] if isinstance(args[1], torch.device | str | Tensor) else asked
        if isinstance(asked, Tensor):
            return DEVICE if self._has(asked) else HOST
        return None if asked is None else torch.device(asked)

    def _check(self, name: str, args: Any, kwargs: Any, given: list[Tensor]) -> None:
        """Refuse what a GPU refuses; most functions accept a single number on the host."""
        if name in _ARRAYS and not kwargs.get("force"):
            raise MixedDevicesError("NumPy cannot use a tensor on a device: take .cpu() first")
        host = [one for one in given if one.dim() and one.numel() and not self._has(one)]
        if host and not (name in _INDEXING and self._has(args[0])):
            places = (f"{tuple(v.shape)} on {'device' if self._has(v) else 'cpu'}" for v in given)
            raise MixedDevicesError(f"{name}: tensors on two devices: {', '.join(places)}")

    def _put(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.numel():
            storage = _storage(value)
            self._storages[storage.data_ptr()] = storage
        return value

    def _take(self, value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) and self._has(value) else value


def _get_rng_state(device: torch.device) -> Tensor:
    return torch.get_rng_state()


def _set_rng_state(state: Tensor, device: torch.device) -> None:
    torch.set_rng_state(state)


def _storage(value: Tensor) -> torch.UntypedStorage:
    while _functorch.is_functorch_wrapped_tensor(value):
        value = _functorch.get_unwrapped(value)
    return value.untyped_storage()
