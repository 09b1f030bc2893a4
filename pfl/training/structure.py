"""The parameters, buffers and submodules of a module, which its code may replace in a job."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

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
        tables: list[dict[str, Any]] = [
            table
            for child in module.modules()
            for table in (child._parameters, child._buffers, child._modules)
        ]
        self._parts = [(table, dict(table)) for table in tables]
        self._entries: State = module.state_dict(keep_vars=True)
        self._parameters = dict(module.named_parameters())

    def _replaced(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return the tables in which something was replaced, with their former content."""
        return [
            (table, built)
            for table, built in self._parts
            if len(table) != len(built)
            or any(table.get(name) is not part for name, part in built.items())
        ]

    @property
    def entries(self) -> State:
        """The module's own tensors at present, by their names in its state dict."""
        return self._module.state_dict(keep_vars=True) if self._replaced() else self._entries

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The module's parameters at present, by name."""
        return dict(self._module.named_parameters()) if self._replaced() else self._parameters

    def restore(self) -> State:
        """Give the module back what was replaced; return its entries, whose values may be any."""
        for table, built in self._replaced():
            table.clear()
            table.update(built)
        return self._entries

    def mark(self) -> Mark:
        """Return a mark of the present entries."""
        return Mark(self)


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
    return [(id(value), _version(value), value.data_ptr()) for value in entries.values()]


def _version(value: Tensor) -> int:
    return 0 if value.is_inference() else value._version
