"""Rounds of FedAvg with each engine, next to bare PyTorch loops: whole rounds, and training alone.

``python -m benchmarks.round`` measures a small network, LeNet-5 and FedAS's network at batch 16;
``--help`` shows the settings. Ratios are relative to the bare loop, which uses PyTorch's own layers
and tests one model on every client. "our net" is the same loop with this project's network, whose
images are in channels-last layout. "limit" is that loop in as many Python threads as there are
workers: the best that a round can cost.

Variants take turns in one process, round by round, so that other load on the machine affects all of
them equally. Look at the medians of the ratios within a turn, and at their spread (half of them lie
within it). The load of other programs is printed, with a warning if it was too high to conclude
anything. Data are synthetic, in the shape of the network's inputs: clients with 400 training
samples on average, Dirichlet(0.1). With ``--memory`` each variant also runs one turn in its own
process, to measure what it needs in addition to the data and the network (Ray's workers are other
processes and do not count).
"""

from __future__ import annotations

import argparse
import copy
import csv
import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch
from torch import nn

from benchmarks.bare import SGD, Turn, bare, plain
from benchmarks.machine import Others, machine
from benchmarks.memory import megabytes, reset_peak
from datamodules import Dirichlet, Synthetic
from lightning_modules.fedavg import FedAvg
from lightning_modules.nets import CNN2, CNN3, CNN5, MLP, LeNet5, ResNet18
from pfl.core.data import FederatedData
from pfl.core.seeds import scoped
from pfl.engines.named import NAMES, EngineName
from pfl.loop import FederatedLoop

# Networks, with the channels and size of their images.
NETS: Mapping[str, tuple[Callable[[], nn.Module], int, int]] = {
    "mlp16": (lambda: MLP(10, (1, 8, 8), 16), 1, 8),
    "mlp64": (lambda: MLP(10, (1, 8, 8), 64), 1, 8),
    "mlp100": (lambda: MLP(10, (1, 28, 28), 100), 1, 28),
    "mlp200": (lambda: MLP(10, (3, 32, 32), 200), 3, 32),
    "lenet5_28": (lambda: LeNet5(10, (1, 28, 28)), 1, 28),
    "lenet5": (lambda: LeNet5(10), 3, 32),
    "cnn2": (lambda: CNN2(10), 3, 32),
    "cnn3": (lambda: CNN3(10), 3, 32),
    "cnn5": (lambda: CNN5(10), 3, 32),
    "resnet18": (lambda: ResNet18(10), 3, 32),
}
# Cores that other programs may use before ratios become meaningless.
BUSY = 0.25
DEFAULT = ("sequential", "threads", "auto")


def federation(
    engine: EngineName, net: nn.Module, data: FederatedData, accelerator: str
) -> Iterator[Turn]:
    """Run rounds of FedAvg."""
    workers = torch.get_num_threads() if engine in ("auto", "threads") else None
    loop = FederatedLoop(
        10**6, engine=engine, workers=workers, accelerator=accelerator, progress=False
    )
    for _, result in loop.rounds_of(FedAvg(net, optimizer=SGD), data):
        row = result.metrics
        train, evaluate = row["time/train"], row["time/evaluate"]
        yield Turn(train, row["time/round"] - train - evaluate, evaluate)


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
    if every > 1 and accelerator == "cpu":
        found["limit", every] = bare(make(), data, device, workers=every)
    for name in engines:
        # The other engines set their own op threads, whatever the caller's.
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
    """Return one row per variant; ratios are the bare loop's times over the variant's, by turn."""
    reference = next(iter(turns.values()))
    limit = next((own for (name, _), own in turns.items() if name == "limit"), None)
    rows: list[dict[str, object]] = []
    for (name, op_threads), own in turns.items():
        train = [turn.train for turn in own]
        row: dict[str, object] = {
            "variant": name,
            "op threads": op_threads,
            "samples/s": round(samples / statistics.median(train)),
            "train, s": f"{statistics.median(train):.3f}",
            "train": _ratio([turn.train for turn in reference], train),
            "round, s": f"{statistics.median(turn.whole for turn in own):.3f}",
            "round": _ratio([turn.whole for turn in reference], [turn.whole for turn in own]),
            "tests, s": f"{statistics.median(turn.evaluate for turn in own):.3f}",
        }
        if limit is not None:
            row["of limit"] = _ratio([t.whole for t in own], [t.whole for t in limit])
        rows.append(row)
    return rows


