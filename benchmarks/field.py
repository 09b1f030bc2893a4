"""Three workloads of other simulators' benchmarks, beside loops that are written by hand.

``python -m benchmarks.field`` takes five minutes on two quiet cores, and prints the table of
docs/performance.md; ``--help`` shows the settings. Rounds are those of FedAvg, without tests:

- ``cnn``: 1,000 clients of 50 images in the shape of CIFAR-10, 50 a round, one epoch of batches of
  10, a network of 1.6 million parameters with dropout;
- ``lenet``: 100 clients of 100 images, all in each round, five epochs of batches of 50, LeNet-5;
- ``logistic``: 1,000 clients of 60 images in the shape of MNIST, 10 a round, one epoch of batches
  of 10, a linear classifier.

The loops by hand do what a round needs and no more: they draw clients, load the server's weights,
train, and sum the weights as they arrive. One has all op threads; the other runs clients in as many
threads, with one op thread each. They have the network and the memory layout of the others, and
share their samples. Variants take turns in one process, turn by turn; the peak memory of each is
that of a process of its own, in addition to samples and network.

With ``--accelerator cuda``, all of them train on a GPU, and memory is the GPU's.

Another simulator takes part if it is installed: ``--rivals MODULE:FUNCTION`` names a function that
gets a :class:`Workload` and yields after each round. Those of ``benchmarks.rivals`` are ready.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from queue import SimpleQueue
from typing import TypeAlias

import torch
from torch import Tensor, nn

from benchmarks.bare import SGD, pool, since, train
from benchmarks.machine import Others, machine
from benchmarks.memory import megabytes, reset_peak
from benchmarks.round import BUSY, Help
from datamodules import TensorData
from lightning_modules.fedavg import FedAvg
from lightning_modules.nets import MLP, LeNet5
from lightning_modules.nets.blocks import Conv2d
from lightning_modules.nets.split import SplitNet
from pfl.core.seeds import generator, scoped
from pfl.engines.named import NAMES
from pfl.engines.vectorised import VectorisedEngine
from pfl.federation.sampling import UniformSampler, subset
from pfl.loop import FederatedLoop

# Seconds of a round in each turn, by variant.
Seconds: TypeAlias = dict[str, list[float]]
ENGINES = ("auto", "sequential", "threads", "vectorised", "processes")
NEVER = 10**6


def cnn() -> nn.Module:
    """Return the network of 1.6 million parameters that pfl-research trains on CIFAR-10."""
    features = [Conv2d(3, 32, 3), nn.ReLU(), Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
    hidden = [nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU()]
    return SplitNet(nn.Sequential(*features, *hidden, nn.Dropout(0.5)), nn.Linear(128, 10))


@dataclass(frozen=True)
class Workload:
    """A federation of FedAvg with clients of equal size.

    Attributes:
        network: Makes the network for ten classes.
        shape: Shape of a sample.
        clients: Number of clients, N.
        samples: Of a client.
        cohort: Number of clients in a round.
        epochs: Local epochs.
        batch_size: Of a local step.
        rounds: In a turn.
        name: By which other simulators know the network.
        device: Where samples and networks are.
    """

    network: Callable[[], nn.Module]
    shape: tuple[int, ...]
    clients: int
    samples: int
    cohort: int
    epochs: int
    batch_size: int
    rounds: int = 1
    name: str = ""
    device: str = "cpu"

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """(N * samples, ...) inputs, client by client, and their classes."""
        rng, count = generator(0, "field"), self.clients * self.samples
        x = torch.rand(count, *self.shape, generator=rng)
        return x.to(self.device), torch.randint(10, (count,), generator=rng).to(self.device)

    @cached_property
    def data(self) -> TensorData:
        """The same samples as federated data, with a few for tests, without which none go."""
        x, y = (value.cpu() for value in self.tensors)
        who = torch.arange(self.clients)
        source = {"x": x, "y": y, "x_test": x[:10], "y_test": torch.arange(10)}
        source["client"] = torch.cat(
            [who.repeat_interleave(self.samples), torch.zeros_like(source["y_test"])]
        )
        made = TensorData(source, test_protocol="global", batch_size=self.batch_size)
        made.setup()
        return made

    @property
    def start(self) -> nn.Module:
        """The network at its initial values, which are those of all variants."""
        with scoped(1):
            return self.network().to(self.device)

    def cohort_of(self, number: int) -> list[int]:
        """Return the clients of a round, for loops that draw their own."""
        return subset(range(self.clients), self.cohort, generator(number, "cohort"))

    def client(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the samples of a client."""
        x, y = (value[number * self.samples :][: self.samples] for value in self.tensors)
        return x, y


