"""What a client's test costs beyond its forward pass: loading the model, batches, scores, records.

    taskset -c 0 python -m benchmarks.tests

FedPer tests one personalised model a client. In each turn every variant trains a few clients, tests
all of them, and then only the forward passes of the same network on the same test samples are
computed. Printed are processor milliseconds a client with one op thread, medians over turns with
their quartiles; processor time does not count what other programs take, but their use of the caches
shows. Data are synthetic; every client has as many samples as the others.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from benchmarks.bare import SGD
from benchmarks.machine import Others, machine
from benchmarks.round import BUSY, NETS
from datamodules import IID, Synthetic
from lightning_modules.fedper import FedPer
from pfl.core.data import FederatedData
from pfl.core.seeds import scoped
from pfl.core.types import Result
from pfl.engines.named import NAMES, EngineName
from pfl.federation.run import Callback, Run
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop


class Mark(Callback):
    """Remembers when the last client of a round was trained."""

    def on_result(self, run: Run, result: Result) -> None:
        """Remember the processor time."""
        self.time = time.process_time()


def tests(engine: EngineName, net: nn.Module, data: FederatedData) -> Iterator[tuple[float, float]]:
    """Yield milliseconds a client: of its test, and of its forward pass alone."""
    splits = [data.split(client, "test") for client in range(data.num_clients)]
    inputs = [split.batch(torch.arange(len(split))).x for split in splits]
    model = copy.deepcopy(net).eval()
    mark = Mark()
    loop = FederatedLoop(
        10**6,
        UniformSampler(4 / len(splits)),
        engine=engine,
        accelerator="cpu",
        callbacks=[mark],
        progress=False,
    )
    for _ in loop.rounds_of(FedPer(net, optimizer=SGD), data):
        start = time.process_time()
        test = start - mark.time
        with torch.inference_mode():
            for x in inputs:
                model(x)
        forward = time.process_time() - start
        yield 1e3 * test / len(splits), 1e3 * forward / len(splits)


def main() -> None:
    """Print a line for each network and engine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nets", nargs="+", choices=NETS, default=["mlp64", "lenet5"])
    parser.add_argument("--engines", nargs="+", choices=NAMES, default=["sequential", "auto"])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--samples", type=int, default=20, help="test samples of a client")
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    others = Others()
    for name in given.nets:
        make, channels, size = NETS[name]
        data = Synthetic(
            samples=2 * given.clients * given.samples,
            classes=10,
            channels=channels,
            size=size,
            num_clients=given.clients,
            partition=IID(),
            test_fraction=0.5,
        )
        with scoped(1):
            net = make()
        variants = {engine: tests(engine, copy.deepcopy(net), data) for engine in given.engines}
        found: dict[str, list[tuple[float, float]]] = {engine: [] for engine in variants}
        for turn in range(given.repeats + 1):
            for engine, variant in variants.items():
                times = next(variant)
                if turn:
                    found[engine].append(times)
        for engine, pairs in found.items():
            test, forward = zip(*pairs, strict=True)
            beyond = [t - f for t, f in pairs]
            columns = {"test": test, "forward": forward, "beyond": beyond}
            line = (f"{label} {_spread(values)}" for label, values in columns.items())
            print(f"{name:>10} {engine:>12}  " + "  ".join(line))
    if (taken := others.cores()) > BUSY:
        print(f"other programs used {taken:.2f} cores meanwhile: too many to conclude anything")


def _spread(values: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.3f} ({low:.3f}-{high:.3f})"


if __name__ == "__main__":
    main()
