"""The interface of engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from pfl.core.data import FederatedData
from pfl.core.types import Job, Result, Scores
from pfl.engines.keeper import Keeper

if TYPE_CHECKING:
    from pfl.engines.cores import Share
    from pfl.training.contexts import Contexts


class Engine(Protocol):
    """Runs jobs in any order and place, and yields results in the order of the jobs.

    Attributes:
        decided: What :meth:`setup` decided on which the numbers depend, in a word of the engine's
            own; a resumed run sets the word of its first start. ``None`` if there is nothing.
        real: Whether clients are elsewhere, with samples of their own.
        tolerates: Whether a round goes on without a client that fails; otherwise, a job without a
            result ends the run.
        share: Its share of the cores, taken in :meth:`setup`; other runs use it while this one is
            suspended.
        keeper: Makes the keeper of what a run's clients keep; takes the arguments of
            :class:`~pfl.engines.keeper.Keeper`.
    """

    decided: str | None = None
    real: bool = False
    tolerates: bool = False
    share: Share | None = None
    keeper: Callable[[int | None, Path | None, torch.device], Keeper] = Keeper

    def connect(self, contexts: Contexts, config: str | None) -> FederatedData:
        """Return the data as the run may use them; called first.

        By default, these are the data themselves. An engine with remote clients asks them.

        Args:
            contexts: The method, with the data that the run was given.
            config: The run's configuration as YAML; ``None`` for a run started from Python.
        """
        return contexts.data

    def setup(self, contexts: Contexts) -> str:
        """Prepare for a run; return one line for its header: what is used, and why."""

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Run each client's round; leave out a client that fails, if the run continues then."""

    def test(self, jobs: Sequence[Job]) -> Iterator[Scores]:
        """Test each job's model on its splits; a client that fails has no scores, likewise."""

    def failed(self) -> Mapping[int, str]:
        """Return why clients failed since the last call, if the run continued without them."""
        return {}

    def measured(self) -> Mapping[str, float]:
        """Return the engine's measurements since the last call, for the row of a round."""
        return {}

    def close(self) -> None:
        """Release what :meth:`connect` and :meth:`setup` acquired, even if they failed."""
