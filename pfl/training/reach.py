"""What can be reached from a module besides its entries: attributes, and what hooks and code hold.

Engines copy a module, or let it play one client after another. Neither is right for what the code
of a network remembers anywhere but in the entries that travel or stay.
"""

from __future__ import annotations

import array
import contextvars
import copy
import functools
import gc
import logging
import random
import sys
import types
import warnings
import weakref
from collections import OrderedDict, deque
from collections.abc import (
    Callable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from pfl.core.constants import equal_copies, lazy_copy, shared_memory
from pfl.core.failure import error_line
from pfl.training.declaration import MethodError

ModuleT = TypeVar("ModuleT", bound=nn.Module)
Put: TypeAlias = Callable[[Any], None]
# Of each parameter, in order.
Hooks: TypeAlias = list[dict[str, dict[int, Any]]]

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
# What torch's modules have of their own; submodules and entries are looked at apart.
_OF_TORCH = {*vars(nn.Module())}
_HOOKS = tuple(name for name in _OF_TORCH if name.endswith("hooks"))
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
# Packages whose objects hold nothing that training changes, or nothing that is the module's.
_LIBRARIES = {
    *(*sys.stdlib_module_names, "torch", "lightning", "lightning_fabric", "pytorch_lightning"),
    *("numpy", "pfl", "lightning_modules", "datamodules", "jsonargparse", "torchmetrics"),
}
_REFILLED = (MutableMapping, MutableSequence, MutableSet)
_MOST = 100_000  # values
# Flags of CPython: a class that code has made, and none of those whose attributes are fixed.
_WRITTEN = 1 << 9
_CHANGEABLE = _WRITTEN | 1 << 8
NOT_PERSISTENT = "the buffer (not persistent)"


class CopyError(MethodError):
    """Something in a module cannot be copied.

    Attributes:
        name: Its full name.
    """

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name


@dataclass(frozen=True)
class Leaf:
    """A value without parts.

    Attributes:
        mark: Equal for equal values.
        value: The value itself.
        put: Replaces it where it is; ``None`` if that is impossible.
    """

    mark: object
    value: Any = field(compare=False)
    put: Put | None = field(compare=False)


@dataclass(frozen=True)
class Place:
    """An attribute, buffer, hook or variable, with everything that can be reached from it.

    Attributes:
        what: What it is, in words that precede its name.
        owner: The module that has it; ``None`` if no module does.
        leaves: Its values, by their path within it.
    """

    what: str
    owner: nn.Module | None
    leaves: dict[str, Leaf]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.leaves == other.leaves


class Reach:
    """Everything that can be reached from a module, but its persistent entries, at one moment.

    Attributes:
        places: Attributes and buffers by their full names, and what is outside of the module.
        loose: All tensors that are no entries.
        has_code: Whether code of the user's is reached, which may remember anything.
    """

    def __init__(self, root: nn.Module) -> None:
        self.places: dict[str, Place] = {}
        self.loose: list[Tensor] = []
        self.has_code = False
        self._seen = {id(root)}
        self._undo: list[Callable[[], Any]] = []
        self._fills: list[Callable[[], Any]] = []
        self._left, self._outside = _MOST, False
        self._classes: dict[type, None] = {}
        children = dict(root.named_modules())
        # A submodule is looked at in its own place, wherever else it is referred to.
        self._seen |= {id(child) for child in children.values()}
        self._entries = {id(value) for value in root.state_dict(keep_vars=True).values()}
        for path, child in children.items():
            self._module(path, child, child is root)
        self._outside = True
        for path, child in children.items():
            for hooks in _HOOKS:
                for hook in (vars(child).get(hooks) or {}).values():
                    self._enter(f"a hook of {path or 'the method'}", "", None, hook)
        self.has_code = bool(self._classes) or self.has_code
        done = set[type]()
        # Code of a class may name further classes.
        while left := [kind for kind in self._classes if kind not in done]:
            for kind in left:
                self._class(kind)
            done.update(left)

    def restore(self, cached: bool = True) -> None:
        """Give everything outside of the module the values that it had.

        Args:
            cached: Whether functions forget what they have cached, if that is more than before.
        """
        for undo in (*self._undo, *(self._fills if cached else ())):
            undo()

    def give_back(self, now: Reach) -> None:
        """Give single values that copies of the module share the values that they had.

        Args:
            now: The same module's, later.
        """
        for name in self.places.keys() & now.places.keys():
            before, after = self.places[name].leaves, now.places[name].leaves
            for key in before.keys() & after.keys():
                if before[key] != after[key] and (put := after[key].put) is not None:
                    put(before[key].value)

    def _module(self, path: str, module: nn.Module, root: bool = False) -> None:
        stem = f"{path}." if path else ""
        for name, value in vars(module).items():
            if name in _OF_TORCH or (isinstance(module, _lightning()) and name.startswith("_")):
                continue
            if root and name == "fabric":
                continue
            self._enter(
                f"{stem}{name}", _kind(value), module, value, partial(_assign, module, name)
            )
        for name, buffer in module._buffers.items():
            if buffer is not None and name in module._non_persistent_buffers_set:
                put = partial(_put_item, module._buffers, name)
                self._enter(f"{stem}{name}", NOT_PERSISTENT, module, buffer, put)
        for name, parameter in module._parameters.items():
            if parameter is not None and vars(parameter):
                what = "an attribute of the parameter"
                self._enter(f"{stem}{name}", what, module, vars(parameter))
        self._kinds(type(module))

    def _kinds(self, kind: type) -> None:
        """Note a class of the user's and its bases, whose attributes all its objects share."""
        for one in kind.__mro__:
            if not _of_library(one.__module__) and one.__flags__ & _CHANGEABLE == _WRITTEN:
                self._classes[one] = None

    def _class(self, kind: type) -> None:
        for name, value in list(vars(kind).items()):
            if name.startswith("__"):
                continue
            function = getattr(value, "__func__", value)
            if isinstance(value, property):
                for part in (value.fget, value.fset):
                    self._enter(f"{kind.__name__}.{name}", "code", None, part)
            elif isinstance(function, types.FunctionType):
                self._enter(f"{kind.__name__}.{name}", "what is used by", None, function)
            elif not isinstance(value, type | types.ModuleType):
                put = partial(_put_in_class, kind, name)
                self._enter(f"{kind.__name__}.{name}", "the class attribute", None, value, put)

    def _enter(
        self,
        name: str,
        what: str,
        owner: nn.Module | None,
        value: Any,  # noqa: ANN401
        put: Put | None = None,
    ) -> None:
        leaves = dict(self._leaves(value, "", put))
        if not leaves:
            return
        if name in self.places:
            known = self.places[name]
            leaves = {**known.leaves, **{f"{k} ": v for k, v in leaves.items()}}
        self.places[name] = Place(what, owner, leaves)

    def _leaves(
        self,
        value: Any,  # noqa: ANN401
        path: str,
        put: Put | None,
    ) -> Iterator[tuple[str, Leaf]]:
        """Yield the values without parts that can be reached from a value, with their paths."""
        self._left -= 1
        if self._outside and put is not None:
            # A probe may have put another object in its place.
            self._undo.append(partial(put, value))
        if isinstance(value, _PLAIN):
            yield path, Leaf((type(value), repr(value)), value, put)
            return
        if id(value) in self._seen or id(value) in self._entries or self._left < 0:
            return
        self._seen.add(id(value))
        for kinds, way in _WAYS:
            if isinstance(value, kinds):
                yield from way(self, value, path, put)
                return
        yield from self._object(value, path)

    def _array(self, value: Any, path: str, put: Put | None) -> Iterator[tuple[str, Leaf]]:  # noqa: ANN401
        mark = (str(value.dtype), value.shape, value.tobytes())
        if self._outside and isinstance(value, np.ndarray) and value.flags.writeable:
            self._undo.append(partial(np.copyto, value, value.copy()))
        yield path, Leaf(mark, value, put)

    def _generator(self, value: Any, path: str, put: Put | None) -> Iterator[tuple[str, Leaf]]:  # noqa: ANN401
        yield path, Leaf(self._stream(value), value, None)

    def _method(
        self, value: types.MethodType, path: str, put: Put | None
    ) -> Iterator[tuple[str, Leaf]]:
        yield from self._leaves(value.__self__, path, None)
        yield from self._leaves(value.__func__, path, None)

    def _partial(
        self, value: partial[Any], path: str, put: Put | None
    ) -> Iterator[tuple[str, Leaf]]:
        parts = {"func": value.func, "args": value.args, "keywords": value.keywords}
        yield from self._parts(parts, path, None)

    def _bound(self, value: Any, path: str, put: Put | None) -> Iterator[tuple[str, Leaf]]:  # noqa: ANN401
        """Yield what a method of a built-in object belongs to, such as the list of its append."""
        if not isinstance(value.__self__, type | types.ModuleType | None):
            yield from self._leaves(value.__self__, path, None)

    def _reference(self, value: Any, path: str, put: Put | None) -> Iterator[tuple[str, Leaf]]:  # noqa: ANN401
        yield from self._leaves(value(), path, None)

    def _variable(self, value: Any, path: str, put: Put | None) -> Iterator[tuple[str, Leaf]]:  # noqa: ANN401
        """Yield the value that a variable of a context has in this one."""
        with suppress(LookupError):  # It has none.
            yield from self._leaves(value.get(), path, value.set)

    def _nothing(self, value: Any, path: str, put: Put | None) -> Iterator[tuple[str, Leaf]]:  # noqa: ANN401
        """Yield nothing of what belongs to nobody."""
        yield from ()

    def _tensor(self, value: Tensor, path: str, put: Put | None) -> Iterator[tuple[str, Leaf]]:
        self.loose.append(value)
        plain = value.layout is torch.strided and not value.is_nested
        if not plain or value.is_quantized or value.is_meta:
            # What its values are, few operations can tell; that they were written to, a counter.
            yield path, Leaf((id(value), value._version), value, put)
            return
        held = lazy_copy(value)
        if self._outside:
            self._undo.append(partial(_write, value, held))
        yield path, Leaf(_Bits(held), value, put)
        if vars(value):
            yield from self._parts(vars(value), path, None)

    def _stream(self, value: Any) -> object:  # noqa: ANN401
        """Return the state of a generator of random numbers."""
        state: Any
        put: Callable[[Any], Any]
        if isinstance(value, torch.Generator):
            state, put = value.get_state(), value.set_state
        elif isinstance(value, random.Random):
            state, put = value.getstate(), value.setstate
        elif isinstance(value, np.random.RandomState):
            state, put = value.get_state(), value.set_state
        else:
            state = value.bit_generator.state
            put = partial(setattr, value.bit_generator, "state")
        if self._outside:
            self._undo.append(partial(put, copy.deepcopy(state)))
        return _Bits(state) if isinstance(state, Tensor) else repr(state)

    def _loose_module(
        self, module: nn.Module, path: str, put: Put | None
    ) -> Iterator[tuple[str, Leaf]]:
        """Yield what a module has that is not a submodule: all its entries, too."""
        for name, child in module.named_modules():
            if child is not module and id(child) in self._seen:
                continue
            self._seen.add(id(child))
            stem = ".".join(filter(None, (path, name)))
            parts = {k: v for k, v in vars(child).items() if k not in _OF_TORCH}
            for table in (child._parameters, child._buffers, parts):
                yield from self._parts(table, stem, table is not parts)

    def _function(
        self, value: types.FunctionType, path: str, put: Put | None
    ) -> Iterator[tuple[str, Leaf]]:
        """Yield what a function of the user's remembers: variables, defaults, globals."""
        if _of_library(value.__module__ or ""):
            return
        self.has_code = True
        before, self._outside = self._outside, True
        free = value.__code__.co_freevars
        for name, cell in zip(free, value.__closure__ or (), strict=True):
            try:
                held = cell.cell_contents
            except ValueError:  # It has not been set.
                continue
            yield from self._leaves(held, _joined(path, name), partial(_put_cell, cell))
        yield from self._leaves(value.__defaults__, path, None)
        yield from self._parts(value.__kwdefaults__ or {}, path, True)
        yield from self._parts(vars(value), path, True)
        yield from self._globals(value, path)
        self._outside = before

    def _globals(self, value: types.FunctionType, path: str) -> Iterator[tuple[str, Leaf]]:
        """Yield what a function's code names, in its own file and in the user's other files."""
        here, names = value.__globals__, [*_names(value.__code__)]
        named = (here.get(name) for name in names)
        files = [one for one in named if isinstance(one, types.ModuleType)]
        for table in (here, *(vars(one) for one in files if not _of_library(one.__name__))):
            for name in names:
                held = table.get(name, _PLAIN)
                # Code that it calls is looked at, too.
                if isinstance(held, type):
                    self._kinds(held)
                elif held is not _PLAIN and not isinstance(held, types.ModuleType):
                    again = partial(_put_item, table, name)
                    yield from self._leaves(held, _joined(path, name), again)

    def _cache(self, value: Any, path: str, put: Put | None) -> Iterator[tuple[str, Leaf]]:  # noqa: ANN401
        """Yield what a function has cached, and what its code remembers."""
        info = value.cache_info()
        if self._outside:
            self._fills.append(partial(_clear_cache, value, info))
        yield _joined(path, "cache_info()"), Leaf((info.misses, info.currsize), value, None)
        yield from self._leaves([*_cached(value)], path, None)
        yield from self._leaves(value.__wrapped__, path, None)

    def _running(
        self, value: types.GeneratorType[Any, Any, Any], path: str, put: Put | None
    ) -> Iterator[tuple[str, Leaf]]:
        """Yield how far a generator is, and the variables of its code."""
        frame = value.gi_frame
        yield _joined(path, "next()"), Leaf(frame and frame.f_lasti, value, None)
        yield from self._parts({} if frame is None else frame.f_locals, path, None)

    def _container(self, value: Any, path: str, put: Put | None) -> Iterator[tuple[str, Leaf]]:  # noqa: ANN401
        if self._outside and isinstance(value, _REFILLED):
            # Not by its look-up, which may make something of what a table holds.
            held = [*(value.items() if isinstance(value, Mapping) else value)]
            self._undo.append(partial(_refill, value, held))
        if isinstance(value, Mapping):
            yield _joined(path, "len()"), Leaf(len(value), value, None)
            yield from self._parts(value, path, isinstance(value, MutableMapping))
            return
        yield _joined(path, "len()"), Leaf(len(value), value, put)
        if isinstance(value, set | frozenset):
            yield path, Leaf(sorted(map(repr, value)), value, None)
            return
        for index, item in enumerate(value):
            settable = partial(_put_item, value, index) if not isinstance(value, tuple) else None
            yield from self._leaves(item, f"{path}[{index}]", settable)

    def _object(self, value: Any, path: str) -> Iterator[tuple[str, Leaf]]:  # noqa: ANN401
        """Yield the attributes of an object of the user's, or what one of Python's own holds."""
        if type(value).__module__.partition(".")[0] in sys.stdlib_module_names:
            yield from self._content(value, path)
        if _of_library(type(value).__module__):
            return
        self._kinds(type(value))
        parts = dict(_own_attributes(value))
        for kind in type(value).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, name) and name not in ("__dict__", "__weakref__"):
                    parts[name] = getattr(value, name)
        for name, part in parts.items():
            yield from self._leaves(part, _joined(path, name), partial(_assign, value, name))

    def _content(self, value: Any, path: str) -> Iterator[tuple[str, Leaf]]:  # noqa: ANN401
        """Yield what makes a copy of an object, and the attributes that it can be given."""
        yield from self._parts(_own_attributes(value), path, True)
        made: Any = ()
        # Some cannot be copied, such as locks and threads; some later not any more (itertools).
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = value.__reduce_ex__(4)
            if self._outside:
                self._undo.append(partial(_give_content, value, copy.deepcopy(made)))
        if made and isinstance(made, tuple):
            parts = [*made[1:3], *(list(one) for one in made[3:5] if one is not None)]
            yield from self._leaves(parts, path, None)

    def _parts(
        self, parts: Mapping[Any, Any], path: str, put: object
    ) -> Iterator[tuple[str, Leaf]]:
        for name, part in list(parts.items()):
            settable = partial(_put_item, parts, name) if put else None
            yield from self._leaves(part, _joined(path, str(name)), settable)


