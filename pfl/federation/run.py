"""One run, and the base of the callbacks that follow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from pfl.core.client import Client
from pfl.core.server import ServerState
from pfl.core.state import fingerprint
from pfl.core.types import FederatedData, Result, RoundResult, State
from pfl.results.summary import SCORES, summarise
from pfl.training.context import Context
from pfl.training.declaration import noise_of

Row: TypeAlias = dict[str, float]


@dataclass
class Run:
    """One run: what a callback may read, and what a checkpoint holds.

    Attributes:
        module: The method, playing no client in particular.
        data: The federation's data.
        seed: From which every random choice derives.
        rounds: Planned number of rounds.
        name: Of the experiment.
        personal: Makes the module a client's personalised model as the next round would find it,
            after the broadcast; returns the context that it stands in.
        folder: Where the run's files go; ``None`` writes none.
        config: The resolved configuration as YAML, if the run came from one.
        header: What was decided for this run, one line a topic.
        round: Finished rounds.
        server: The server's state after them.
        kept: Each client's state from its last participation.
        history: One row of metrics a round.
        latest: The last finished round of this process.
        template: The state that every client starts from.
        constants: Hash of what no state holds, such as the frozen parts of a network.
        reports: What the server reports of each client; see :class:`pfl.core.server.Server`.
        scores: Names of the models' scores, the one that counts first; whether more is better.
        tested: The clients that are tested before the last round; ``None`` for all.
        stacked: Whether the engine chose to train clients as one stack; ``None`` if it was told.
        callbacks: Who listens.
    """

    module: Client
    data: FederatedData
    seed: int
    rounds: int
    name: str
    personal: Callable[[int], Context]
    folder: Path | None = None
    config: str | None = None
    header: dict[str, str] = field(default_factory=dict)
    round: int = 0
    server: ServerState = field(default_factory=lambda: ServerState(shared={}))
    kept: MutableMapping[int, State] = field(default_factory=dict)
    history: list[Row] = field(default_factory=list)
    latest: RoundResult | None = None
    template: State = field(default_factory=dict)
    constants: str = ""
    reports: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, bool] = field(default_factory=lambda: SCORES)
    tested: Sequence[int] | None = None
    stacked: bool | None = None
    callbacks: Sequence[Callback] = ()

    @property
    def fingerprint(self) -> str:
        """Hash of the server's weights and of every client's kept state."""
        return fingerprint(chain([self.server.shared], (self.kept[c] for c in sorted(self.kept))))

    @cached_property
    def noise(self) -> str | None:
        """Return the generator of the noise that clients draw; ``None`` if they draw none."""
        return noise_of(self.module)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Return the configuration, as far as it is known, and what was decided for the run."""
        known = {"seed": self.seed, "rounds": self.rounds}
        given = known if self.config is None else yaml.safe_load(self.config)
        return {**given, "header": self.header}

    @property
    def summary(self) -> dict[str, float]:
        """Return the summaries of the history; see :mod:`pfl.results.summary`."""
        return summarise(self.history, self.scores)


class Callback:
    """Base of all callbacks, which read a run and change nothing of it; every event does nothing.

    State that must outlive an interruption goes through ``state_dict`` as plain values.
    """

    should_stop: bool = False

    @property
    def name(self) -> str:
        """Under which the checkpoint keeps this callback's state."""
        return type(self).__name__

    def on_fit_start(self, run: Run) -> None:
        """Before the first round, or the first after a resume."""

    def on_result(self, run: Run, result: Result) -> None:
        """After each client's training."""

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """After each round."""

    def on_fit_end(self, run: Run) -> None:
        """After the last round."""

    def on_interrupt(self, run: Run) -> None:
        """When the run ends before its last round, by a signal or an error."""

    def state_dict(self) -> dict[str, Any]:
        """Plain values to go on from."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from them; called with an empty mapping if there are none."""
