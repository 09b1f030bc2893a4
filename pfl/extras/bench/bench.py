"""A benchmark of methods on a task, from trials to the leaderboard."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pfl.campaign.campaign import Planned
from pfl.cli.explain import FailedError, MissingError, UsageError
from pfl.disk import canonical
from pfl.disk.reading import first_line
from pfl.extras.bench import majority, rows
from pfl.extras.bench.contender import Contender
from pfl.extras.bench.hashed import Row, hashed
from pfl.extras.bench.pieces import Piece, PieceFolder
from pfl.extras.bench.rows import REFERENCE, Leaderboard
from pfl.extras.bench.runner import Budget, Runner
from pfl.extras.bench.task import BenchTask
from pfl.federation import identity

# A method whose cost leaves it less than this share of the reference's rounds is also tested with
# equal rounds.
FEW_ROUNDS = 0.5
# Errors that are recorded as the outcome of a run and do not end the benchmark.
FAILURES = (FailedError, UsageError)


@dataclass(frozen=True)
class Bench:
    """A benchmark and its methods.

    Attributes:
        task: The task.
        contenders: The methods, including the reference.
        store: The finished pieces.
        trials: Number of trials of each method, T.
        seeds: Number of final seeds, from 0.
    """

    task: BenchTask
    contenders: Sequence[Contender]
    store: PieceFolder
    trials: int
    seeds: int

    def __post_init__(self) -> None:
        if both := sorted({*self.task.tuning_seeds} & {*range(self.seeds)}):
            raise UsageError(
                f"{self.task.path}: tuning_seeds: {both[0]} is also a final seed, and settings "
                f"must not be chosen on partitions that test them; the final seeds are 0 "
                f"to {self.seeds - 1}"
            )

    @cached_property
    def runner(self) -> Runner:
        """The runner of all runs."""
        return Runner(self.reference)

    @cached_property
    def reference(self) -> Contender:
        """The method whose run at the task's defaults sets the budget."""
        return next(one for one in self.contenders if one.name == REFERENCE)

    @cached_property
    def task_hash(self) -> str:
        """Hash of the task: what it states for the reference, without seeds, and its search.

        Options that it leaves to their defaults do not count, so that a new option of a class does
        not make another task of it.
        """
        config = self.reference.stated
        setting = identity.of_setting(config, identity.beside(config, None))
        return canonical.digest({**self.task.plain(), "configuration": setting})

    @cached_property
    def budgets(self) -> dict[int, Budget]:
        """The budget of a trial for each tuning seed."""
        return {seed: self.runner.budget(seed) for seed in self.task.tuning_seeds}

    @cached_property
    def budget(self) -> dict[str, int]:
        """The budget of every method: trials, processed samples per trial, and final seeds."""
        samples = self.budgets[self.task.tuning_seeds[0]].samples
        return {"trials": self.trials, "samples": samples, "seeds": self.seeds}

    def missing(self) -> list[Planned]:
        """Return the runs that can be started now: trials of each method, then its final runs."""
        return [self.planned(piece) for one in self.contenders for piece in self._missing(one)]

    def planned(self, piece: Piece) -> Planned:
        """Return the campaign's entry for a piece, without callbacks, as runs may share it."""
        return Planned(
            name=piece.name,
            label=f"{piece.contender.identifier}: {piece.kind}, seed {piece.seed}",
            home=self.store.folder / "claims" / piece.name,
            make=lambda _: self.store.keep(piece, self.computed(piece)),
        )

    def computed(self, piece: Piece) -> dict[str, Any]:
        """Return the outcome of a piece and its duration in seconds, or why it failed."""
        start = time.perf_counter()
        outcome = self.outcome(piece)
        # One final run is enough to show the effect of rounding; each costs several runs.
        radius = self.radius(piece, outcome) if piece.kind == "final" and not piece.seed else {}
        return {**outcome, **radius, "seconds": time.perf_counter() - start}

    def outcome(self, piece: Piece) -> dict[str, Any]:
        """Return the outcome of a piece, or why it failed.

        Raises:
            MissingError: The data are missing.
        """
        budget = self.budgets[piece.seed] if piece.kind == "trial" else None
        try:
            return self.runner.trial(piece, budget) if budget else self.runner.final(piece)
        except MissingError:
            raise
        except FAILURES as error:
            return {"failed": first_line(error)}

    def radius(self, piece: Piece, outcome: Mapping[str, Any]) -> dict[str, float]:
        """Return the ``radius`` of a final run; empty if a run fails or the radius is 0.

        If moving the network's weights changes no score, the run does not use them, as in IFCA,
        which draws its clusters anew.
        """
        try:
            radius = 0.0 if "failed" in outcome else self.runner.radius(piece, outcome)
        except FailedError:
            return {}
        return {"radius": radius} if radius else {}

    def _missing(self, contender: Contender) -> list[Piece]:
        """Return the pieces of a method that can be started now: trials, then final runs."""
        trials = self._trials[contender.identifier]
        return self._unfinished(trials) or self._unfinished(self._finals(contender).values())

    def _unfinished(self, groups: Iterable[Sequence[Piece]]) -> list[Piece]:
        return [piece for piece in _distinct(groups) if self.store.find(piece) is None]

    @cached_property
    def _trials(self) -> dict[str, list[list[Piece]]]:
        """The pieces of each trial, one for each tuning seed, by method."""
        return {
            contender.identifier: [
                [
                    Piece(contender, seed, settings, None, self.task_hash)
                    for seed in self.task.tuning_seeds
                ]
                for settings in self._settings[contender.identifier]
            ]
            for contender in self.contenders
        }

    @cached_property
    def _settings(self) -> dict[str, list[dict[str, Any]]]:
        """The settings of all trials, by method."""
        return {one.identifier: one.trials(self.trials) for one in self.contenders}

    def _outcomes(self, contender: Contender) -> list[dict[str, Any]]:
        """Return the outcome of each trial; all must be finished."""
        trials = self._trials[contender.identifier]
        return [
            rows.merged([self.store.find(piece) or {} for piece in pieces]) for pieces in trials
        ]

    def _finals(self, contender: Contender) -> dict[str, list[Piece]]:
        """Return the final runs at the defaults and at the chosen settings.

        If the defaults have few rounds, runs with equal rounds are added.
        """
        settings, outcomes = self._settings[contender.identifier], self._outcomes(contender)
        rounds = [outcome.get("rounds", 0) for outcome in outcomes]
        best, whole = rows.chosen(outcomes), self.reference.default.values.loop.rounds
        plans = {
            "default": (0, rounds[0]),
            "tuned": (0, 0) if best is None else (best, rounds[best]),
        }
        if rounds[0] < FEW_ROUNDS * whole:
            plans["equal_rounds"] = (0, whole)
        return {
            which: [
                Piece(contender, seed, settings[number], count, self.task_hash)
                for seed in range(self.seeds if count else 0)
            ]
            for which, (number, count) in plans.items()
        }

    def leaderboard(self) -> Leaderboard:
        """Return the rows of all methods; every piece must be finished."""
        lines = [self._row(one) for one in self.contenders]
        if (majority_row := self._majority()) is not None:
            lines.append(majority_row)
        task = {
            "name": self.task.name,
            "hash": self.task_hash,
            "caption": self.task.caption,
            "notes": self.task.notes,
            **_judged(lines),
        }
        return Leaderboard(task, {row["method"]: row for row in lines})

    def _row(self, contender: Contender) -> Row:
        dimensions = [one.plain() for one in contender.dimensions]
        head = {
            "task": self.task_hash,
            "method": contender.identifier,
            "source": contender.source_hash,
            "space": canonical.digest(dimensions),
            "dimensions": dimensions,
            "own_dimensions": len(contender.method.space()),
            "given": {**contender.given},
            "budget": self.budget,
        }
        finals = {
            which: {piece.seed: self.store.find(piece) or {} for piece in pieces}
            for which, pieces in self._finals(contender).items()
        }
        settings = self._settings[contender.identifier]
        return rows.tuned(head, settings, self._outcomes(contender), finals)

    def _majority(self) -> Row | None:
        """Return the row of the most frequent class; ``None`` without classes."""
        runs = [(seed, self.majority(seed)) for seed in range(self.seeds)]
        tuned = [{"seed": seed, **run} for seed, run in runs if run is not None]
        head = {"task": self.task_hash, "method": rows.MAJORITY, "budget": self.budget}
        return hashed({**head, "tuned": tuned}) if tuned else None

    def majority(self, seed: int) -> dict[str, Any] | None:
        """Return partition and scores of the most frequent class; ``None`` without classes."""
        data = self.reference.experiment(seed, {}, None).data
        return majority.scored(data, self.task.score)

    def seconds(self) -> dict[str, float]:
        """Return the total seconds of each method's pieces, over all machines."""
        return {one.identifier: round(sum(self._spent(one)), 1) for one in self.contenders}

    def _spent(self, contender: Contender) -> list[float]:
        groups = (*self._trials[contender.identifier], *self._finals(contender).values())
        return [(self.store.find(piece) or {}).get("seconds", 0.0) for piece in _distinct(groups)]


def _distinct(groups: Iterable[Sequence[Piece]]) -> list[Piece]:
    """Return the distinct pieces of several groups."""
    return [*{piece.name: piece for group in groups for piece in group}.values()]


def _judged(lines: Sequence[Row]) -> dict[str, Any]:
    """Return the score by which the trials of the rows were judged.

    Raises:
        UsageError: All trials failed.
    """
    trials = [trial for row in lines for trial in row.get("trials", [])]
    for trial in trials:
        if "failed" not in trial:
            return {"score": trial["score"], "more": trial["more"]}
    raise UsageError(f"all trials of all methods failed; the first one: {trials[0]['failed']}")
