"""Forms of a leaderboard's rows and of stored outcomes.

Keys that only describe a row may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from pfl.disk.form import FormError, formed
from pfl.disk.reading import FileError

_Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class _Budget:
    trials: _Count
    samples: _Count
    seeds: _Count


_ABOUT = {
    **{"name": str, "hash": str, "caption": str, "notes": list[Any]},
    **{"score": str, "more": bool},
}
_ROW = {"method": str, "budget": _Budget, "tuned": list[dict[str, Any]]}
_TRAINED = {
    **{"source": str, "trials": list[dict[str, Any]], "chosen": int | None},
    **{"default": list[dict[str, Any]], "edges": dict[str, str], "own_dimensions": int},
}
_TRIAL = {"rounds": _Count, "samples": int, "score": str, "more": bool, "validation": float}
_FINAL = {"partition": str, "last": dict[str, float], "best_by_val": dict[str, float]}
_OUTCOMES: Mapping[str, Mapping[str, Any]] = {"trial": _TRIAL, "final": _FINAL}


def check_about(about: Mapping[str, Any], place: str) -> None:
    """Check the header of a leaderboard.

    Raises:
        FileError: A key is missing or its value has the wrong form.
    """
    _check(about, _ABOUT, place, "about")


def check_row(row: Mapping[str, Any], place: str, trained: bool) -> None:
    """Check the row of a ``trained`` method, or of the majority class, which has no trials.

    Raises:
        FileError: A key is missing or its value has the wrong form.
    """
    _check(row, {**_ROW, **(_TRAINED if trained else {})}, place)
    trials, seeds = row.get("trials", []), range(row["budget"]["seeds"])
    for number, trial in enumerate(trials):
        _check_outcome(trial, "trial", place, "trials", str(number))
        _check(trial, {"settings": dict[str, Any]}, place, "trials", str(number))
    for which in ("tuned", "default", "equal_rounds"):
        for number, run in enumerate(row.get(which, [])):
            _check_outcome(run, "final", place, which, str(number))
            _check(run, {"seed": int}, place, which, str(number))
    tested = {"tuned": True}
    if trained:
        ran = [number for number, trial in enumerate(trials) if "failed" not in trial]
        if row["chosen"] not in ran and (ran or row["chosen"] is not None):
            what = f"expected the number of a trial that did not fail, got {row['chosen']}"
            raise FileError(f"{place}: chosen: {what}")
        tested = {"tuned": bool(ran), "default": 0 in ran}
        tested |= {"equal_rounds": True} if "equal_rounds" in row else {}
    for which, ended in tested.items():
        wanted = [*seeds] if ended else []
        if (found := [run["seed"] for run in row[which]]) != wanted:
            raise FileError(f"{place}: {which}: expected runs of the seeds {wanted}, got {found}")


def check_stored(stored: Mapping[str, Any], kind: str, place: str) -> None:
    """Check the stored outcome of a finished ``trial`` or ``final`` run.

    Raises:
        FileError: A key is missing or its value has the wrong form.
    """
    _check(stored, {"outcome": dict[str, Any]}, place)
    _check_outcome(stored["outcome"], kind, place, "outcome")


def _check_outcome(outcome: Mapping[str, Any], kind: str, place: str, *keys: str) -> None:
    radius = {"radius": float} if "radius" in outcome else {}
    form = {"failed": str} if "failed" in outcome else {**_OUTCOMES[kind], **radius}
    _check(outcome, form, place, *keys)


def _check(content: Mapping[str, Any], form: Mapping[str, Any], place: str, *keys: str) -> None:
    try:
        for key, of_value in form.items():
            if key not in content:
                raise FormError(keys, f"the key {key!r} is missing")
            formed(content[key], of_value, (*keys, key))
    except FormError as error:
        raise FileError(f"{place}: {error}") from error
