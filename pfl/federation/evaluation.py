"""Tests of all models after a round: which model, at which point, on which data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pfl.core.client import Client
from pfl.core.seeds import derive
from pfl.core.server import ServerState
from pfl.core.types import ClientInfo, EvaluationPoint, FederatedData, Job, Result, Scores
from pfl.engines.base import Engine
from pfl.federation.run import Row
from pfl.training.metrics import Scorer

MakeJob = Callable[[int, ServerState], Job]
# Jobs made at a time: each holds what its client keeps, of thousands too much for memory.
BLOCK = 256


class Evaluator:
    """Tests personalised models of all clients, and the global model.

    Args:
        engine: Runs the tests.
        data: The federation's data.
        clients: All clients.
        points: Where personalised models are tested; the first is ``personal``, a further one
            ``personal_<point>``.
        module: The method at its initial values: says whether there is a global model, and which
            group each client is in.
        scorer: Sums up scores over clients.
        job: Makes the job of a client from a server's state.
    """

    def __init__(
        self,
        engine: Engine,
        data: FederatedData,
        clients: Sequence[ClientInfo],
        points: Sequence[EvaluationPoint],
        module: Client,
        scorer: Scorer,
        job: MakeJob,
    ) -> None:
        self.engine = engine
        self.data = data
        self.clients = clients
        self.points = points
        self.has_global_model = module.has_global_model()
        self.labels = module.groups
        self.groups = [module.group(info) for info in clients if self.labels]
        self.scorer = scorer
        self.job = job

    def group_sizes(self) -> str:
        """Return how many clients each group has, by the number it has in ``clients.csv``."""
        held = [f"{n} {label}: {self.groups.count(n)}" for n, label in enumerate(self.labels)]
        return ", ".join(held)

    def evaluate(
        self, results: Mapping[int, Result], before: ServerState, after: ServerState
    ) -> tuple[Row, list[Row]]:
        """One row of summaries, and one row a client.

        Args:
            results: This round's training, by client, scored right after it if ``post_local`` is
                among the points.
            before: The server's state that the round was trained from.
            after: The state that it led to.
        """
        row: Row = {}
        rows: list[Row] = [
            {
                "round": after.round,
                "client": info.client,
                "samples": info.samples,
                "test_samples": len(self.data.split(info.client, "test")),
            }
            for info in self.clients
        ]
        for client_row, number in zip(rows, self.groups, strict=False):
            client_row["group"] = number
        for position, point in enumerate(self.points):
            group = "personal" if position == 0 else f"personal_{point}"
            row |= self._collect(self._personal(point, results, before, after), group, rows)
        if self.has_global_model:
            everyone = [info.client for info in self.clients]
            row |= self._collect(self._test(everyone, after, "global"), "global", rows)
            row |= self._pooled(after)
        for name, values in (after.client_report or {}).items():
            for client, value in values.items():
                rows[client][name] = value
        return row, rows

    def _personal(
        self,
        point: EvaluationPoint,
        results: Mapping[int, Result],
        before: ServerState,
        after: ServerState,
    ) -> dict[int, Scores]:
        """Scores by client at one point.

        ``post_local``: whoever trained is tested as its training left it, the others with what they
        received at the start of the round.
        """
        clients = [info.client for info in self.clients]
        if point == "post_broadcast":
            return self._test(clients, after, "personal")
        scored = {client: result.scores for client, result in results.items()}
        others = [client for client in clients if client not in scored]
        return scored | self._test(others, before, "personal")

    def _test(
        self, clients: Sequence[int], state: ServerState, model: Literal["personal", "global"]
    ) -> dict[int, Scores]:
        scores: dict[int, Scores] = {}
        for start in range(0, len(clients), BLOCK):
            block = clients[start : start + BLOCK]
            jobs = [
                self._test_job(self.job(client, state), splits=("val", "test"), model=model)
                for client in block
            ]
            scores.update(zip(block, self.engine.test(jobs), strict=True))
        return scores

    def _pooled(self, state: ServerState) -> Row:
        """Test the global model on the common test set, which belongs to no client."""
        if self.data.pooled_test() is None:
            return {}
        job = self._test_job(self.job(0, state), splits=("pooled",), model="global")
        job = replace(job, kept={}, info=replace(job.info, client=-1))
        (scores,) = self.engine.test([job])
        return {f"test/pooled/{name}": value for name, value in scores.get("pooled", {}).items()}

    def _test_job(self, job: Job, **changes: object) -> Job:
        return replace(job, seed=derive(job.seed, "test"), **changes)  # type: ignore[arg-type]

    def _collect(self, found: Mapping[int, Scores], group: str, rows: list[Row]) -> Row:
        """Enter scores into the clients' rows; returns their summary over clients."""
        summary: Row = {}
        for split in ("test", "val"):
            scored = {c: s[split] for c, s in found.items() if split in s}
            for client, values in scored.items():
                rows[client] |= {f"{split}/{group}/{name}": v for name, v in values.items()}
            sizes = [len(self.data.split(client, split)) for client in scored]
            labels = [self.labels[self.groups[client]] for client in scored if self.groups]
            summary |= self.scorer.over_clients(
                list(scored.values()), sizes, f"{split}/{group}", labels
            )
        return summary
