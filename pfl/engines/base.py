"""The interface of engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from pfl.core.types import Job, Result, Scores
from pfl.training.context import Context


class Engine(Protocol):
    """Runs jobs, in any order and place, and answers in the order in which they were given.

    Attributes:
        stacks: Whether clients are trained as one stack, where the engine finds out by itself in
            :meth:`setup`; a run that is resumed sets what was found when it began.
    """

    stacks: bool | None = None

    def setup(self, context: Context) -> str:
        """Get ready for a run; returns one line for its header: what is used, and why."""

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Run each client's round."""

    def test(self, jobs: Sequence[Job]) -> Iterator[Scores]:
        """Test each job's model on its splits."""

    def close(self) -> None:
        """Release what :meth:`setup` took."""
