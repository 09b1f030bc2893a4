"""Training samples a second of a FedAvg round, engine by engine, beside a bare PyTorch loop.

``python -m benchmarks.round`` measures LeNet-5 and FedAS's network at batch 16; ``--help`` shows
the settings. The bare loop, to which ratios are given, has PyTorch's own layers; "our net" is the
same loop with the network of this project. Variants take turns in one process, round by round, so
that what else the machine does falls on all of them alike; what to look at are the medians and the
ratios within a turn. Data are made up in the shape of CIFAR-10: clients of 400 training samples on
average, Dirichlet(0.1). With ``--memory`` each variant also runs one turn in a process of its own,
to note what it needs beyond the data and the network (Ray's workers are other processes and do not
count).
"""

from __future__ import annotations

import argparse
import copy
import csv
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path

import lightning
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.memory import megabytes, reset_peak
from datamodules import Dirichlet, Synthetic
from lightning_modules.fedavg import FedAvg
from lightning_modules.nets import CNN2, CNN3, CNN5, MLP, LeNet5, ResNet18
from lightning_modules.nets.blocks import Conv2d
from pfl.core.seeds import generator, scoped
from pfl.core.types import FederatedData
from pfl.engines.named import ENGINES, EngineName
from pfl.loop import FederatedLoop

NETS: Mapping[str, Callable[[], nn.Module]] = {
    "mlp": lambda: MLP(10, (3, 32, 32), 200),
    "lenet5": lambda: LeNet5(10),
    "cnn2": lambda: CNN2(10),
    "cnn3": lambda: CNN3(10),
    "cnn5": lambda: CNN5(10),
    "resnet18": lambda: ResNet18(10),
}
DEFAULT = ("sequential", "threads", "auto")
SGD = partial(torch.optim.SGD, lr=0.005)


@dataclass
class Turn:
    """One round of one variant, in seconds.

    Attributes:
        train: Local training.
        overhead: All but training and tests: sampling, broadcast, aggregation, records.
        evaluate: Tests of all personalised models and of the global model.
    """

    train: float
    overhead: float = 0.0
    evaluate: float = 0.0


def bare(net: nn.Module, data: FederatedData, device: torch.device) -> Iterator[Turn]:
    """Do the same local work with nothing around it: batches are indexed out of floats."""
    splits = [data.split(client, "train") for client in range(data.num_clients)]
    batches = [split.batch(torch.arange(len(split))) for split in splits]
    net = net.to(device)
    start = {name: value.clone() for name, value in net.state_dict().items()}
    for number in range(sys.maxsize):
        begin = time.perf_counter()
        for client, (x, y, *_) in enumerate(batches):
            net.load_state_dict(start)
            net.train()
            optimizer = SGD(net.parameters())
            order = torch.randperm(len(y), generator=generator(number, "bare", client))
            for index in torch.split(order.to(device), data.batch_size):
                optimizer.zero_grad()
                torch.autograd.backward(F.cross_entropy(net(x[index]), y[index]))
                optimizer.step()
            _ = {name: value.clone() for name, value in net.state_dict().items()}
        yield Turn(_since(begin, device))


def plain(net: nn.Module) -> nn.Module:
    """Return a network with PyTorch's own convolutions in place of ours."""
    for parent in net.modules():
        for name, child in parent.named_children():
            if isinstance(child, Conv2d):
                layer = nn.Conv2d(
                    child.in_channels,
                    child.out_channels,
                    child.kernel_size,  # type: ignore[arg-type]
                    child.stride,  # type: ignore[arg-type]
                    child.padding,  # type: ignore[arg-type]
                    bias=child.bias is not None,
                )
                layer.load_state_dict(child.state_dict())
                setattr(parent, name, layer)
    return net


def federation(
    engine: EngineName, net: nn.Module, data: FederatedData, accelerator: str
) -> Iterator[Turn]:
    """Run rounds of FedAvg."""
    loop = FederatedLoop(10**6, engine=engine, accelerator=accelerator, progress=False)
    for _, result in loop.rounds_of(FedAvg(net, optimizer=SGD), data):
        row = result.metrics
        train, evaluate = row["time/train"], row["time/evaluate"]
        yield Turn(train, row["time/round"] - train - evaluate, evaluate)


