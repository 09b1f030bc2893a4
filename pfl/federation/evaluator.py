"""Tests of models: of which clients, on which of their data, and what their rows hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Literal

from pfl.core.data import FederatedData, holders, members
from pfl.core.seeds import derive, generator
from pfl.core.server import ServerState
from pfl.core.types import EvaluationPoint, Job, Result, Scores, Split
from pfl.engines.base import Engine
from pfl.federation import soundness
from pfl.federation.run import Row, Run
from pfl.federation.sampling import subset
from pfl.training.contexts import Contexts
from pfl.training.server_round import Coordinator

# Jobs built at a time: each has its client's kept state, and thousands would fill the memory.
BLOCK = 256
# Number of clients that ``auto`` tests in a population of more than a few, where testing all would
# take most of a round. Federations in the literature rarely have more than 100.
FEW, SAMPLE = 1_000, 100


def chosen(count: int | Literal["auto"] | None, seed: int, data: FederatedData) -> list[int] | None:
    """Return the clients that a new run tests before its last round; ``None`` for all."""
    if count == "auto":
        count = SAMPLE if data.num_clients > FEW else None
    if count is None:
        return None
    return subset(holders(data, "test"), count, generator(seed, "evaluate"))


class Evaluator:
    """Tests personalised models of clients, and the global model.

    Attributes:
        points: Points at which personalised models are tested; scores of the first are named
            ``personal``, those of others ``personal_<point>``.
        engine: Runs the clients.
        contexts: The data, and the method at its initial values; it determines whether there is a
            global model, whether personalised models equal it, and each client's group.
        coordinator: Makes the clients' jobs.
        run: The run, with what clients keep.
        members: The clients of the federation, ascending.

    Args:
        points: As above; ``None`` takes the method's own.
    """

    def __init__(
        self,
        engine: Engine,
        contexts: Contexts,
        coordinator: Coordinator,
        run: Run,
        points: Sequence[EvaluationPoint] | None = None,
    ) -> None:
        self.engine, self.contexts, self.coordinator, self.run = engine, contexts, coordinator, run
        module, self.data, self.scorer = contexts.module, contexts.data, contexts.scorer
        self.points = points or [module.evaluate_at]
        self.clients, self.members = coordinator.clients, members(self.data)
        self.has_global_model = module.has_global_model()
        self.personal_is_global = module.personal_is_global()
        self.labels = module.groups
        self.groups = [module.group(info) for info in self.clients if self.labels]
        if not self.labels and contexts.labels:
            self.labels = contexts.labels
            self.groups = [contexts.number_of(info.client) for info in self.clients]
        if not self.labels:
            self.labels, self.groups = getattr(contexts.data, "groups", ((), []))

    def job(self, state: ServerState, client: int) -> Job:
        """Return a client's job from a state of the server."""
        return self.run.keeper.fill(self.coordinator.job(state, client, self.run.round))

    def group_sizes(self) -> str:
        """Return the number and label of each group (as in ``clients.csv``), and its size."""
        held = [f"{n} {label}: {self.groups.count(n)}" for n, label in enumerate(self.labels)]
        return ", ".join(held)

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
        if clients:
            soundness.warn_of_undefined(clients, int(rows[0]["round"]))
        return clients

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
            for client, found in zip(block, self.engine.test(jobs), strict=True):
                scores[client] = found
                self.run.keeper.rest(client)
        return scores

    def collect(self, scores: Mapping[int, Scores], group: str, rows: Mapping[int, Row]) -> Row:
        """Enter scores into the clients' rows; return their summary over clients."""
        summary: Row = {}
        for split in ("test", "val"):
            scored = {c: s[split] for c, s in scores.items() if split in s}
            for client, values in scored.items():
                rows[client].update({f"{split}/{group}/{name}": v for name, v in values.items()})
            sizes = [len(self.data.split(client, split)) for client in scored]
            labels = [self.labels[self.groups[client]] for client in scored if self.groups]
            if split == "test" and scored and {*scores} == {*self.members}:
                self.scorer.check_defined(list(scored.values()))
            summary |= self.scorer.over_clients(
                list(scored.values()), sizes, f"{split}/{group}", labels
            )
        return summary


@dataclass
class Evaluated:
    """The models after a round, as evaluations see them.

    Attributes:
        evaluator: Tests them.
        clients: The clients of the federation whose models are tested, ascending.
        results: This round's training results by client, with scores if ``post_local`` is among the
            points of evaluation.
        before: The server's state before the round.
        after: The server's state after the round.
        row: The round's row so far.
        rows: The rows of clients so far.
    """

    evaluator: Evaluator
    clients: Sequence[int]
    results: Mapping[int, Result]
    before: ServerState
    after: ServerState
    row: Row
    rows: dict[int, Row] = field(init=False)

    def __post_init__(self) -> None:
        groups = self.evaluator.groups
        self.rows = self.evaluator.rows(self.clients, self.after.round)
        for client in self.clients if groups else ():
            self.rows[client]["group"] = groups[client]

    @cached_property
    def global_scores(self) -> dict[int, Scores]:
        """Scores of the global model on each client's data, for all evaluations that need them."""
        job = partial(self.evaluator.job, self.after)
        return self.evaluator.test(self.clients, job, model="global")
