"""One client after another, on one module: the reference for every other engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pfl.core.types import Job, Result, Scores
from pfl.engines.base import Engine
from pfl.training import client_round
from pfl.training.context import Context


class SequentialEngine(Engine):
    """Runs jobs one by one; works with any method and any network."""

    def setup(self, context: Context) -> str:
        """Take the context as it is."""
        self._context = context
        return "sequential: one client after another"

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Run each client's round."""
        for job in jobs:
            yield client_round.train(self._context, job)

    def test(self, jobs: Sequence[Job]) -> Iterator[Scores]:
        """Test each job's model on its splits."""
        context = self._context
        return client_round.scored(context.scorer, client_round.all_answers(context, jobs))

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