def _since(begin: float, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def variants(
    engines: list[EngineName], make: Callable[[], nn.Module], data: FederatedData, accelerator: str
) -> dict[tuple[str, int], Iterator[Turn]]:
    """Return the variants that take turns, by name and number of op threads."""
    every = torch.get_num_threads()
    device = torch.device("cuda" if accelerator == "cuda" else "cpu")
    found = {("bare loop", every): bare(plain(make()), data, device)}
    if every > 1 and accelerator == "cpu":
        found["bare loop", 1] = bare(plain(make()), data, device)
    found["bare, our net", every] = bare(make(), data, device)
    for name in engines:
        # The others have op threads of their own, whatever the caller's.
        counts = {every, 1} if name == "sequential" and accelerator == "cpu" else {every}
        for count in sorted(counts):
            turns = federation(name, make(), data, accelerator)
            found[name, count] = turns
    return found


def measure(
    found: Mapping[tuple[str, int], Iterator[Turn]], repeats: int
) -> dict[tuple[str, int], list[Turn]]:
    """Let all variants take turns; the first turn of each is a warm-up."""
    every, turns = torch.get_num_threads(), {key: list[Turn]() for key in found}
    for number in range(repeats + 1):
        for key, variant in found.items():
            torch.set_num_threads(key[1])
            turn = next(variant)
            if number:
                turns[key].append(turn)
    torch.set_num_threads(every)
    return turns


def table(turns: Mapping[tuple[str, int], list[Turn]], samples: int) -> list[dict[str, object]]:
    """One row a variant."""
    (reference, *_) = turns.values()
    rows: list[dict[str, object]] = []
    for (name, op_threads), own in turns.items():
        train = [turn.train for turn in own]
        ratios = [one.train / t for one, t in zip(reference, train, strict=True)]
        overhead = [turn.overhead / (turn.overhead + turn.train) for turn in own]
        rows.append(
            {
                "variant": name,
                "op threads": op_threads,
                "samples/s": round(samples / statistics.median(train)),
                "of bare loop": f"{statistics.median(ratios):.2f}",
                "s/round": f"{statistics.median(train):.2f}",
                "overhead %": f"{100 * statistics.median(overhead):.1f}",
                "tests, s": f"{statistics.median(turn.evaluate for turn in own):.2f}",
            }
        )
    return rows


def machine() -> dict[str, object]:
    """Describe the machine and the versions that the numbers were taken with."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "date": date.today().isoformat(),
        "cores": os.cpu_count(),
        "load": f"{load:.1f}",
        "processor": _processor(),
        "gpu": gpu,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": lightning.__version__,
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(": ", 1)[1] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def prepare(name: str, given: argparse.Namespace) -> dict[tuple[str, int], Iterator[Turn]]:
    """Return the variants of one network, and their data."""
    data = Synthetic(
        samples=given.clients * given.samples * 5 // 4,
        classes=10,
        channels=3,
        size=32,
        num_clients=given.clients,
        partition=Dirichlet(given.alpha, min_samples=2),
        batch_size=given.batch_size,
        test_fraction=0.2,
    )
    with scoped(1):
        net = NETS[name]()
    given.total = sum(len(data.split(c, "train")) for c in range(data.num_clients))
    return variants(given.engines, partial(copy.deepcopy, net), data, given.accelerator)


def peak(name: str, given: argparse.Namespace, key: tuple[str, int]) -> float:
    """Megabytes that one turn of one variant needs at most, beyond the data and the network."""
    variant = prepare(name, given)[key]
    torch.set_num_threads(key[1])
    reset_peak()
    (before,) = megabytes("VmRSS")
    next(variant)
    return megabytes("VmHWM")[0] - before


def peaks(name: str, given: argparse.Namespace, keys: list[tuple[str, int]]) -> list[float]:
    """Of each variant, in a process of its own."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, fresh, max_tasks_per_child=1) as pool:
        return list(pool.map(partial(peak, name, given), keys))


def main() -> None:
    """Measure and print, and add to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=["lenet5", "cnn2"])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(DEFAULT))
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--samples", type=int, default=400, help="training samples a client")
    parser.add_argument("--alpha", type=float, default=0.1, help="of the Dirichlet partition")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--accelerator", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--memory", action="store_true", help="note peak memory as well (Linux)")
    parser.add_argument("--out", type=Path, help="CSV file that rows are added to")
    given = parser.parse_args()
    for name in given.nets:
        where = machine()
        found = prepare(name, given)
        rows = table(measure(found, given.repeats), given.total)
        if given.memory:
            for row, megabytes in zip(rows, peaks(name, given, list(found)), strict=True):
                row["peak MB more"] = round(megabytes)
        setting = {"net": name, "batch": given.batch_size, "clients": given.clients}
        print(f"\n{setting}, {given.total} samples a round; {where}")
        lines: list[list[object]] = [[*rows[0]], *([*row.values()] for row in rows)]
        for line in lines:
            print("".join(f"{cell!s:>15}" for cell in line))
        if given.out is not None:
            _add(given.out, [where | setting | row for row in rows])


def _add(path: Path, rows: list[dict[str, object]]) -> None:
    new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        if new:
            writer.writeheader()
        writer.writerows(rows)


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """The docstring as it is written, and defaults."""


if __name__ == "__main__":
    main()