# What yields the values that can be reached from one of some types: the first one that fits.
_WAYS: tuple[tuple[Any, Callable[[Reach, Any, str, Put | None], Iterator[tuple[str, Leaf]]]], ...]
_WAYS = (
    (Tensor, Reach._tensor),
    ((np.ndarray, np.generic), Reach._array),
    (_GENERATORS, Reach._generator),
    (nn.Module, Reach._loose_module),
    (types.FunctionType, Reach._function),
    (functools._lru_cache_wrapper, Reach._cache),
    (types.GeneratorType, Reach._running),
    (types.MethodType, Reach._method),
    (partial, Reach._partial),
    ((Mapping, list, tuple, deque, set, frozenset), Reach._container),
    # From one logger, all of a process can be reached.
    ((type, types.ModuleType, types.GenericAlias, logging.Logger), Reach._nothing),
    (types.BuiltinMethodType, Reach._bound),
    (weakref.ref, Reach._reference),
    (contextvars.ContextVar, Reach._variable),
)


def duplicate(module: ModuleT, memo: dict[int, Any] | None = None) -> ModuleT:
    """Return a deep copy of a module, with all that torch leaves out or refuses to copy.

    These are tensors in attributes that were computed from parameters, as those of the older weight
    norm, and the hooks of parameters. Frozen parameters take no memory of their own, unless one of
    the two is written to.

    Raises:
        CopyError: An attribute cannot be copied; the message names it.
    """
    known = {**shared_memory(module), **(memo or {})}
    for value in Reach(module).loose:
        if not value.is_leaf:
            known.setdefault(id(value), value.detach().clone())
    try:
        copied = copy.deepcopy(module, {**known})
    except Exception:
        _check_copies(module, known)
        raise
    give_hooks(copied, hooks_of(module))
    return copied


