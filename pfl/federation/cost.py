"""Simulated seconds: what a round would take on clients with declared bandwidths and speeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from pfl.core.checks import finite, positive, within
from pfl.core.seeds import generator
from pfl.core.state import message_size
from pfl.core.types import Job, Result, Upload
from pfl.federation.run import Row


@runtime_checkable
class Spread(Protocol):
    """Numbers that differ from client to client."""

    def draw(self, rng: torch.Generator) -> float:
        """Return a client's number."""


@dataclass(frozen=True)
class LogNormal(Spread):
    """Numbers whose logarithms are normally distributed, as bandwidths and speeds often are.

    Args:
        median: Half of the clients have more.
        sigma: Standard deviation of the natural logarithm: at 1, two thirds of the clients lie
            within a factor of 2.7 of the median. At most 10.

    Raises:
        ValueError: A number is out of its range.
    """

    median: float
    sigma: float = 1.0

    def __post_init__(self) -> None:
        positive(median=self.median)
        within("[0, 10]", sigma=self.sigma)
        finite(median=self.median)

    def draw(self, rng: torch.Generator) -> float:
        """Return a client's number."""
        normal = torch.randn((), generator=rng, dtype=torch.float64).item()
        return self.median * math.exp(self.sigma * normal)


@dataclass(frozen=True)
class Cost:
    """The clients' bandwidths and speeds: a number for all clients, or a distribution over them.

    A client receives its message, trains, and sends its upload; the server waits for the slowest.
    Its own work takes no time. A client's numbers follow from its index and the run's seed, and
    stay the same.

    Args:
        up: Bytes per second from a client to the server.
        down: Bytes per second from the server to a client.
        speed: Training samples per second.

    Raises:
        ValueError: A number is not positive.
    """

    up: float | Spread
    down: float | Spread
    speed: float | Spread

    def __post_init__(self) -> None:
        same_for_all = {k: v for k, v in vars(self).items() if isinstance(v, int | float)}
        positive(**same_for_all)

    def of_client(self, seed: int, client: int) -> tuple[float, float, float]:
        """Return a client's bytes per second up and down, and its samples per second."""
        up, down, speed = (
            v.draw(generator(seed, "cost", name, client)) if isinstance(v, Spread) else v
            for name, v in vars(self).items()
        )
        return up, down, speed

    def of_round(
        self,
        jobs: Iterable[Job],
        results: Mapping[int, Result],
        uploads: Iterable[Upload],
        seed: int,
        history: Sequence[Row],
    ) -> Row:
        """Return the simulated seconds of a round, and of all rounds so far."""
        sent, slowest = {upload.client: message_size(upload) for upload in uploads}, 0.0
        for job in jobs:
            client = job.info.client
            up, down, speed = self.of_client(seed, client)
            received = 0 if job.broadcast is None else message_size(job.broadcast)
            samples = results[client].samples if client in results else 0
            slowest = max(slowest, received / down + samples / speed + sent.get(client, 0) / up)
        earlier = history[-1]["comm/seconds_total"] if history else 0.0
        return {"comm/seconds": slowest, "comm/seconds_total": earlier + slowest}
