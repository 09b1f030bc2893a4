"""A run, and the base class of callbacks."""

from __future__ import annotations

import hashlib
from abc import ABC
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

from pfl.core.client import ClientModule
from pfl.core.data import FederatedData
from pfl.core.server import ServerState
from pfl.core.state import digest
from pfl.core.types import Cohort, Result, RoundResult, State
from pfl.core.waits import Waits
from pfl.engines.keeper import Keeper
from pfl.federation.summary import SCORES, summarise

if TYPE_CHECKING:
    from pfl.training.context import Context

Row: TypeAlias = dict[str, float]
# What happened (discarded, untested, undefined), client -> number of rounds.
Failures: TypeAlias = Mapping[str, Mapping[int, int]]

# Files of a run folder: how samples are divided, and how data of the same kind are read.
PARTITION, TRANSFORMS = "partition.json", "transforms.json"


@dataclass
class Run:
    """The state of a run, which callbacks read and checkpoints store.

    Attributes:
        module: The method, in the state of no particular client.
        data: The federation's data.
        seed: The seed of all random choices.
        rounds: Planned number of rounds.
        name: Name of the experiment.
        folder: Folder of the run's files; ``None`` writes none.
        config: The resolved configuration as YAML, from the first round on; see
            ``pfl/federation/described.py`` for a run that was started from Python.
        header: Decisions made for this run, one line for each topic.
        guaranteed: What the rounds show that a step of the uplink guarantees, one line for each
            topic; empty before the last round.
        round: Number of finished rounds.
        server: The server's state after the last finished round.
        keeper: Keeps each client's state from its last participation; see :attr:`kept`.
        history: One row of metrics for each round.
        failures: Number of rounds, by client, in which its training failed or was not finite
            (``discarded``), its test failed (``untested``), or outputs of its tested model were not
            finite (``undefined``).
        reasons: Why a client's training or test failed the last time, by client.
        cohort: The clients of the round in progress, or of the last one.
        latest: The last round finished by this process.
        template: The state that every client starts from.
        constants: Hash of values that are in no state, such as frozen parts of a network.
        reports: What the server reports for each client; see :class:`pfl.core.server.Server`.
        scores: Names of the models' scores, the main score first; ``True`` if more is better.
        tested: The clients that are tested before the last round; ``None`` for all.
        decided: What the engine decided for the run; see :class:`pfl.engines.base.Engine`.
        callbacks: The callbacks of the run.
        waits: Tells what the user has waited for, since the command or the run began.
        personal: Turns the module into a client's personalised model, as after the broadcast of the
            next round; returns the module's context.
    """

    module: ClientModule
    data: FederatedData
    seed: int
    rounds: int
    name: str
    folder: Path | None = None
    config: str | None = None
    header: dict[str, str] = field(default_factory=dict)
    guaranteed: Mapping[str, str] = field(default_factory=dict)
    round: int = 0
    server: ServerState = field(default_factory=lambda: ServerState(shared={}))
    keeper: Keeper = field(default_factory=Keeper)
    history: list[Row] = field(default_factory=list)
    failures: Failures = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)
    cohort: Cohort = field(default_factory=lambda: Cohort((), ()))
    latest: RoundResult | None = None
    template: State = field(default_factory=dict)
    constants: str = ""
    reports: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, bool] = field(default_factory=lambda: SCORES)
    tested: Sequence[int] | None = None
    decided: str | None = None
    callbacks: Sequence[Callback] = ()
    waits: Waits = field(default_factory=Waits)
    personal: Callable[[int], Context] = field(init=False)

    def __repr__(self) -> str:
        """Return a one-line summary without weights, as shown in a notebook."""
        row, score = self.history[-1] if self.history else {}, next(iter(self.scores))
        key = f"test/personal/{score}"
        shown = f", {key} {row[key]:.4f}" if key in row else ""
        return f"<Run {self.name}: round {self.round} of {self.rounds}, seed {self.seed}{shown}>"

    @property
    def ends(self) -> bool:
        """Whether no round follows, as all are finished or a callback asks to stop."""
        return self.round >= self.rounds or any(one.should_stop for one in self.callbacks)

    @property
    def kept(self) -> MutableMapping[int, State]:
        """Each client's state from its last participation."""
        return self.keeper

    @kept.setter
    def kept(self, states: Mapping[int, State]) -> None:
        new = dict(states)
        self.keeper.clear()
        self.keeper.update(new)

    @property
    def fingerprint(self) -> str:
        """A hash of the server's weights and of the hash of every client's kept state."""
        server = digest(self.server.shared)
        kept = "".join(map(self.keeper.digest, sorted(self.keeper)))
        return (hashlib.sha256((server + kept).encode()).hexdigest() if kept else server)[:16]

    @property
    def noise(self) -> str | None:
        """Return the generator of the noise that clients draw; ``None`` if they draw none."""
        return self.module.noise_generator(self.module.hparams)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Return the configuration and the header."""
        return {**yaml.safe_load(self.config or "{}"), "header": self.header}

    @property
    def summary(self) -> dict[str, float]:
        """Return the summary of the history; see :mod:`pfl.federation.summary`."""
        return summarise(self.history, self.scores)


class Callback(ABC):
    """The base class of callbacks, which read a run but do not change it; its hooks do nothing.

    State that must survive an interruption is returned by ``state_dict`` as plain values.
    """

    should_stop: bool = False

    @property
    def name(self) -> str:
        """The key of this callback's state in a checkpoint; see :func:`by_name`."""
        return type(self).__name__

    @property
    def files(self) -> Sequence[str]:
        """The files that it writes, by their paths in the run folder.

        A resume removes partial files that killed processes left.
        """
        return ()

    def on_fit_start(self, run: Run) -> None:
        """Run before the first round, or before the first round after a resume."""

    def on_result(self, run: Run, result: Result) -> None:
        """Run after each client's training.

        Under client-level privacy uploads are not shown: ``result.upload`` is ``None``.
        """

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Run after each round, even if the run is interrupted before this callback is called."""

    def on_fit_end(self, run: Run) -> None:
        """Run after the last round, whose checkpoint is saved by then."""

    def on_interrupt(self, run: Run) -> None:
        """Run when a signal or an error ends the run before this callback's ``on_fit_end``.

        An error raised here becomes a warning, as the one that ended the run is raised.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return state to resume from, as plain values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore state; the mapping is empty for a new run or if the checkpoint has no state.

        It must clear the state of earlier runs, as one loop may run several.
        """


def by_name(callbacks: Iterable[Callback]) -> dict[str, Callback]:
    """Return callbacks by their keys in a checkpoint; repeated names get a number.

    Two callbacks for early stopping are ``EarlyStopping`` and ``EarlyStopping-2``.
    """
    found: dict[str, Callback] = {}
    counts = Counter[str]()
    for callback in callbacks:
        counts[callback.name] += 1
        number = counts[callback.name]
        found[callback.name if number == 1 else f"{callback.name}-{number}"] = callback
    return found


def load_states(callbacks: Iterable[Callback], states: Mapping[str, Any]) -> None:
    """Load callbacks' states from a checkpoint, by their keys; reset callbacks without one."""
    for name, callback in by_name(callbacks).items():
        callback.should_stop = False
        callback.load_state_dict(states.get(name, {}))
