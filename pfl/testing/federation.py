"""Federations on toy data: one client or round at a time, or a whole run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.accelerators.cpu import CPUAccelerator
from lightning.fabric.strategies.single_device import SingleDeviceStrategy

from pfl.core.client import ClientModule
from pfl.core.data import FederatedData
from pfl.core.types import Job, Result, Split, State
from pfl.federation.run import Run
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop
from pfl.testing.toy import CPU, ToyData, blobs
from pfl.training import client_round
from pfl.training.context import Context
from pfl.training.server_round import Coordinator, uploads_of


class ToyFederation:
    """A federation whose rounds are run one call at a time.

    Attributes:
        module: The method, which runs every client.
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
        device: The CPU, or :data:`pfl.testing.device.DEVICE`.
    """

    def __init__(
        self,
        module: ClientModule,
        data: FederatedData | None = None,
        rounds: int = 10,
        seed: int = 3,
        precision: Any = "32-true",  # noqa: ANN401
        device: torch.device = CPU,
    ) -> None:
        self.data = blobs(task=module.task) if data is None else data
        self.data.to(device)
        strategy = SingleDeviceStrategy(device=device, accelerator=CPUAccelerator())
        fabric = Fabric(strategy=strategy, devices=1, precision=precision)
        self.context = Context(module, self.data, fabric)
        self.module, self.number = module, 0
        self.kept: dict[int, State] = {}
        self.coordinator = Coordinator(self.context, rounds, seed)
        self.infos, self.server = self.coordinator.clients, self.coordinator.server
        self.state = self.coordinator.start()

    def job(self, client: int, number: int | None = None, splits: tuple[Split, ...] = ()) -> Job:
        """Return a client's job in a round, by default the next one."""
        number = self.number + 1 if number is None else number
        return self.coordinator.job(self.state, client, number, self.kept.get(client, {}), splits)

    def jobs(self) -> list[Job]:
        """Return the jobs of all clients in the next round, each with a test."""
        return [self.job(info.client, splits=("test",)) for info in self.infos]

    def train(self, client: int) -> Result:
        """Return a client's result in the next round, without changing the federation."""
        return client_round.train(self.context, self.job(client))

    def round(self, *clients: int) -> list[Result]:
        """Run a round with some clients, by default all: train, keep states, aggregate."""
        results = [self.train(client) for client in clients or range(self.data.num_clients)]
        self.kept.update({result.client: result.kept for result in results})
        self.state = self.coordinator.aggregated(self.state, uploads_of(results))
        self.number += 1
        return results

    def play(self) -> None:
        """Train all clients in two rounds, and test every model in the second."""
        self.round()
        for job in self.jobs():
            client_round.train(self.context, job)
            client_round.test(self.context, job)
            if self.module.has_global_model():
                client_round.test(self.context, replace(job, model="global"))


def fit(
    module: ClientModule,
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


def second_round(module: ClientModule, **options: Any) -> tuple[ToyFederation, Sequence[Job]]:
    """Return a federation after its first round, and the jobs of the second."""
    federation = ToyFederation(module, **options)
    federation.round()
    return federation, federation.jobs()
