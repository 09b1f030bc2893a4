"""The parts of a round's row of metrics: times, training and traffic."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence

from pfl.core.state import message_size
from pfl.core.types import Job, Result, Upload
from pfl.federation.run import Row


class Clock:
    """A stopwatch: the seconds of each lap, and of all laps as ``time/round``."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self.laps: Row = {}

    def lap(self, name: str) -> None:
        """End a lap."""
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self.laps["time/round"] = now - self._start
        self._last = now


def of_training(results: Mapping[int, Result], discarded: int) -> Row:
    """Return the clients' mean training numbers, and totals of samples, steps and discards."""
    row = over_clients(results, "train", lambda result: result.train)
    row["train/samples"] = sum(result.samples for result in results.values())
    row["train/steps"] = sum(result.steps for result in results.values())
    row["train/discarded"] = discarded
    return row


def of_client(
    client: int, results: Mapping[int, Result], uploaded: Container[int], discarded: Container[int]
) -> Row:
    """Return what a client did in a round, for its row in the records."""
    logged = results[client].logged if client in results else {}
    return {
        "trained": client in results,
        "uploaded": client in uploaded,
        "discarded": client in discarded,
        **{f"log/{name}": value for name, value in logged.items()},
    }


def of_traffic(
    jobs: Sequence[Job], uploads: Sequence[Upload], unheard: int, history: Sequence[Row]
) -> Row:
    """Return the bytes moved in a round, and in all rounds so far.

    Args:
        jobs: Of the clients that trained.
        uploads: The uploads that count.
        unheard: Bytes of uploads that arrived and that a step of the server withheld.
        history: The rows of the rounds before.
    """
    sent = [job.broadcast for job in jobs if job.broadcast is not None]
    down, up = sum(map(message_size, sent)), sum(map(message_size, uploads)) + unheard
    earlier = history[-1]["comm/bytes_total"] if history else 0
    return {"comm/bytes_down": down, "comm/bytes_up": up, "comm/bytes_total": earlier + down + up}


def over_clients(
    results: Mapping[int, Result], prefix: str, numbers: Callable[[Result], Mapping[str, float]]
) -> Row:
    """Return sample-weighted means over clients of named numbers in their results."""
    sums: dict[str, float] = {}
    weights: dict[str, float] = {}
    for _, result in sorted(results.items()):
        for name, value in numbers(result).items():
            sums[name] = sums.get(name, 0.0) + value * result.samples
            weights[name] = weights.get(name, 0.0) + result.samples
    # Empty Poisson batches have no weight.
    return {f"{prefix}/{name}": sums[name] / weights[name] for name in sums if weights[name]}
