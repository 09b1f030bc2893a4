"""Counts of several clients that train at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl.core.types import State, Terms, Totals


class StackedMeans:
    """Means of named numbers of K clients; see :class:`pfl.training.phases.Means`."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, list[int]] = {}

    def add(self, name: str, clients: Iterable[int], rows: Tensor, value: Tensor) -> None:
        """Add the numbers of one step of some of the clients.

        Args:
            name: Of the numbers.
            clients: Which clients.
            rows: The same, where the numbers are.
            value: (clients,) numbers.
        """
        if name not in self._sums:
            self._sums[name] = value.new_zeros(self._clients)
            self._counts[name] = [0] * self._clients
        self._sums[name][rows] += value
        for client in clients:
            self._counts[name][client] += 1

    def values(self) -> list[dict[str, float]]:
        """Return the means of each client (one synchronisation)."""
        if not self._sums:
            return [{} for _ in range(self._clients)]
        sums = torch.stack([*self._sums.values()], 1).tolist()
        counts = zip(*self._counts.values(), strict=True)
        return [
            {key: s / c for key, s, c in zip(self._sums, *row, strict=True) if c}
            for row in zip(sums, counts, strict=True)
        ]


@dataclass
class StackedTally:
    """The sums over the phases of K jobs.

    Attributes:
        clients: K.
        terms: Of the losses, by ``"<phase>/<term>"``.
        logged: What steps logged, by name.
        steps: (K,) optimiser steps.
        samples: (K,) samples seen.
        skipped: (K,) phases without a batch that could be used; see
            :class:`pfl.training.phases.Tally`.
        rows: For each client what objectives collected since the last pass.
    """

    clients: int

    def __post_init__(self) -> None:
        self.terms = StackedMeans(self.clients)
        self.logged = StackedMeans(self.clients)
        self.steps = [0] * self.clients
        self.samples = [0] * self.clients
        self.skipped = [0] * self.clients
        self.rows = [defaultdict[str, list[Tensor]](list) for _ in range(self.clients)]

    def idle(self, row: int) -> bool:
        """Tell whether a client had something to train on, and could not take one step."""
        return self.steps[row] == 0 and self.skipped[row] > 0

    def add(
        self, phase: str, clients: Iterable[int], rows: Tensor, terms: Terms, logged: State
    ) -> None:
        """Add up terms and logged numbers of one step; see :meth:`StackedMeans.add`."""
        for name, term in terms.items():
            self.terms.add(f"{phase}/{name}", clients, rows, term.detach())
        for name, value in logged.items():
            self.logged.add(name, clients, rows, value)

    def collect(self, sizes: Mapping[int, int], found: State) -> None:
        """Take the rows of one batch of some clients, without the padding.

        Args:
            sizes: The number of real samples of each client, in the order of their rows.
            found: (clients, B, ...) rows by name.
        """
        for name, values in found.items():
            for (client, size), value in zip(sizes.items(), values, strict=True):
                self.rows[client][name].append(value[:size].detach())

    def totals(self, row: int, sums: State) -> Totals:
        """Return what a pass works with, and forget the client's rows."""
        rows = {name: torch.cat(values) for name, values in self.rows[row].items()}
        self.rows[row].clear()
        return Totals(sums, rows, self.steps[row], self.samples[row])
