"""Tests of models after a round: which model, of which clients, at which point, on which data."""

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
    """Tests personalised models of clients, and the global model.

    Args:
        engine: Runs the tests.
        data: The federation's data.
        clients: All clients.
        points: Where personalised models are tested; the first is ``personal``, a further one
            ``personal_<point>``.
        module: The method at its initial values: says whether there is a global model, whether
            the personal ones are it, and which group each client is in.
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
        self.personal_is_global = module.personal_is_global()
        self.labels = module.groups
        self.groups = [module.group(info) for info in clients if self.labels]
        self.scorer = scorer
        self.job = job

    def group_sizes(self) -> str:
        """Return how many clients each group has, by the number it has in ``clients.csv``."""
        held = [f"{n} {label}: {self.groups.count(n)}" for n, label in enumerate(self.labels)]
        return ", ".join(held)

    def cost(self, tested: Sequence[int]) -> float:
        """Return how many samples pass forward when these clients are tested.

        What a method fits before the test is not counted.
        """
        one = self.personal_is_global and "post_broadcast" in self.points
        models = len(self.points) + self.has_global_model - one
        splits = [self.data.split(client, name) for client in tested for name in ("val", "test")]
        pooled = self.data.pooled_test() if self.has_global_model else None
        return models * sum(map(len, splits)) + (0 if pooled is None else len(pooled))

    def evaluate(
        self,
        tested: Sequence[int],
        results: Mapping[int, Result],
        before: ServerState,
        after: ServerState,
    ) -> tuple[Row, list[Row]]:
        """One row of summaries, and one row for each client that is tested.

        Args:
            tested: These clients, ascending.
            results: This round's training, by client, scored right after it if ``post_local`` is
                among the points.
            before: The server's state that the round was trained from.
            after: The state that it led to.
        """
        row: Row = {}
        rows: dict[int, Row] = {
            client: {
                "round": after.round,
                "client": client,
                "samples": self.clients[client].samples,
                "test_samples": len(self.data.split(client, "test")),
                **({"group": self.groups[client]} if self.groups else {}),
            }
            for client in tested
        }
        common: dict[int, Scores] = {}
        if self.has_global_model:
            common = self._test(tested, after, "global")
        for position, point in enumerate(self.points):
            group = "personal" if position == 0 else f"personal_{point}"
            if point == "post_local":
                found = self._as_trained(tested, results, before)
            elif self.personal_is_global:
                found = common
            else:
                found = self._test(tested, after, "personal")
            row |= self._collect(found, group, rows)
        if self.has_global_model:
            row |= self._collect(common, "global", rows)
            row |= self._pooled(after)
        for name, values in (after.client_report or {}).items():
            for client in values.keys() & rows.keys():
                rows[client][name] = values[client]
        return row, list(rows.values())

    def _as_trained(
        self, tested: Sequence[int], results: Mapping[int, Result], before: ServerState
    ) -> dict[int, Scores]:
        """Scores at ``post_local``: of whoever trained as its training left it.

        The others are tested with what they received at the start of the round.
        """
        scored = {client: results[client].scores for client in tested if client in results}
        others = [client for client in tested if client not in scored]
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

    def _collect(self, found: Mapping[int, Scores], group: str, rows: Mapping[int, Row]) -> Row:
        """Enter scores into the clients' rows; returns their summary over clients."""
        summary: Row = {}
        for split in ("test", "val"):
            scored = {c: s[split] for c, s in found.items() if split in s}
            for client, values in scored.items():
                rows[client].update({f"{split}/{group}/{name}": v for name, v in values.items()})
            sizes = [len(self.data.split(client, split)) for client in scored]
            labels = [self.labels[self.groups[client]] for client in scored if self.groups]
            summary |= self.scorer.over_clients(
                list(scored.values()), sizes, f"{split}/{group}", labels
            )
        return summary
