"""Verification of a leaderboard's rows: partition and run are made again, and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pfl.bench import majority
from pfl.bench.bench import Bench
from pfl.bench.rows import MAJORITY, Leaderboard
from pfl.cli.explain import UsageError
from pfl.disk.nearest import hint
from pfl.disk.rows import Row

# Largest difference of a score that counts as rounding.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Verified:
    """One run of a row, made again.

    Attributes:
        method: The row.
        seed: The seed.
        verdict: What was found.
        what: What differs, if something does.
    """

    method: str
    seed: int
    verdict: Literal["equal", "rounding", "different"]
    what: str = ""


def verified(
    board: Leaderboard, bench: Bench, names: Sequence[str], seeds: Sequence[int]
) -> Iterator[Verified]:
    """Make the tuned runs of some rows again.

    Args:
        board: The leaderboard.
        bench: The benchmark of its task, with the methods of these rows.
        names: Names of rows; all if there are none.
        seeds: Final seeds; all if there are none.

    Raises:
        UsageError: The task is another one, or there is no such row or seed.
    """
    if board.task["hash"] != bench.task_hash:
        raise UsageError(
            f"{bench.task.path} is not the task of this leaderboard: its hash is "
            f"{bench.task_hash}, and the leaderboard's is {board.task['hash']}"
        )
    for name in names:
        if name not in board.rows:
            raise UsageError(f"--row {name}: there is no such row{hint(name, board.rows)}")
    for name in names or board.rows:
        yield from _verified(board.rows[name], bench, seeds)


def _verified(row: Row, bench: Bench, seeds: Sequence[int]) -> Iterator[Verified]:
    runs = {run["seed"]: run for run in row["tuned"]}
    if missing := [seed for seed in seeds if seed not in runs]:
        raise UsageError(f"--seed {missing[0]}: the row {row['method']} has the seeds {[*runs]}")
    source = _source(row, bench)
    for seed in seeds or runs:
        result = _compared(str(row["method"]), seed, runs[seed], _again(row, bench, seed))
        if result.verdict == "different" and source:
            result = replace(result, what=f"{result.what}; {source}")
        yield result


def _source(row: Row, bench: Bench) -> str:
    """Return what to say if the method's source is not the row's; empty if it is."""
    for one in bench.contenders:
        if one.identifier == row["method"] and one.source_hash != row["source"]:
            return "the method's source has changed since"
    return ""


def _again(row: Row, bench: Bench, seed: int) -> dict[str, Any]:
    if row["method"] == MAJORITY:
        data = bench.reference.experiment(seed, {}, None).data
        scored = majority.scored(data, bench.task.score) or {}
        return {"partition": data.description()["hash"], **scored}
    contender = next(one for one in bench.contenders if one.identifier == row["method"])
    best = row["trials"][row["chosen"]]  # a row with runs has one
    return bench.player.final(contender, seed, best["settings"], best["rounds"])


def _compared(
    method: str, seed: int, stored: Mapping[str, Any], again: Mapping[str, Any]
) -> Verified:
    """Compare a stored run with the same run made again."""
    for key in ("failed", "partition"):
        if stored.get(key) != again.get(key):
            what = f"{key}: {stored.get(key)} in the row, {again.get(key)} now"
            return Verified(method, seed, "different", what)
    points = ("last", "best_by_val")
    then, now = (
        {f"{at} {name}": value for at in points for name, value in run.get(at, {}).items()}
        for run in (stored, again)
    )
    if then.keys() != now.keys():
        what = f"only one run has {', '.join(sorted(then.keys() ^ now.keys()))}"
        return Verified(method, seed, "different", what)
    apart = {name: abs(then[name] - now[name]) for name in then}
    worst = max(apart, key=lambda name: apart[name], default="")
    if worst and apart[worst] > ROUNDING:
        what = f"{worst}: {then[worst]:.6f} in the row, {now[worst]:.6f} now"
        return Verified(method, seed, "different", what)
    same = stored.get("fingerprint") == again.get("fingerprint") and not any(apart.values())
    return Verified(method, seed, "equal" if same else "rounding")


def told(results: Sequence[Verified]) -> str:
    """Return the outcome in one line, and what differs in further ones."""
    equal = sum(one.verdict == "equal" for one in results)
    different = [one for one in results if one.verdict == "different"]
    if different:
        lines = [f"{one.method}, seed {one.seed}: {one.what}" for one in different]
        return "\n".join([f"different: {len(different)} of {len(results)} runs", *lines])
    if equal == len(results):
        return f"verified: {equal} of {len(results)} fingerprints equal"
    return (
        f"verified: {equal} of {len(results)} fingerprints equal, the others equal to rounding: "
        f"scores within {ROUNDING:g}"
    )
