"""The parameters, buffers and submodules of a module, which its code may replace in a job."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from torch import nn

from pfl.core.types import State


class Structure:
    """What a module consists of, so that one client leaves no tensor of its own to the next.

    A network may assign an entry anew (``self.ema = ...``) instead of writing into it. The new
    tensor is the client's own, and ends with its job.

    Args:
        module: The module, as every job finds it.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._tables: list[dict[str, Any]] = [
            table
            for child in module.modules()
            for table in (child._parameters, child._buffers, child._modules)
        ]
        # They also keep what was replaced alive, so that no other object has its identity.
        self._built = [dict(table) for table in self._tables]
        self._identities = self._present()
        self._entries: State = module.state_dict(keep_vars=True)
        self._parameters = dict(module.named_parameters())

    def _present(self) -> list[int]:
        return [id(part) for table in self._tables for part in table.values()]

    @property
    def entries(self) -> State:
        """The module's own tensors at present, by their names in its state dict."""
        intact = self._present() == self._identities
        return self._entries if intact else self._module.state_dict(keep_vars=True)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The module's parameters at present, by name."""
        intact = self._present() == self._identities
        return self._parameters if intact else dict(self._module.named_parameters())

    def restore(self) -> State:
        """Give the module back what was replaced; return its entries, whose values may be any."""
        if self._present() != self._identities:
            for table, built in zip(self._tables, self._built, strict=True):
                table.clear()
                table.update(built)
        return self._entries


class Mark:
    """The entries of a module at one moment, to see later whether one of them has changed."""

    def __init__(self, structure: Structure) -> None:
        self._structure, self._facts = structure, _facts(structure.entries)
        # Their memory is held, so that no other tensor can have its address.
        self._held = [value.detach() for value in structure.entries.values()]

    @property
    def holds(self) -> bool:
        """Whether no entry was replaced or written to since."""
        return self._facts == _facts(self._structure.entries)


def _facts(entries: State) -> list[tuple[int, int, int]]:
    return [
        (id(value), 0 if value.is_inference() else value._version, value.data_ptr())
        for value in entries.values()
    ]


class Attributes:
    """What LightningModules have beside their state dict, so that it ends with a client's job.

    Counters, lists and the like are no entries of the state dict: each job finds them as they were
    built. An attribute that cannot be copied stays.

    Args:
        modules: The modules, as every job finds them.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = [child for module in modules for child in module.modules()]
        parts = (
            part
            for child in self._modules
            for part in (child, *child.parameters(False), *child.buffers(False))
        )
        # Copies refer to the modules' own parts.
        self._parts = {id(part): part for part in parts}
        self._built = [self._copied(_attributes(child)) for child in self._modules]

    def restore(self, but: Collection[tuple[nn.Module, str]] = ()) -> None:
        """Give the modules back what they were built with.

        Args:
            but: Attributes that stay as they are, each a module and a name.
        """
        for child, built in zip(self._modules, self._built, strict=True):
            back = {name: v for name, v in built.items() if not but or (child, name) not in but}
            for name in _attributes(child).keys() - built.keys():
                if not but or (child, name) not in but:
                    del child.__dict__[name]
            child.__dict__.update(self._copied(back))

    def _copied(self, attributes: dict[str, Any]) -> dict[str, Any]:
        copied = dict(attributes)
        for name, value in attributes.items():
            with suppress(Exception):  # a handle of a file, for instance
                copied[name] = copy.deepcopy(value, dict(self._parts))
        return copied


# Hooks and tables of every module, which are not its own.
_COMMON = {*vars(nn.Module()), "_trainer", "_fabric", "_fabric_optimizers", "_device", "_dtype"}


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _COMMON}
