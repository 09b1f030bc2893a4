"""Arrays, lists and mappings from files that other projects pickled; nothing named there is called.

Of a pickle's names only those are known under which numpy stores arrays, and what answers to them
is defined here. Any other name, such as a function that a forged file would have called, is
refused.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from datamodules.formats import reading


class _Kind:
    """A type of numbers, as numpy stores it."""

    def __init__(self, name: str, *_: object) -> None:
        self.type: np.dtype[Any] = np.dtype(name)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in ("<", ">", "|", "="):
            self.type = self.type.newbyteorder(state[1])


class _Array:
    """An array, as numpy stores it: of numbers, or of other values."""

    value: NDArray[Any]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_columns, content = state
        if kind.type.hasobject:
            self.value = np.empty(shape, object)
            self.value.ravel()[:] = [*content]
            return
        flat = np.frombuffer(content, kind.type)
        self.value = flat.reshape(shape, order="F" if by_columns else "C")


def _scalar(kind: _Kind, content: bytes) -> Any:  # noqa: ANN401
    return np.frombuffer(content, kind.type)[0].item()


def _array(content: bytes, kind: _Kind, shape: tuple[int, ...], order: str) -> NDArray[Any]:
    return np.frombuffer(content, kind.type).reshape(shape, order="F" if order == "F" else "C")


def _encoded(text: str, encoding: str) -> bytes:
    """Return the bytes that older pickles hold as text."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it has bytes in {encoding!r}")
    return text.encode("latin1")


class _Reader(pickle.Unpickler):
    """Knows the names of arrays alone."""

    _KNOWN: ClassVar[dict[tuple[str, str], Callable[..., Any]]] = {
        ("numpy", "dtype"): _Kind,
        ("numpy", "ndarray"): _Array,
        **{
            (f"numpy.{core}.multiarray", name): known
            for core in ("core", "_core")
            for name, known in {
                "_reconstruct": lambda *_: _Array(),
                "scalar": _scalar,
            }.items()
        },
        **{(f"numpy.{core}.numeric", "_frombuffer"): _array for core in ("core", "_core")},
        # Older pickles have no sign for bytes.
        ("_codecs", "encode"): _encoded,
        ("__builtin__", "bytes"): lambda: b"",
    }

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401
        """Return what stands for a name.

        Raises:
            pickle.UnpicklingError: It is not one of numpy's for arrays.
        """
        if (module, name) not in self._KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no array")
        return self._KNOWN[module, name]

    def persistent_load(self, pid: object) -> Any:  # noqa: ANN401
        """Refuse what lies outside the file."""
        raise pickle.UnpicklingError("it refers to something outside the file")


def read_arrays(path: Path, content: bytes | None = None) -> Any:  # noqa: ANN401
    """Return the arrays, lists, mappings and plain values of a pickle.

    Args:
        path: The file.
        content: The pickle, if it is only a part of the file.

    Raises:
        OSError: It cannot be read, or has something else.
    """
    with reading(path, "does not hold plain arrays", OSError):
        whole = path.read_bytes() if content is None else content
        return _plain(_Reader(io.BytesIO(whole)).load())


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Return a value with arrays for what stands for them."""
    if isinstance(value, _Array | np.ndarray):
        found = value.value if isinstance(value, _Array) else value
        if found.dtype != object:
            return found
        return _plain(found.item()) if found.ndim == 0 else [_plain(one) for one in found]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bool | int | float | str | bytes | None):
        return value
    raise pickle.UnpicklingError(f"it has a {type(value).__name__}")
