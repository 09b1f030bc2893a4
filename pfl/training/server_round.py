"""The server's part of a round: the jobs of its clients, and what it makes of their uploads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pfl.core.failure import during
from pfl.core.seeds import derive
from pfl.core.server import Server, ServerState
from pfl.core.state import clone, to
from pfl.core.types import ClientInfo, Job, Result, Split, State, Upload
from pfl.training.context import Context


class Coordinator:
    """Makes clients' jobs and aggregates their uploads; it holds no state between rounds.

    Attributes:
        server: The method's server.
        clients: What is known of each client before the first round.
        eligible: The clients that have training data.

    Args:
        context: The method with its initial values, the data and the device.
        rounds: Planned number of rounds.
        seed: Seed of all random choices of the clients.
    """

    def __init__(self, context: Context, rounds: int, seed: int) -> None:
        data = context.data
        self.server: Server[Any] = context.module.server()
        self.clients = [ClientInfo.of(data, client, rounds) for client in range(data.num_clients)]
        self.eligible = [info.client for info in self.clients if info.samples > 0]
        self._context, self._seed = context, seed

    def start(self) -> ServerState:
        """Return the server's state before the first round."""
        names, template = self._context.module.shared_names(), self._context.template
        state: ServerState = self.server.init(clone({n: template[n] for n in names}), self.clients)
        return state

    def job(
        self,
        state: ServerState,
        kept: Mapping[int, State],
        client: int,
        number: int,
        splits: tuple[Split, ...] = (),
    ) -> Job:
        """Return a client's job.

        Args:
            state: The server's state before the round.
            kept: What each client keeps.
            client: The client.
            number: The round, from 1.
            splits: Splits on which the client is tested right after training.
        """
        with during(f"round {number}, the server's broadcast to client {client}"):
            broadcast = self.server.broadcast(state, client, number)
        return Job(
            info=replace(self.clients[client], round=number),
            kept=to(kept.get(client, {}), self._context.fabric.device),
            broadcast=broadcast,
            seed=derive(self._seed, "client", number, client),
            splits=splits,
        )

    def aggregate(self, state: ServerState, uploads: list[Upload]) -> ServerState:
        """Return the server's state after a round, from uploads in ascending order of clients."""
        with during(f"round {state.round + 1}, the server's aggregation"):
            after: ServerState = self.server.aggregate(state, uploads)
        return after


def uploads_of(results: Iterable[Result]) -> list[Upload]:
    """Return the uploads of the clients that have one."""
    return [result.upload for result in results if result.upload is not None]