def _check_copies(module: nn.Module, memo: dict[int, Any]) -> None:
    """Refuse an attribute that cannot be copied.

    Raises:
        CopyError: There is one.
    """
    parts = dict(module.named_modules())
    # Each part is looked at in its own place.
    known = {**memo, **{id(part): part for part in parts.values()}}
    for path, part in parts.items():
        for name, value in vars(part).items():
            try:
                copy.deepcopy(value, {**known})
            except Exception as error:
                kind, full = type(value).__name__, _joined(path, name)
                raise CopyError(
                    f"{_kind(value)} {full!r} cannot be copied ({error_line(error)}), but clients "
                    f"are trained on copies of the network: make the {kind} anew in each forward, "
                    f'and for what it remembers, write self.register_buffer("{name}", ...) in '
                    f"{type(part).__name__}",
                    full,
                ) from error


def hooks_of(module: nn.Module) -> Hooks:
    """Return the hooks of parameters by their tables, which neither copies nor pickles have."""
    tables = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return [
        {name: dict(hooks) for name in tables if (hooks := getattr(one, name, None))}
        for one in module.parameters()
    ]


def give_hooks(module: nn.Module, hooks: Hooks) -> None:
    """Give the parameters of a module the hooks of those of another one; see :func:`hooks_of`."""
    for parameter, own in zip(module.parameters(), hooks, strict=True):
        for name, table in own.items():
            setattr(parameter, name, OrderedDict(table))


