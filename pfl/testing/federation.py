"""Federations on toy data: run by hand, one client or round at a time, or as a whole run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lightning.fabric import Fabric

from pfl.core.client import Client
from pfl.core.seeds import derive
from pfl.core.server import Server
from pfl.core.state import clone
from pfl.core.types import ClientInfo, FederatedData, Job, Result, State
from pfl.federation.run import Run
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop
from pfl.testing.toy import ToyData, blobs
from pfl.training import client_round
from pfl.training.context import Context


class ToyFederation:
    """A federation whose rounds are run one call at a time.

    Attributes:
        module: The method, which plays every client.
        context: The module with its data and device.
        infos: Information about each client.
        server: The method's server.
        state: The server's state.
        kept: Each client's kept state.
        number: Number of finished rounds.

    Args:
        module: The method.
        data: The data; by default three unequal clients.
        rounds: Planned number of rounds.
        seed: Seed of all random choices.
        precision: As in Lightning.
    """

    def __init__(
        self,
        module: Client,
        data: FederatedData | None = None,
        rounds: int = 10,
        seed: int = 3,
        precision: Any = "32-true",  # noqa: ANN401
    ) -> None:
        self.data = blobs(task=module.task) if data is None else data
        fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
        self.context = Context(module, self.data, fabric)
        self.module, self.seed, self.number = module, seed, 0
        self.kept: dict[int, State] = {}
        clients = range(self.data.num_clients)
        self.infos = [client_info(self.data, client, rounds=rounds) for client in clients]
        self.server: Server[Any] = module.server()
        shared = clone({name: self.context.template[name] for name in module.shared_names()})
        self.state = self.server.init(shared, self.infos)

    def job(self, client: int, number: int | None = None) -> Job:
        """Return a client's job in a round, by default the next one."""
        number = self.number + 1 if number is None else number
        return Job(
            info=replace(self.infos[client], round=number),
            kept=self.kept.get(client, {}),
            broadcast=self.server.broadcast(self.state, client, number),
            seed=derive(self.seed, "client", number, client),
        )

    def jobs(self) -> list[Job]:
        """Return the jobs of all clients in the next round, each with a test."""
        return [replace(self.job(info.client), splits=("test",)) for info in self.infos]

    def train(self, client: int) -> Result:
        """Return a client's result in the next round, without changing the federation."""
        return client_round.train(self.context, self.job(client))

    def round(self, *clients: int) -> list[Result]:
        """Run a round with some clients, by default all: train, keep states, aggregate."""
        results = [self.train(client) for client in clients or range(self.data.num_clients)]
        self.kept.update({result.client: result.kept for result in results})
        uploads = [result.upload for result in results if result.upload is not None]
        self.state = self.server.aggregate(self.state, uploads)
        self.number += 1
        return results


def client_info(data: FederatedData, client: int, round: int = 0, rounds: int = 10) -> ClientInfo:
    """Return the information about a client."""
    return replace(ClientInfo.of(data, client, rounds), round=round)


def fit(
    module: Client,
    data: ToyData | None = None,
    rounds: int = 3,
    ckpt_path: str | None = None,
    **loop: Any,
) -> Run:
    """Run a federation in which two of three clients take part in each round."""
    options = {"sampler": UniformSampler(0.7), "accelerator": "cpu", "progress": False, **loop}
    return FederatedLoop(rounds, **options).fit(
        module, blobs(task=module.task) if data is None else data, ckpt_path=ckpt_path
    )


def outcome(run: Run) -> dict[str, Any]:
    """Return all numbers of a run, except times."""
    rows = [
        {name: value for name, value in row.items() if not name.startswith("time/")}
        for row in run.history
    ]
    return {"server": run.server, "kept": dict(run.kept), "history": rows}


def second_round(module: Client, **options: Any) -> tuple[ToyFederation, Sequence[Job]]:
    """Return a federation after its first round, and the jobs of the second."""
    federation = ToyFederation(module, **options)
    federation.round()
    return federation, federation.jobs()
