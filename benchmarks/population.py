"""Time and memory of a round as the population grows and the number of participants stays.

``python -m benchmarks.population 1000 10000`` trains a hundred clients per round from each
population, with Ditto on LeNet-5 (a client keeps 62,006 floats), with and without a limit
``kept_memory``. Each run has its own process.

``python -m benchmarks.population --sites 100000 1000000`` measures what a server does and holds
whose clients are elsewhere: they answer at once, and train nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.memory import megabytes
from datamodules import IID, Synthetic
from lightning_modules.ditto import Ditto
from lightning_modules.nets import LeNet5
from pfl.core.data import FederatedData
from pfl.core.seeds import scoped
from pfl.core.state import clone
from pfl.core.types import Job, Result, RoundResult, Scores, Ticket, Upload
from pfl.engines.base import Engine
from pfl.engines.transport.wire import Sizes
from pfl.extras.sites.data import Known, at_sites
from pfl.extras.sites.keeper import SitesKeeper
from pfl.federation import checkpoint
from pfl.federation.run import Callback, Run
from pfl.federation.sampling import UniformSampler
from pfl.federation.schema import Content
from pfl.loop import FederatedLoop
from pfl.training.contexts import Contexts


class Watch(Callback):
    """Records seconds and memory of each round; all models are tested in the last one."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.memory: list[list[float]] = []

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Record this round."""
        self.seconds.append(result.metrics["time/round"] - result.metrics["time/evaluate"])
        self.memory.append(megabytes("RssAnon", "RssFile"))
        self.evaluation = result.metrics["time/evaluate"]


def measure(clients: int, kept_memory: float | None, rounds: int) -> dict[str, object]:
    """Run one federation, and return its row."""
    torch.set_num_threads(1)
    data = Synthetic(
        samples=10 * clients,
        channels=3,
        size=32,
        classes=10,
        domains=1,
        num_clients=clients,
        partition=IID(),
        batch_size=10,
    )
    data.setup()
    with scoped(1):
        module = Ditto(LeNet5(10), optimizer=partial(torch.optim.SGD, lr=0.01))
    watch, (before,) = Watch(), megabytes("RssAnon")
    run = FederatedLoop(
        rounds,
        UniformSampler(min(1, 100 / clients)),
        evaluate_every=rounds,
        accelerator="cpu",
        kept_memory=kept_memory,
        callbacks=[watch],
        progress=False,
    ).fit(module, data)
    with TemporaryDirectory(dir=".") as folder:
        start = time.perf_counter()
        checkpoint.save(Path(folder) / "last.ckpt", dict(Content.of(run)))
        saving = time.perf_counter() - start
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
    own, mapped = watch.memory[-2]
    return {
        "clients": clients,
        "kept_memory": kept_memory,
        "have kept": len(run.kept),
        "s/round, first 10": statistics.median(watch.seconds[:10]),
        "s/round, last 10": statistics.median(watch.seconds[-10:]),
        "MB before": before,
        "MB after a tenth": watch.memory[rounds // 10][0],
        "MB after half": watch.memory[rounds // 2][0],
        "MB after": own,
        "MB mapped": mapped,
        "MB after tests": watch.memory[-1][0],
        "s of all tests": watch.evaluation,
        "s of a checkpoint": saving,
        "MB of it": size / 1e6,
        "MB after it": megabytes("RssAnon")[0],
        "fingerprint": run.fingerprint,
    }


class Population(Synthetic):
    """Data of which a server knows the number of clients alone."""

    count = 1

    @property
    def num_clients(self) -> int:
        """N."""
        return self.count


class Elsewhere(Engine):
    """Clients that answer at once: the server's own work is left."""

    keeper = SitesKeeper

    def connect(self, contexts: Contexts, config: str | None) -> FederatedData:
        """Return data of which each client has told its sizes."""
        # Each has a record of its own, as from its own message.
        clients = range(contexts.data.num_clients)
        told = {client: Known(Sizes(10, 0, 5), None, f"{client:064x}") for client in clients}
        return at_sites(contexts.data, told)

    def setup(self, contexts: Contexts) -> str:
        """Do nothing."""
        return "elsewhere"

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Return what was sent, and a ticket."""
        for job in jobs:
            shared = {} if job.broadcast is None else clone(job.broadcast.shared)
            upload = Upload(job.info.client, job.info.samples, shared)
            ticket = Ticket(f"{job.info.client:064x}", job.info.round)
            yield Result(job.info.client, upload, {}, {}, 1, job.info.samples, ticket=ticket)

    def test(self, jobs: Sequence[Job]) -> Iterator[Scores]:
        """Return no scores."""
        for _ in jobs:
            yield {}

    def close(self) -> None:
        """Do nothing."""


def serve(clients: int, rounds: int) -> dict[str, object]:
    """Run the server's part of some rounds, of which each has a hundred clients."""
    torch.set_num_threads(1)
    data = Population(
        samples=20, channels=3, size=32, classes=10, domains=1, num_clients=1, partition=IID()
    )
    data.setup()
    data.count = clients
    with scoped(1):
        module = Ditto(LeNet5(10), optimizer=partial(torch.optim.SGD, lr=0.01))
    (before,), start = megabytes("RssAnon"), time.perf_counter()
    loop = FederatedLoop(
        rounds + 1,
        UniformSampler(min(1, 100 / clients)),
        Elsewhere(),
        evaluate_every=rounds + 1,
        evaluate_clients=1,
        accelerator="cpu",
        progress=False,
    )
    seconds, held = [], 0.0
    rounds_of = loop.rounds_of(module, data)
    for _ in range(rounds):
        run, result = next(rounds_of)
        if result.round == 1:
            ready = time.perf_counter() - start
            (held,) = megabytes("RssAnon")
        seconds.append(result.metrics["time/round"])
    # As if every client had taken part.
    run.keeper.restore({}, {c: (f"{c:064x}", 1) for c in range(clients)})
    (full,) = megabytes("RssAnon")
    with TemporaryDirectory(dir=".") as folder:
        start = time.perf_counter()
        checkpoint.save(Path(folder) / "last.ckpt", dict(Content.of(run)))
        saving = time.perf_counter() - start
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
    return {
        "clients": clients,
        "s to the first round's end": ready,
        "s of a round": statistics.mean(seconds[1:]),
        "bytes of a client": (held - before) * 1e6 / clients,
        "bytes of its ticket": (full - held) * 1e6 / clients,
        "s of a checkpoint": saving,
        "MB of it": size / 1e6,
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", type=int, nargs="*", default=[1000, 10_000])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--kept-memory", type=float, default=None)
    parser.add_argument("--one", action="store_true", help="this process measures one run")
    parser.add_argument("--sites", action="store_true", help="clients are elsewhere")
    given = parser.parse_args()
    if given.sites:
        for clients in given.clients:
            print(json.dumps(serve(clients, min(given.rounds, 5)), indent=1))
        return
    if given.one:
        print(json.dumps(measure(given.clients[0], given.kept_memory, given.rounds)))
        return
    for clients in given.clients:
        for bound in ([], ["--kept-memory=0.1"]):
            words = [sys.executable, "-m", "benchmarks.population", "--one", *bound]
            words += [f"--rounds={given.rounds}", str(clients)]
            row = json.loads(subprocess.check_output(words).splitlines()[-1])
            for name, value in row.items():
                print(
                    f"{name:>20} {value:.4g}" if isinstance(value, float) else f"{name:>20} {value}"
                )
            print()


if __name__ == "__main__":
    main()