def _give_content(value: Any, made: Any) -> None:  # noqa: ANN401
    """Give an object of Python's own the content that :meth:`Reach._content` found."""
    if isinstance(value, array.array | bytearray):
        value[:] = made[0](*made[1])
    elif hasattr(value, "__setstate__") and len(made) > 2:
        value.__setstate__(made[2])


class _Bits:
    """The values of a tensor, which equal those of another if form and all bits are the same."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Tensor) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bits) and equal_copies(self._value, other._value)


def _lightning() -> tuple[type, ...]:
    return tuple(
        module.LightningModule
        for name in ("lightning.pytorch.core.module", "pytorch_lightning.core.module")
        if (module := sys.modules.get(name)) is not None
    )


def _of_library(module: str) -> bool:
    """Return whether a module of Python is no code of the user's."""
    root = module.partition(".")[0]
    if root in _LIBRARIES:
        return True
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes that code uses, with that of inner functions."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return "the tensor"
    return f"the {type(value).__name__}" if value is not None else "the attribute"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _own_attributes(value: object) -> dict[str, Any]:
    """Return the table of an object's attributes; an empty one if it has slots alone."""
    found = getattr(value, "__dict__", None)
    return found if isinstance(found, dict) else {}


def _assign(owner: object, name: str, value: object) -> None:
    # Not setattr: a module would register a tensor, and a frozen record refuse it.
    own = _own_attributes(owner)
    if name in own:
        own[name] = value
    else:
        object.__setattr__(owner, name, value)


