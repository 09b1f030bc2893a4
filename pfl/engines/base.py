"""The interface of engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from pfl.core.types import Job, Result, Scores
from pfl.training.context import Context


class Engine(Protocol):
    """Runs jobs in any order and place, and yields results in the order of the jobs.

    Attributes:
        stacks: Whether clients are trained as one stack, if the engine decides this itself in
            :meth:`setup`; a resumed run sets the decision of its first start.
    """

    stacks: bool | None = None

    def setup(self, context: Context) -> str:
        """Prepare for a run; return one line for its header: what is used, and why."""

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Run each client's round."""

    def test(self, jobs: Sequence[Job]) -> Iterator[Scores]:
        """Test each job's model on its splits."""

    def close(self) -> None:
        """Release what :meth:`setup` acquired, even if it failed."""
