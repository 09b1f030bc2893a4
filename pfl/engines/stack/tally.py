"""Sums and counts of several clients that train at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from pfl.core.types import State, Terms
from pfl.training.phases import Tally


class StackedMeans:
    """Means of named numbers of K clients; see :class:`pfl.training.phases.Means`."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, list[int]] = {}

    def add(self, name: str, clients: Iterable[int], rows: Tensor, value: Tensor) -> None:
        """Add the values of one step, for some of the clients.

        Args:
            name: Name of the value.
            clients: The clients.
            rows: The same clients, as a tensor on the device of the values; then -1 for each
                finished client.
            value: Values, one for each row.
        """
        if name not in self._sums:
            # The last element collects the values of finished clients and is not read.
            self._sums[name] = value.new_zeros(self._clients + 1)
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
            for row in zip(sums[:-1], counts, strict=True)
        ]


class StackedTally:
    """The sums over the phases of K jobs.

    Attributes:
        clients: Each client's own counts and rows; its means are not used.
        terms: Means of the loss terms, by ``"<phase>/<term>"``.
        logged: Means of the numbers that steps logged, by name.
    """

    def __init__(self, clients: int) -> None:
        self.clients = [Tally() for _ in range(clients)]
        self.terms = StackedMeans(clients)
        self.logged = StackedMeans(clients)

    def add(
        self, phase: str, clients: Iterable[int], rows: Tensor, terms: Terms, logged: State
    ) -> None:
        """Add the loss terms and logged numbers of one step; see :meth:`StackedMeans.add`."""
        for name, term in terms.items():
            self.terms.add(f"{phase}/{name}", clients, rows, term.detach())
        for name, value in logged.items():
            self.logged.add(name, clients, rows, value)

    def collect(self, sizes: Mapping[int, int], rows: State) -> None:
        """Store the rows of one batch of some clients, without the padding.

        Args:
            sizes: Number of real samples of each client, in the order of their rows.
            rows: (clients, B, ...) rows by name; finished clients come last and are left out.
        """
        for name, values in rows.items():
            for (client, size), value in zip(sizes.items(), values, strict=False):
                self.clients[client].collect({name: value[:size]})