def _put_in_class(kind: type, name: str, value: object) -> None:
    # A class may refuse to be changed, as an enumeration does; then it was not.
    if vars(kind).get(name) is not value:
        type.__setattr__(kind, name, value)


def _put_item(table: Any, key: object, value: object) -> None:  # noqa: ANN401
    # A table's own look-up may make something of what it holds, and a table of layers would take a
    # value into another layer than the one it is in.
    with suppress(LookupError):
        if (dict.__getitem__(table, key) if isinstance(table, dict) else table[key]) is value:
            return
    table[key] = value


def _put_cell(cell: types.CellType, value: object) -> None:
    cell.cell_contents = value


def _cached(function: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield what a function has cached, which only the garbage collector shows."""
    apart = (type, types.FunctionType)
    for held in gc.get_referents(function):
        if isinstance(held, dict) and held is not vars(function):
            # That of an unbounded cache itself, which must stay as it is.
            yield from held.values()
        elif not isinstance(held, (*apart, dict)):
            yield held


def _clear_cache(function: Any, info: Any) -> None:  # noqa: ANN401
    """Forget what a function has cached, if it has cached more since."""
    if function.cache_info().misses != info.misses:
        function.cache_clear()


def _write(target: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        if target.shape == value.shape:
            target.detach().copy_(value)
        else:
            target.data = value.clone()


def _refill(target: Any, held: Sequence[Any]) -> None:  # noqa: ANN401
    """Give a container the parts that it had, if it has others now."""
    if isinstance(target, MutableMapping):
        if [(id(k), id(v)) for k, v in target.items()] != [(id(k), id(v)) for k, v in held]:
            target.clear()
            for key, value in held:
                target[key] = value
    elif [*map(id, target)] != [*map(id, held)]:
        target.clear()
        add = target.add if isinstance(target, MutableSet) else target.append
        for one in held:
            add(one)


def lengthened(value: Any, most: int = 4096) -> Sequence[Any] | None:  # noqa: ANN401
    """Return a longer list or deque with the same items; ``None`` if it cannot be longer."""
    if not isinstance(value, list | deque) or not value:
        return None
    room = getattr(value, "maxlen", None) or most
    longer = [value[n % len(value)] for n in range(min(room, most))]
    return type(value)(longer) if isinstance(value, list) else deque(longer, value.maxlen)
