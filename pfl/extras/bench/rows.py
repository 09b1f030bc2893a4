"""The rows of a leaderboard: chosen settings, final tests and a hash of each row.

A row depends only on the task and its method, so that adding a method changes no other row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl.cli.explain import UsageError
from pfl.disk.reading import FileError
from pfl.disk.yaml_text import shipped
from pfl.extras.bench import forms, points
from pfl.extras.bench.hashed import Row, hashed, read_rows, write_rows

KIND = "leaderboard"
_REFERENCES = shipped("pfl.extras.bench", "references.yaml")
REFERENCE: str = _REFERENCES["plain"]
TUNED_REFERENCE: str = _REFERENCES["tuned"]
ALWAYS: Sequence[str] = _REFERENCES["always"]
LABELS: Mapping[str, str] = _REFERENCES["labels"]
# Name of the row without training: each client's most frequent class.
MAJORITY = "majority class"


def tuned(
    head: Mapping[str, Any],
    settings: Sequence[Mapping[str, Any]],
    trials: Sequence[Mapping[str, Any]],
    finals: Mapping[str, Mapping[int, Mapping[str, Any]]],
) -> Row:
    """Return the row of a method.

    Args:
        head: Identity of the row: task, method, hashes, environment.
        settings: Settings of each trial.
        trials: Outcome of each trial; see :func:`merged`.
        finals: Outcomes of the final runs by seed: ``default``, ``tuned`` and perhaps
            ``equal_rounds``.
    """
    best = chosen(trials)
    return hashed(
        {
            **head,
            "chosen": best,
            "edges": {} if best is None else points.edges(settings[best], settings),
            "trials": [
                {"settings": {**values}, **_lasting(trial)}
                for values, trial in zip(settings, trials, strict=True)
            ],
            **{
                which: [{"seed": seed, **_lasting(run)} for seed, run in sorted(runs.items())]
                for which, runs in finals.items()
            },
        }
    )


def merged(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the outcome of a trial over its seeds: the mean score, or a failure if one failed."""
    for outcome in outcomes:
        if "failed" in outcome:
            return {**outcome}
    return {
        **outcomes[0],
        "rounds": min(one["rounds"] for one in outcomes),
        "samples": max(one["samples"] for one in outcomes),
        "validation": sum(one["validation"] for one in outcomes) / len(outcomes),
    }


def chosen(trials: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the number of the best trial, the first in a tie; ``None`` if all failed."""
    done = [number for number, trial in enumerate(trials) if "failed" not in trial]
    if not done:
        return None
    best = max if trials[done[0]]["more"] else min
    return best(done, key=lambda number: trials[number]["validation"])


def _lasting(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return an outcome without the values that differ between repetitions."""
    return {key: value for key, value in outcome.items() if key != "seconds"}


@dataclass(frozen=True)
class Leaderboard:
    """The rows of one task.

    Attributes:
        task: Name, hash, caption and notes of the task, and the score of its tests.
        rows: Rows by method.
    """

    task: Mapping[str, Any]
    rows: Mapping[str, Row]

    def write(self, file: Path) -> None:
        """Write the leaderboard; equal rows give equal bytes.

        Raises:
            OSError: The file cannot be written.
        """
        write_rows(file, KIND, self.task, [self.rows[name] for name in sorted(self.rows)])

    @classmethod
    def read(cls, file: Path) -> Leaderboard:
        """Read a leaderboard.

        Raises:
            UsageError: It is not a leaderboard, or a row was changed.
        """
        by_method: dict[str, Row] = {}
        try:
            task, rows = read_rows(file, KIND, "method")
            forms.check_about(task, str(file))
            for number, row in enumerate(rows, 1):
                name = row.get("method", f"number {number}")
                forms.check_row(row, f"{file}: the row {name}", trained=name != MAJORITY)
                if row.get("task") != task["hash"]:
                    raise FileError(f"{file}: the row {name} belongs to another task")
                if name in by_method:
                    raise FileError(f"{file}: there are two rows of {name}")
                by_method[name] = row
        except (FileError, OSError) as error:
            raise UsageError(str(error)) from error
        return cls(task, by_method)
