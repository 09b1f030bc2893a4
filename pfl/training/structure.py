"""The parameters, buffers and submodules of a module, which its code may replace in a job."""

from __future__ import annotations

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
