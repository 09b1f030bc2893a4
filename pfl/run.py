"""One run: its state, as callbacks read it and a checkpoint holds it."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pfl.server import ServerState
from pfl.state import fingerprint
from pfl.summary import summarise
from pfl.types import FederatedData, State

if TYPE_CHECKING:
    from pfl.callbacks import Callback
    from pfl.client import Client

Row: TypeAlias = dict[str, float]


@dataclass
class Run:
    """One run: what a callback may read, and what a checkpoint holds.

    Attributes:
        module: The method, playing no client in particular.
        data: The federation's data.
        seed: From which every random choice derives.
        rounds: Planned number of rounds.
        folder: Where the run's files go; ``None`` writes none.
        config: The resolved configuration as YAML, if the run came from one.
        header: What was decided for this run, one line a topic.
        round: Finished rounds.
        server: The server's state after them.
        kept: Each client's state from its last participation.
        history: One row of metrics a round.
        template: The state that every client starts from.
        reports: What the server reports of each client; see :class:`pfl.server.Server`.
        callbacks: Who listens.
    """

    module: Client
    data: FederatedData
    seed: int
    rounds: int
    folder: Path | None = None
    config: str | None = None
    header: dict[str, str] = field(default_factory=dict)
    round: int = 0
    server: ServerState = field(default_factory=lambda: ServerState(shared={}))
    kept: MutableMapping[int, State] = field(default_factory=dict)
    history: list[Row] = field(default_factory=list)
    template: State = field(default_factory=dict)
    reports: Mapping[str, str] = field(default_factory=dict)
    callbacks: Sequence[Callback] = ()

    @property
    def fingerprint(self) -> str:
        """Hash of the server's weights and of every client's kept state."""
        return fingerprint(chain([self.server.shared], (self.kept[c] for c in sorted(self.kept))))

    @property
    def summary(self) -> dict[str, float]:
        """Last, mean-of-last-10, best-by-validation and best-on-test; see :mod:`pfl.summary`."""
        return summarise(self.history)
