"""Evaluation after a round: which models are tested, of which clients, when and on which data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from pfl.core.data import FederatedData, holders, members
from pfl.core.per_client import variants
from pfl.core.seeds import derive, generator
from pfl.core.server import ServerState
from pfl.core.types import NO_CLIENT, Job, Result, Scores, Split
from pfl.federation import soundness
from pfl.federation.run import Row, Run
from pfl.federation.sampling import subset
from pfl.federation.settings import Settings
from pfl.training.context import Context
from pfl.training.server_round import Coordinator

# Jobs built at a time: each has its client's kept state, and thousands would fill the memory.
BLOCK = 256
# Number of clients that ``auto`` tests in a population of more than a few, where testing all would
# take most of a round. Federations in the literature rarely have more than 100.
FEW, SAMPLE = 1_000, 100


def chosen(settings: Settings, data: FederatedData) -> list[int] | None:
    """Return the clients that a new run tests before its last round; ``None`` for all."""
    count = settings.evaluate_clients
    if count == "auto":
        count = SAMPLE if data.num_clients > FEW else None
    if count is None:
        return None
    return subset(holders(data, "test"), count, generator(settings.seed, "evaluate"))


class Evaluator:
    """Tests personalised models of clients, and the global model.

    Attributes:
        points: Points at which personalised models are tested; scores of the first are named
            ``personal``, those of others ``personal_<point>``.

    Args:
        settings: The settings of the run.
        context: The data, and the method at its initial values; it determines whether there is a
            global model, whether personalised models equal it, and each client's group.
        coordinator: Makes the clients' jobs, and has the server's reports on them.
        run: The run, with what clients keep.
    """

    def __init__(
        self, settings: Settings, context: Context, coordinator: Coordinator, run: Run
    ) -> None:
        module, self.data, self.scorer = context.module, context.data, context.scorer
        self.points = settings.evaluate_at or [module.evaluate_at]
        self._engine, self._coordinator, self._run = settings.runner, coordinator, run
        self.clients = coordinator.clients
        self.has_global_model = module.has_global_model()
        self.personal_is_global = module.personal_is_global()
        self.labels = module.groups
        self.groups = [module.group(info) for info in self.clients if self.labels]
        if not self.labels and (found := variants(module)):
            self.labels = found[0].labels
            self.groups = [context.variant_of(info.client) for info in self.clients]
        if not self.labels:
            self.labels, self.groups = getattr(context.data, "groups", ((), []))

    def job(self, state: ServerState, client: int) -> Job:
        """Return a client's job from a state of the server."""
        return self._run.keeper.fill(self._coordinator.job(state, client, self._run.round))

    def group_sizes(self) -> str:
        """Return the number and label of each group (as in ``clients.csv``), and its size."""
        held = [f"{n} {label}: {self.groups.count(n)}" for n, label in enumerate(self.labels)]
        return ", ".join(held)

    def evaluate(
        self,
        tested: Sequence[int],
        results: Mapping[int, Result],
        before: ServerState,
        after: ServerState,
    ) -> tuple[Row, list[Row]]:
        """Test models; return one row of summaries, and one row for each tested client.

        Args:
            tested: The clients to test, ascending.
            results: This round's training results by client, with scores if ``post_local`` is among
                the points.
            before: The server's state before the round.
            after: The server's state after the round.
        """
        row: Row = {}
        rows = self.rows(tested, after.round)
        if self.groups:
            for client in tested:
                rows[client]["group"] = self.groups[client]
        common: dict[int, Scores] = {}
        if self.has_global_model:
            common = self.test(tested, partial(self.job, after), model="global")
        for position, point in enumerate(self.points):
            group = "personal" if position == 0 else f"personal_{point}"
            if point == "post_local":
                scores = self._as_trained(tested, results, before)
            elif self.personal_is_global:
                scores = common
            else:
                scores = self.test(tested, partial(self.job, after))
            row |= self.collect(scores, group, rows)
        if self.has_global_model:
            row |= self.collect(common, "global", rows)
            row |= self._pooled(after)
        for name, values in self._coordinator.reported(after).items():
            for client in values.keys() & rows.keys():
                rows[client][name] = values[client]
        return row, list(rows.values())

    def rows(self, clients: Sequence[int], number: int) -> dict[int, Row]:
        """Return the rows of clients that are tested after a round, still without scores."""
        return {
            client: {
                "round": number,
                "client": client,
                "samples": len(self.data.split(client, "train")),
                "test_samples": len(self.data.split(client, "test")),
            }
            for client in clients
        }

    def undefined(self, rows: Sequence[Row]) -> list[int]:
        """Return the tested clients with a model whose main score is not finite, with a warning."""
        main = next(iter(self.scorer.better))
        clients = [
            int(row["client"])
            for row in rows
            if not all(math.isfinite(row[name]) for name in row if name.endswith(f"/{main}"))
        ]
        soundness.warn_of_undefined(clients, int(rows[0]["round"]) if rows else 0)
        return clients

    def _as_trained(
        self, tested: Sequence[int], results: Mapping[int, Result], before: ServerState
    ) -> dict[int, Scores]:
        """Return scores at ``post_local``: clients that trained are scored right after training.

        The others are tested with what they would have received at the start of the round.
        """
        scored = {client: results[client].scores for client in tested if client in results}
        others = [client for client in tested if client not in scored]
        return scored | self.test(others, partial(self.job, before))

    def test(
        self,
        clients: Sequence[int],
        job: Callable[[int], Job],
        splits: tuple[Split, ...] = ("val", "test"),
        model: Literal["personal", "global"] = "personal",
    ) -> dict[int, Scores]:
        """Return the scores of clients' models; ``job`` makes a client's job."""
        scores: dict[int, Scores] = {}
        for start in range(0, len(clients), BLOCK):
            block = clients[start : start + BLOCK]
            jobs = [
                replace(one, seed=derive(one.seed, "test"), splits=splits, model=model)
                for one in map(job, block)
            ]
            scores.update(zip(block, self._engine.test(jobs), strict=True))
        return scores

    def _pooled(self, state: ServerState) -> Row:
        """Test the global model on the common test set, which belongs to no client."""
        if self.data.pooled_test() is None:
            return {}
        job = self._coordinator.job(state, members(self.data)[0], self._run.round)
        job = replace(job, info=replace(job.info, client=NO_CLIENT))
        scores = self.test([NO_CLIENT], lambda _: job, ("pooled",), "global")[NO_CLIENT]
        return {f"test/pooled/{name}": value for name, value in scores.get("pooled", {}).items()}

    def collect(self, scores: Mapping[int, Scores], group: str, rows: Mapping[int, Row]) -> Row:
        """Enter scores into the clients' rows; return their summary over clients."""
        summary: Row = {}
        for split in ("test", "val"):
            scored = {c: s[split] for c, s in scores.items() if split in s}
            for client, values in scored.items():
                rows[client].update({f"{split}/{group}/{name}": v for name, v in values.items()})
            sizes = [len(self.data.split(client, split)) for client in scored]
            labels = [self.labels[self.groups[client]] for client in scored if self.groups]
            if split == "test" and scored and {*scores} == {*members(self.data)}:
                self.scorer.check_defined(list(scored.values()))
            summary |= self.scorer.over_clients(
                list(scored.values()), sizes, f"{split}/{group}", labels
            )
        return summary
