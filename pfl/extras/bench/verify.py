"""Verification of a leaderboard: repeat partitions and runs, and compare.

Rows may come from anyone, so they only select settings from the method's search space and the
number of rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from pfl.cli.explain import UsageError
from pfl.extras.bench.bench import Bench
from pfl.extras.bench.contender import Contender
from pfl.extras.bench.hashed import Row
from pfl.extras.bench.pieces import Piece
from pfl.extras.bench.rows import MAJORITY, Leaderboard
from pfl.extras.bench.runner import by_point
from pfl.verification.verdict import Verdict, judged, largest

# Limit of a run's rounds, as a multiple of the task's: methods with cheaper steps than FedAvg's
# have more.
MOST_ROUNDS = 20


@dataclass(frozen=True)
class Verified:
    """A repeated run of a row.

    Attributes:
        run: Row, settings and seed, for messages.
        verdict: Result of the comparison.
        place: Processor and versions of the stored run.
    """

    run: str
    verdict: Verdict
    place: str


def verified(
    board: Leaderboard, bench: Bench, names: Sequence[str], seeds: Sequence[int], trusted: bool
) -> Iterator[Verified]:
    """Repeat the final runs of rows, at the chosen settings and at the defaults.

    Without seeds, those of all final seeds are repeated.

    Raises:
        UsageError: The task differs, or a row has settings or rounds that are outside the search
            and the file is not trusted.
        MissingError: The data are missing.
    """
    if board.task["hash"] != bench.task_hash:
        raise UsageError(
            f"{bench.task.path} is not the task of this leaderboard: its hash is "
            f"{bench.task_hash}, the leaderboard's is {board.task['hash']}"
        )
    for name in names:
        row = board.rows[name]
        contender = _contender(row, bench)
        # If the defaults were chosen, one run serves for both.
        again = cache(partial(_again, row, contender, bench, trusted))
        for which, trial in (("tuned", row.get("chosen")), ("default", 0), ("equal_rounds", 0)):
            for run in row.get(which, []):
                if seeds and run["seed"] not in seeds:
                    continue
                piece, found = again(trial, run["seed"], which == "equal_rounds")
                measure = partial(_measured, bench, piece, found)
                verdict = _compared(run, found, _radius(row), measure)
                label = f"{name}, {which}, seed {run['seed']}"
                yield Verified(label, verdict, place(run.get("environment", {})))


def _contender(row: Row, bench: Bench) -> Contender | None:
    """Return the method of a row; ``None`` for the majority class."""
    if row["method"] == MAJORITY:
        return None
    for contender in bench.contenders:
        if contender.identifier == row["method"]:
            return contender
    raise UsageError(f"the row {row['method']} misspells the name of its class")


def _again(
    row: Row,
    contender: Contender | None,
    bench: Bench,
    trusted: bool,
    trial: int,
    seed: int,
    equal: bool,
) -> tuple[Piece | None, dict[str, Any]]:
    """Repeat a final run with a trial's settings, and its rounds or, if ``equal``, the task's."""
    if contender is None:
        return None, bench.majority(seed) or {}
    settings, whole = row["trials"][trial]["settings"], bench.reference.default.values.loop.rounds
    rounds = whole if equal else row["trials"][trial]["rounds"]
    if not trusted:
        contender.check(settings)
        if rounds > (most := MOST_ROUNDS * whole):
            raise UsageError(
                f"the row {row['method']} has {rounds:,} rounds, but trials of this task have at "
                f"most {most:,}: give --trust if the file is yours"
            )
    piece = Piece(contender, seed, settings, rounds, bench.task_hash)
    return piece, bench.outcome(piece)


def _compared(
    stored: Mapping[str, Any],
    again: Mapping[str, Any],
    radius: float | None,
    measure: Any,  # noqa: ANN401
) -> Verdict:
    """Compare a stored run with its repetition."""
    if "failed" in stored and "failed" in again:
        return Verdict("agrees", "it fails here too")
    for key in ("failed", "partition"):
        if stored.get(key) != again.get(key):
            what = f"{key}: {stored.get(key)} in the row, {again.get(key)} now"
            return Verdict("different", what)
    then, now = by_point(stored), by_point(again)
    if then.keys() != now.keys():
        return Verdict(
            "different", f"only one run has {', '.join(sorted(then.keys() ^ now.keys()))}"
        )
    where, apart = largest(then, now)
    if where:
        where = f"{where}: {then[where]:.6f} in the row, {now[where]:.6f} now"
    same = stored.get("fingerprint") == again.get("fingerprint")
    return judged(same, apart, where, radius, measure)


def _radius(row: Row) -> float | None:
    """Return the largest rounding radius of a row's final runs."""
    runs = [run for which in ("tuned", "default") for run in row.get(which, [])]
    return max((run["radius"] for run in runs if "radius" in run), default=None)


def _measured(bench: Bench, piece: Piece | None, again: Mapping[str, Any]) -> float | None:
    """Measure the rounding radius of a run on this machine."""
    return None if piece is None else bench.radius(piece, again).get("radius")


def place(environment: Mapping[str, Any]) -> str:
    """Return processor and versions of a run as text; empty if unknown."""
    versions = [f"{name} {environment[name]}" for name in ("torch", "numpy") if name in environment]
    return ", ".join([*filter(None, [environment.get("processor")]), *versions])


def changed(board: Leaderboard, bench: Bench, names: Sequence[str]) -> list[str]:
    """Return the methods of the given rows whose source has changed."""
    sources = {one.identifier: one.source_hash for one in bench.contenders}
    return [n for n in names if n in sources and board.rows[n].get("source") != sources[n]]


def outcome(results: Sequence[Verified]) -> str:
    """Return one line with the number of compared runs and their verdicts."""
    if not results:
        return "compared no runs: all trials of these rows failed"
    counts = dict.fromkeys(("same bits", "agrees", "different"), 0)
    for one in results:
        counts[one.verdict.word] += 1
    said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"compared {len(results)} runs: {said}"
