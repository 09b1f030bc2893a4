"""Counts of several clients that train at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pfl.core.types import State, Terms, Totals
from pfl.engines.stack import Rows


@dataclass
class StackedTally:
    """The sums over the phases of K jobs.

    Attributes:
        clients: K.
        sums: (K,) of each logged term, by ``"<phase>/<term>"``.
        counts: (K,) the steps that were added to it.
        steps: (K,) optimiser steps.
        samples: (K,) samples seen.
        skipped: (K,) phases without a batch that could be used; see
            :class:`pfl.training.phases.Tally`.
        rows: For each client what objectives collected since the last pass.
    """

    clients: int
    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steps = [0] * self.clients
        self.samples = [0] * self.clients
        self.skipped = [0] * self.clients
        self.rows = [defaultdict[str, list[Tensor]](list) for _ in range(self.clients)]

    def idle(self, row: int) -> bool:
        """Tell whether a client had something to train on, and could not take one step."""
        return self.steps[row] == 0 and self.skipped[row] > 0

    def add(self, phase: str, rows: Rows, terms: Terms) -> None:
        """Add up the terms of one step of some of the clients."""
        for name, term in terms.items():
            key, value = f"{phase}/{name}", term.detach()
            if key not in self.sums:
                self.sums[key] = value.new_zeros(self.clients)
                self.counts[key] = torch.zeros(self.clients, dtype=torch.int64)
            self.sums[key][rows] += value
            self.counts[key][rows] += 1

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

    def means(self) -> list[dict[str, float]]:
        """For each client the mean of each term over its steps (one synchronisation)."""
        if not self.sums:
            return [{} for _ in range(self.clients)]
        sums = torch.stack([*self.sums.values()], 1).tolist()
        counts = torch.stack(list(self.counts.values()), 1).tolist()
        return [
            {key: s / c for key, s, c in zip(self.sums, *row, strict=True) if c}
            for row in zip(sums, counts, strict=True)
        ]
