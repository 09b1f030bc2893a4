"""Verification of a leaderboard's rows: partition and run are made again, and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pfl.bench.bench import Bench
from pfl.bench.contender import Contender
from pfl.bench.pieces import Piece
from pfl.bench.rows import MAJORITY, Leaderboard
from pfl.cli.explain import UsageError
from pfl.disk.nearest import hint
from pfl.disk.rows import Row

Verdict: TypeAlias = Literal["equal", "rounding", "different"]

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
    verdict: Verdict
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
    by_name = {one.identifier: one for one in bench.contenders}
    contender = None if row["method"] == MAJORITY else by_name[row["method"]]
    for seed in seeds or runs:
        verdict, what = _compared(runs[seed], _again(row, contender, bench, seed))
        if verdict == "different" and contender and contender.source_hash != row["source"]:
            what += "; the method's source has changed since"
        yield Verified(str(row["method"]), seed, verdict, what)


def _again(row: Row, contender: Contender | None, bench: Bench, seed: int) -> dict[str, Any]:
    if contender is None:
        return bench.majority(seed) or {}
    best = row["trials"][row["chosen"]]  # a row with runs has one
    piece = Piece(contender, seed, best["settings"], best["rounds"], bench.task_hash)
    return bench.computed(piece)


def _compared(stored: Mapping[str, Any], again: Mapping[str, Any]) -> tuple[Verdict, str]:
    """Compare a stored run with the same run made again; return what differs, too."""
    for key in ("failed", "partition"):
        if stored.get(key) != again.get(key):
            return "different", f"{key}: {stored.get(key)} in the row, {again.get(key)} now"
    points = ("last", "best_by_val")
    then, now = (
        {f"{at} {name}": value for at in points for name, value in run.get(at, {}).items()}
        for run in (stored, again)
    )
    if then.keys() != now.keys():
        return "different", f"only one run has {', '.join(sorted(then.keys() ^ now.keys()))}"
    apart = {name: abs(then[name] - now[name]) for name in then}
    worst = max(apart, key=lambda name: apart[name], default="")
    if worst and apart[worst] > ROUNDING:
        return "different", f"{worst}: {then[worst]:.6f} in the row, {now[worst]:.6f} now"
    same = stored.get("fingerprint") == again.get("fingerprint") and not any(apart.values())
    return ("equal" if same else "rounding"), ""


def outcome(results: Sequence[Verified]) -> str:
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
