"""The interface of engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from pfl.core.data import FederatedData
from pfl.core.types import Job, Result, Scores
from pfl.engines.cores import Share
from pfl.training.context import Context


class Engine(Protocol):
    """Runs jobs in any order and place, and yields results in the order of the jobs.

    Attributes:
        stacks: Whether clients are trained as one stack, if the engine decides this itself in
            :meth:`setup`; a resumed run sets the decision of its first start.
        simulates: Whether clients and their data are simulated; real ones need secrets that no
            seed gives away.
        complete: Whether every job has a result, or the run ends.
        forgets: Whether what clients keep ends with the engine, so that no checkpoint with it can
            be resumed.
        share: Its share of the cores, taken in :meth:`setup`; others have it while the run is
            suspended.
    """

    stacks: bool | None = None
    simulates: bool = True
    complete: bool = True
    forgets: bool = False
    share: Share | None = None

    def connect(self, context: Context, config: str | None) -> FederatedData:
        """Return the data as the run may know them, before anything of them is used.

        By default, these are the data themselves. An engine whose clients are elsewhere asks them.

        Args:
            context: The method, with the data that the run was given.
            config: The run's configuration as YAML; ``None`` for a run started from Python.
        """
        return context.data

    def setup(self, context: Context) -> str:
        """Prepare for a run; return one line for its header: what is used, and why."""

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Run each client's round; leave out a client that fails, if the run goes on then."""

    def test(self, jobs: Sequence[Job]) -> Iterator[Scores]:
        """Test each job's model on its splits; a client that fails has no scores, likewise."""

    def failed(self) -> Mapping[int, str]:
        """Return why each client failed without which the run went on since the last call."""
        return {}

    def measured(self) -> Mapping[str, float]:
        """Return what the engine has measured since the last call, for the row of a round."""
        return {}

    def close(self) -> None:
        """Release what :meth:`connect` and :meth:`setup` acquired, even if they failed."""