_SHAPES = {"cnn": (3, 32, 32), "lenet": (1, 28, 28), "logistic": (1, 28, 28)}
_NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "cnn": cnn,
    "lenet": partial(LeNet5, 10, _SHAPES["lenet"]),
    "logistic": partial(MLP, 10, _SHAPES["logistic"], []),
}
# Clients, samples of each, the cohort, epochs, the size of a batch, and the rounds of a turn.
_SIZES = {
    "cnn": (1000, 50, 50, 1, 10, 1),
    "lenet": (100, 100, 100, 5, 50, 1),
    "logistic": (1000, 60, 10, 1, 10, 20),
}
WORKLOADS: Mapping[str, Workload] = {
    name: Workload(network, _SHAPES[name], *_SIZES[name], name)
    for name, network in _NETWORKS.items()
}


def by_hand(work: Workload, threads: int = 1) -> Iterator[dict[str, Tensor]]:
    """Yield the server's weights round after round; several threads have one op thread each."""
    idle: SimpleQueue[nn.Module] = SimpleQueue()
    for _ in range(threads):
        idle.put(work.start)
    server = {name: value.clone() for name, value in work.start.state_dict().items()}

    def trained(number: int, client: int) -> dict[str, Tensor]:
        net, rng = idle.get(), generator(number, "field", client)
        net.load_state_dict(server)
        for _ in range(work.epochs):
            train(net, work.client(client), work.batch_size, rng)
        state = {name: value.clone() for name, value in net.state_dict().items()}
        idle.put(net)
        return state

    with pool(threads) as workers:
        for number in range(NEVER):
            cohort = work.cohort_of(number)
            total = {name: torch.zeros_like(value) for name, value in server.items()}
            for state in workers.map(partial(trained, number), cohort):
                for name, value in state.items():
                    total[name].add_(value, alpha=1 / len(cohort))
            server = total
            yield server


def ours(work: Workload, engine: str) -> Iterator[float]:
    """Train with an engine of this project; yield the seconds that each round took."""
    loop = FederatedLoop(
        NEVER,
        UniformSampler(work.cohort / work.clients),
        VectorisedEngine(work.cohort) if engine == "vectorised" else engine,
        evaluate_every=NEVER,
        accelerator=work.device,
        progress=False,
    )
    module = FedAvg(work.start, optimizer=SGD, epochs=work.epochs)
    for run, result in loop.rounds_of(module, work.data):
        if result.round == 1 and multiprocessing.parent_process() is None:
            print(f"{engine}: {run.header['engine']}", file=sys.stderr)
        yield result.metrics["time/round"]


def timed(rounds: Iterator[object], device: str = "cpu") -> Iterator[float]:
    """Yield the seconds that each of some rounds took, with what it started on a device."""
    while True:
        begin = time.perf_counter()
        next(rounds)
        yield since(begin, torch.device(device))


def rival(name: str, work: Workload) -> Iterator[float]:
    """Return the seconds of each round of the function ``MODULE:FUNCTION``.

    Raises:
        ImportError: What it needs is not installed.
    """
    module, _, function = name.partition(":")
    rounds: Callable[[Workload], Iterator[object]]
    rounds = getattr(importlib.import_module(module), function)
    return timed(rounds(work), work.device)