def _ratio(ours: list[float], theirs: list[float]) -> str:
    """Return the median ratio within a turn, and the quartiles."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    if len(ratios) < 2:
        return f"{ratios[0]:.2f}"
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def prepare(name: str, given: argparse.Namespace) -> dict[tuple[str, int], Iterator[Turn]]:
    """Return the variants of one network, and their data."""
    make, channels, size = NETS[name]
    data = Synthetic(
        samples=given.clients * given.samples * 5 // 4,
        classes=10,
        channels=channels,
        size=size,
        num_clients=given.clients,
        partition=Dirichlet(given.alpha, min_samples=2),
        batch_size=given.batch_size,
        test_fraction=0.2,
    )
    with scoped(1):
        net = make()
    given.total = sum(len(data.split(c, "train")) for c in range(data.num_clients))
    return variants(given.engines, partial(copy.deepcopy, net), data, given.accelerator)


def peak(name: str, given: argparse.Namespace, key: tuple[str, int]) -> float:
    """Return the peak memory of one turn, in megabytes, in addition to data and network."""
    variant = prepare(name, given)[key]
    torch.set_num_threads(key[1])
    reset_peak()
    (before,) = megabytes("VmRSS")
    next(variant)
    return megabytes("VmHWM")[0] - before


def peaks(name: str, given: argparse.Namespace, keys: list[tuple[str, int]]) -> list[float]:
    """Return the peak memory of each variant, each in its own process."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, fresh, max_tasks_per_child=1) as pool:
        return list(pool.map(partial(peak, name, given), keys))


def main() -> None:
    """Measure, print the results, and add them to a file if one is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=["mlp64", "lenet5", "cnn2"])
    parser.add_argument("--engines", nargs="+", choices=NAMES, default=list(DEFAULT))
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--samples", type=int, default=400, help="training samples per client")
    parser.add_argument(
        "--alpha", type=float, default=0.1, help="concentration of the Dirichlet partition"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--accelerator", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--memory", action="store_true", help="also measure peak memory (Linux)")
    parser.add_argument("--out", type=Path, help="CSV file to which rows are added")
    given = parser.parse_args()
    for name in given.nets:
        where = machine()
        found = prepare(name, given)
        others = Others()
        rows = table(measure(found, given.repeats), given.total)
        where["others' cores"] = f"{others.cores():.2f}"
        if given.memory:
            for row, megabytes in zip(rows, peaks(name, given, list(found)), strict=True):
                row["peak MB more"] = round(megabytes)
        setting = {"net": name, "batch": given.batch_size, "clients": given.clients}
        print(f"\n{setting}, {given.total} samples a round; {where}")
        lines: list[list[object]] = [[*rows[0]], *([*row.values()] for row in rows)]
        for line in lines:
            print("".join(f"{cell!s:>20}" for cell in line))
        if (taken := others.cores()) > BUSY:
            print(
                f"other programs used {taken:.2f} cores meanwhile: too many to conclude anything; "
                "repeat this on a quiet machine"
            )
        if given.out is not None:
            _add(given.out, [where | setting | row for row in rows])


def _add(path: Path, rows: list[dict[str, object]]) -> None:
    """Add rows to a CSV file.

    Raises:
        SystemExit: The file has other columns.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        file.seek(0)
        if (header := next(csv.reader(file), None)) is None:
            writer.writeheader()
        elif header != [*rows[0]]:
            raise SystemExit(
                f"--out {path}: its columns are {', '.join(header)}, those of these rows "
                f"{', '.join(rows[0])}: give another file"
            )
        writer.writerows(rows)


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows the docstring as it is written, and defaults."""


if __name__ == "__main__":
    main()
