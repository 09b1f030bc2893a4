"""The evaluations of every run: personal models, the global model, and a common test set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from pfl.core.server import ServerState
from pfl.core.types import NO_CLIENT, Job, Scores
from pfl.federation.evaluation import Measurement
from pfl.federation.evaluator import Evaluated, Evaluator
from pfl.federation.run import Row


@dataclass(frozen=True)
class Personal(Measurement):
    """Personalised models, at each point of evaluation."""

    evaluator: Evaluator

    def measure(self, tested: Evaluated) -> Row:
        """Test each client's personalised model on its own data."""
        evaluator = self.evaluator
        row: Row = {}
        for position, point in enumerate(evaluator.points):
            group = "personal" if position == 0 else f"personal_{point}"
            if point == "post_local":
                scores = self._as_trained(tested)
            elif evaluator.personal_is_global:
                scores = tested.global_scores
            else:
                scores = evaluator.test(tested.clients, partial(evaluator.job, tested.after))
            row |= evaluator.collect(scores, group, tested.rows)
        return row

    def _as_trained(self, tested: Evaluated) -> dict[int, Scores]:
        """Return scores at ``post_local``: clients that trained are scored right after training.

        The others are tested with what they would have received at the start of the round.
        """
        results = tested.results
        scored = {client: results[client].scores for client in tested.clients if client in results}
        others = [client for client in tested.clients if client not in scored]
        return scored | self.evaluator.test(others, partial(self.evaluator.job, tested.before))

    def job(self, state: ServerState, client: int) -> Job | None:
        """Return the job of a client of the federation."""
        run = self.evaluator.run
        if client not in self.evaluator.members:
            return None
        # Its state is needed here, whatever the engine takes.
        kept = run.kept.get(client, {})
        return self.evaluator.coordinator.job(state, client, run.round, kept)


@dataclass(frozen=True)
class Global(Measurement):
    """The server's model, of a run that has one."""

    evaluator: Evaluator

    def measure(self, tested: Evaluated) -> Row:
        """Test the global model on each client's data."""
        return self.evaluator.collect(tested.global_scores, "global", tested.rows)


@dataclass(frozen=True)
class Pooled(Measurement):
    """The server's model on a common test set, of a run that has both."""

    evaluator: Evaluator

    def measure(self, tested: Evaluated) -> Row:
        """Test the global model on the common test set, which belongs to no client."""
        evaluator = self.evaluator
        job = evaluator.coordinator.job(tested.after, evaluator.members[0], evaluator.run.round)
        job = replace(job, info=replace(job.info, client=NO_CLIENT))
        scores = evaluator.test([NO_CLIENT], lambda _: job, ("pooled",), "global")[NO_CLIENT]
        return {f"test/pooled/{name}": value for name, value in scores.get("pooled", {}).items()}
