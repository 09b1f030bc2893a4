"""What checksums and safe writing cost: our files of tensors beside plain torch's.

    taskset -c 0 python -m benchmarks.checkpoints     # with two cores: taskset -c 0,1

Each measurement has a process of its own, as a run reads its checkpoint once: a process that reads
again and again has its memory already. Variants take turns; ratios are those of medians.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch

from pfl.engines.cores import usable
from pfl.federation import checkpoint

_LAYERS = 10
_PROCESSES = get_context("fork")


def main() -> None:
    """Print seconds and ratios for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[4, 40, 400])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 20, 100])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--folder", help="where the files are written")
    asked = parser.parse_args()
    print(f"{usable()} cores; seconds of torch.load and torch.save, ours as a multiple of them")
    print("MB,tensors,clock,load,read,mapped,save,synced,write")
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        for megabytes in asked.megabytes:
            for clients in asked.clients:
                compare(Path(folder), megabytes, clients, asked.repeats)


def compare(folder: Path, megabytes: int, clients: int, repeats: int) -> None:
    """Print a line for files of this size, in which so many clients keep ten tensors each."""
    size = megabytes * 10**6 // 4 // clients // _LAYERS
    content = {
        client: {f"layer.{layer}": torch.randn(size) for layer in range(_LAYERS)}
        for client in range(clients)
    }
    file = folder / "file.ckpt"
    checkpoint.save(file, {"kept": content})
    torch.save(content, folder / "torchs.ckpt")
    variants: dict[str, Callable[[], object]] = {
        "load": partial(torch.load, folder / "torchs.ckpt", weights_only=True),
        "read": partial(_read, file),
        "mapped": partial(checkpoint.load, file),
        "save": partial(torch.save, content, folder / "plain.ckpt"),
        "save, synced": partial(_synced, content, folder / "plain.ckpt"),
        "write": partial(checkpoint.save, folder / "own.ckpt", {"kept": content}),
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, action in variants.items():
            taken[name].append(_measured(action))
    for which, clock in enumerate(("wall", "processor")):
        seconds = {name: median(pair[which] for pair in pairs) for name, pairs in taken.items()}
        load, save = seconds["load"], seconds["save"]
        reads = [f"{seconds[name] / load:.2f}" for name in ("read", "mapped")]
        writes = [f"{seconds[name] / save:.2f}" for name in ("save, synced", "write")]
        row = [f"{load:.4f}", *reads, f"{save:.4f}", *writes]
        print(megabytes, clients * _LAYERS, clock, *row, sep=",", flush=True)


def _read(path: Path) -> object:
    return checkpoint.move(checkpoint.load(path), "cpu", copy=True)


def _synced(content: object, path: Path) -> None:
    with path.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())


def _measured(action: Callable[[], object]) -> tuple[float, float]:
    """Return wall and processor seconds of an action in a process of its own."""
    here, there = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_measure, args=(action, there))
    process.start()
    there.close()
    taken: tuple[float, float] = here.recv()
    process.join()
    return taken


def _measure(action: Callable[[], object], pipe: Connection) -> None:
    wall, processor = time.perf_counter(), time.process_time()
    kept = action()
    pipe.send((time.perf_counter() - wall, time.process_time() - processor))
    del kept


if __name__ == "__main__":
    main()
