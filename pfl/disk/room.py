"""Room for large tensors: in memory up to a bound, and beyond it in files, mapped to memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class Room:
    """Room for tensors that are used together: in memory, or in files if they are too large.

    A file is deleted together with its tensor, and only the parts in use are in memory.

    Attributes:
        size: Bytes of all of them.
        bound: Bytes up to which they are in memory; ``None`` for no bound.
        folder: Folder of the files, which is made; ``None`` uses the system's folder for temporary
            files.
    """

    size: float
    bound: float | None
    folder: Path | None = None

    @property
    def in_files(self) -> bool:
        """Whether they lie in files."""
        return self.bound is not None and self.size > self.bound

    def empty(self, shape: torch.Size, like: Tensor) -> Tensor:
        """Return an uninitialised tensor of another's type, on its device or in a file.

        Raises:
            OSError: There is not enough space.
        """
        if not self.in_files:
            return like.new_empty(shape)
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        return _in_file(shape, like.dtype, self.folder)

    def hold(self, values: Tensor) -> Tensor:
        """Return a tensor as it is, or a copy in a file.

        Raises:
            OSError: There is not enough space.
        """
        return self.empty(values.shape, values).copy_(values) if self.in_files else values


def empty_alike(values: Tensor) -> Tensor:
    """Return an uninitialised contiguous tensor; in a file if ``values`` is in one.

    Raises:
        OSError: There is not enough space.
    """
    # The storage has a name only if it was mapped from a file.
    name = None if values.device.type != "cpu" else values.untyped_storage().filename
    if name is None:
        return torch.empty(values.shape, dtype=values.dtype, device=values.device)
    return _in_file(values.shape, values.dtype, Path(name).parent)


def _in_file(shape: torch.Size, dtype: torch.dtype, folder: Path | None) -> Tensor:
    size = shape.numel() * dtype.itemsize
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    handle, name = tempfile.mkstemp(prefix=".mapped-", dir=folder)
    try:
        if sys.platform == "linux":
            # Without reserved space, a full disk would kill the process at a later write.
            os.posix_fallocate(handle, 0, size)
        return torch.from_file(name, shared=True, size=shape.numel(), dtype=dtype).view(shape)
    except OSError as error:
        raise OSError(f"cannot reserve {size:,} bytes in {Path(name).parent}: {error}") from error
    finally:
        os.close(handle)
        # The space lives as long as the tensor, and is freed however the process ends.
        os.unlink(name)


def leave_memory(values: Iterable[Tensor]) -> None:
    """Let the pages of tensors in mapped files leave this process; they are read again on use.

    Only for tensors that nobody writes to. Where this is not possible, nothing happens.
    """
    if sys.platform != "linux":
        return
    storages = {value.untyped_storage().data_ptr(): value.untyped_storage() for value in values}
    for start, storage in storages.items():
        if storage.device.type == "cpu" and storage.filename and start % mmap.PAGESIZE == 0:
            _advise()(ctypes.c_void_p(start), ctypes.c_size_t(storage.nbytes()), _DONT_NEED)


# Of <sys/mman.h>.
_DONT_NEED = 4


@cache
def _advise() -> Callable[..., int]:
    advise: Callable[..., int] = ctypes.CDLL(None).madvise
    return advise