def variants(work: Workload, given: argparse.Namespace) -> dict[str, Callable[[], Iterator[float]]]:
    """Return what starts each variant, by name; first the loops by hand."""
    every = torch.get_num_threads()
    found: dict[str, Callable[[], Iterator[float]]] = {
        f"by hand, {every} op threads": lambda: timed(by_hand(work), work.device)
    }
    if every > 1:
        found[f"by hand, {every} threads"] = lambda: timed(by_hand(work, every), work.device)
    found |= {f"`{engine}`": partial(ours, work, engine) for engine in given.engines}
    return found | {name: partial(rival, name, work) for name in given.rivals}


def begin(work: Workload, given: argparse.Namespace) -> dict[str, Iterator[float]]:
    """Start each variant; a rival that is not installed is left out, with a message."""
    found = {}
    for name, start in variants(work, given).items():
        try:
            found[name] = start()
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    return found


def turns(started: Mapping[str, Iterator[float]], work: Workload, count: int) -> Seconds:
    """Let variants take turns; return the seconds of a round in each turn, without a warm-up."""
    found: Seconds = {name: [] for name in started}
    for number in range(count + 1):
        for name, rounds in started.items():
            mean = statistics.mean(next(rounds) for _ in range(work.rounds))
            if number:
                found[name].append(mean)
    return found


def peak(work: Workload, given: argparse.Namespace, name: str) -> float:
    """Return the megabytes that a round of a variant needs besides samples and network."""
    _ = work.tensors, work.data
    rounds = variants(work, given)[name]()
    if work.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        next(rounds)
        return (torch.cuda.max_memory_allocated() - held) / 2**20
    reset_peak()
    (before,) = megabytes("VmRSS")
    next(rounds)
    # The system counts pages in batches, so that a peak can be a few of them below.
    return max(0.0, megabytes("VmHWM")[0] - before)


def rows(seconds: Seconds, peaks: Mapping[str, float]) -> list[str]:
    """Return the lines of a Markdown table; ratios are to the better loop by hand, by turn."""
    hand = [own for name, own in seconds.items() if name.startswith("by hand")]
    better = min(hand, key=statistics.median)
    lines = ["| | seconds a round | of the better loop by hand | MB more at the peak |"]
    lines += ["| --- | --- | --- | --- |"]
    for name, own in seconds.items():
        ratios = [mine / theirs for mine, theirs in zip(own, better, strict=True)]
        cells = [f"{_spread(own, 3)}", f"{_spread(ratios, 2)}"]
        cells.append(f"{peaks[name]:,.0f}" if name in peaks else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _spread(values: Sequence[float], digits: int) -> str:
    """Return the median and the range."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def main() -> None:
    """Measure and print a table for each workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--engines", nargs="+", choices=NAMES, default=list(ENGINES))
    parser.add_argument("--accelerator", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rivals", nargs="+", default=[], metavar="MODULE:FUNCTION")
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    for workload in given.workloads:
        work = replace(WORKLOADS[workload], device=given.accelerator)
        where, others = machine(), Others()
        seconds = turns(begin(work, given), work, given.turns)
        where["others' cores"] = f"{(taken := others.cores()):.2f}"
        # Processes of a server that has imported everything, and computed nothing.
        fresh = multiprocessing.get_context("forkserver")
        fresh.set_forkserver_preload(["benchmarks.round", "datamodules.tensors"])
        with ProcessPoolExecutor(1, fresh, max_tasks_per_child=1) as processes:
            # Rivals have a process of their own, whose memory is not counted.
            own = [name for name in seconds if name not in given.rivals]
            peaks = dict(
                zip(own, processes.map(partial(peak, replace(work), given), own), strict=True)
            )
        print(f"\n{workload}, {given.turns} turns; {where}\n")
        print("\n".join(rows(seconds, peaks)), flush=True)
        if taken > BUSY:
            print(
                f"\nother programs used {taken:.2f} cores meanwhile: repeat this on a quiet machine"
            )


if __name__ == "__main__":
    main()
