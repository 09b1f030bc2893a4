"""The verdict on repeated numbers: the same bits, equal up to rounding, or different."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

Word: TypeAlias = Literal["same bits", "agrees", "different"]

# A radius is the maximum of few draws, so that honest runs may differ somewhat more.
MARGIN = 3
# A difference that counts as rounding, whatever the radius.
TRIVIAL = 1e-6
# Where no radius is known, and none is measured, this difference counts as rounding.
UNKNOWN = 1e-3
# A recorded radius above this is ignored, as it would excuse a number that somebody changed.
BELIEVED = 1e-3


@dataclass(frozen=True)
class Verdict:
    """The result of comparing a run with its repetition.

    Attributes:
        word: The verdict.
        what: The differences, and those that rounding alone causes.
    """

    word: Word
    what: str = ""

    def __str__(self) -> str:
        """Return the verdict as a sentence."""
        return f"{self.word}: {self.what}" if self.what else self.word


def judged(
    same: bool,
    apart: float,
    where: str,
    recorded: float | None,
    measure: Callable[[], float | None] = lambda: None,
) -> Verdict:
    """Judge the largest difference of a run's numbers from those of its repetition.

    Args:
        same: Whether the fingerprints are equal.
        apart: The difference.
        where: The number that differs most.
        recorded: The rounding radius that is stored with the run: how far it is from the same run
            whose initial weights are moved by one unit in the last place. A radius of 0 bounds
            nothing: the move did not reach what the method draws itself.
        measure: Measures the radius on this machine, if the recorded one does not explain the
            difference; returns ``None`` if it cannot.
    """
    if same and apart == 0:
        return Verdict("same bits")
    if apart == 0:
        return Verdict("agrees", "all scores are equal, and the weights differ in their last bits")
    off = f"off by {apart:.2g} ({where})"
    if apart <= TRIVIAL:
        return Verdict("agrees", off)
    known = recorded if recorded and recorded <= BELIEVED else None
    if known is None or apart > MARGIN * known:
        known = max((one for one in (known, measure()) if one), default=None)
    if known is None:
        word: Word = "agrees" if apart <= UNKNOWN else "different"
        alone = f"no radius of rounding is stored, so up to {UNKNOWN:g} counts as rounding"
    else:
        word = "agrees" if apart <= MARGIN * known else "different"
        alone = f"rounding alone makes {known:.2g}"
    return Verdict(word, f"{off}, {alone}")


def largest(then: Mapping[str, float], now: Mapping[str, float]) -> tuple[str, float]:
    """Return the number that differs most between two mappings with the same keys, and by how much.

    The difference of numbers above one is relative to them; a number that is missing, infinite or
    NaN in one of them alone differs infinitely.
    """
    where, most = "", 0.0
    for name in then:
        apart = float(relative(np.array(then[name]), np.array(now[name])))
        if apart > most:
            where, most = name, apart
    return where, most


def relative(then: Any, now: Any) -> Any:  # noqa: ANN401
    """Return the differences of arrays, relative to numbers above one; see :func:`largest`."""
    scale = np.maximum(1, np.maximum(np.abs(then), np.abs(now)))
    with np.errstate(invalid="ignore"):  # of what is infinite
        apart = np.where(then == now, 0, np.abs(then - now) / scale)
    return np.where(np.isnan(then) & np.isnan(now), 0, np.nan_to_num(apart, nan=np.inf))


def places(then: Iterable[str], now: str) -> str:
    """Describe where runs were made and repeated."""
    others = [*dict.fromkeys(then)]
    if others == [now]:
        return f"then and now: {now}"
    return f"then: {'; '.join(others) or 'not recorded'}\nnow: {now}"
