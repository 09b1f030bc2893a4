"""One client after another, on one module: the reference for every other engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pfl.core.types import Job, Result, Scores
from pfl.engines.base import Engine
from pfl.training import client_round
from pfl.training.contexts import Contexts


class SequentialEngine(Engine):
    """Runs jobs one by one; works with any method and any network."""

    def setup(self, contexts: Contexts) -> str:
        """Take the contexts as they are."""
        self._contexts = contexts
        return "sequential: one client after another"

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Run each client's round."""
        for job in jobs:
            yield client_round.train(self._contexts.of(job.info.client), job)

    def test(self, jobs: Sequence[Job]) -> Iterator[Scores]:
        """Test each job's model on its splits."""
        answers = client_round.all_answers(self._contexts.of, jobs)
        return client_round.scored(self._contexts.scorer, answers)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
