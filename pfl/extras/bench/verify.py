"""Verification of a leaderboard's rows: partition and run are made again, and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, TypeAlias

from pfl.cli.explain import UsageError
from pfl.disk.nearest import hint
from pfl.disk.rows import Row
from pfl.extras.bench.bench import Bench
from pfl.extras.bench.contender import Contender
from pfl.extras.bench.pieces import Piece
from pfl.extras.bench.rows import MAJORITY, Leaderboard

Verdict: TypeAlias = Literal["equal", "rounding", "different"]

# Largest difference of a score that counts as rounding.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Verified:
    """One run of a row, made again.

    Attributes:
        run: The row, the settings and the seed, as messages name them.
        verdict: What was found.
        what: What differs, if something does.
    """

    run: str
    verdict: Verdict
    what: str = ""


def verified(
    board: Leaderboard, bench: Bench, names: Sequence[str], seeds: Sequence[int]
) -> Iterator[Verified]:
    """Make the final runs of some rows again, at their chosen settings and at their defaults.

    Without names it is all rows, without seeds all final ones.

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
    known = [run["seed"] for run in row["tuned"]]
    if missing := [seed for seed in seeds if seed not in known]:
        raise UsageError(f"--seed {missing[0]}: the row {row['method']} has the seeds {known}")
    by_name = {one.identifier: one for one in bench.contenders}
    contender = None if row["method"] == MAJORITY else by_name[row["method"]]
    # Where the defaults were chosen, one run stands for both.
    again = cache(partial(_again, row, contender, bench))
    for which, trial in (("tuned", row.get("chosen")), ("default", 0)):
        for run in row.get(which, []):
            if seeds and run["seed"] not in seeds:
                continue
            verdict, what = _compared(run, again(trial, run["seed"]))
            if verdict == "different" and contender and contender.source_hash != row["source"]:
                what += "; the method's source has changed since"
            yield Verified(f"{row['method']}, {which}, seed {run['seed']}", verdict, what)


def _again(
    row: Row, contender: Contender | None, bench: Bench, trial: int, seed: int
) -> dict[str, Any]:
    """Make a final run again, with the settings and rounds of a trial."""
    if contender is None:
        return bench.majority(seed) or {}
    settled = row["trials"][trial]
    piece = Piece(contender, seed, settled["settings"], settled["rounds"], bench.task_hash)
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
    if not results:
        return "nothing to verify: the rows have no runs, because all their trials failed"
    equal = sum(one.verdict == "equal" for one in results)
    different = [one for one in results if one.verdict == "different"]
    if different:
        lines = [f"{one.run}: {one.what}" for one in different]
        return "\n".join([f"different: {len(different)} of {len(results)} runs", *lines])
    if equal == len(results):
        return f"verified: {equal} of {len(results)} fingerprints equal"
    return (
        f"verified: {equal} of {len(results)} fingerprints equal, the others equal to rounding: "
        f"scores within {ROUNDING:g}"
    )
