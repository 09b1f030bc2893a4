"""One stacked step: what it calls, and what a step by hand and a CUDA graph of it take.

``python -m benchmarks.step`` prints, for a network with and without dropout, the operations of one
round of stacked clients as torch's profiler sees them, and the time of a step beside the same step
by hand: ``torch.func`` on stacked parameters and one batch, without anything around it. On a GPU
(``--accelerator cuda``) that step is also captured in a CUDA graph and replayed, which is the least
that it can take; what lies between the three says where a faster engine would have to save.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

from benchmarks.bare import SGD
from benchmarks.machine import machine
from benchmarks.round import NETS
from datamodules import IID, Synthetic
from lightning_modules.fedavg import FedAvg
from pfl.core.seeds import scoped
from pfl.loop import FederatedLoop

BATCH, STEPS = 10, 20


def network(name: str, dropout: float) -> nn.Module:
    """Return a network whose features are dropped with a probability."""
    with scoped(0):
        net = NETS[name][0]()
    if dropout:
        net.backbone = nn.Sequential(cast(nn.Module, net.backbone), nn.Dropout(dropout))
    return net


def rounds(name: str, dropout: float, clients: int, accelerator: str) -> Iterator[Any]:
    """Yield after each round of clients that take :data:`STEPS` steps side by side."""
    _, channels, size = NETS[name]
    data = Synthetic(
        samples=clients * BATCH * STEPS * 2,
        classes=10,
        channels=channels,
        size=size,
        num_clients=clients,
        partition=IID(),
        batch_size=BATCH,
        test_fraction=0.5,
    )
    loop = FederatedLoop(
        10**6,
        engine="vectorised",
        accelerator=accelerator,
        evaluate_every=10**6,
        progress=False,
    )
    return loop.rounds_of(FedAvg(network(name, dropout), optimizer=SGD), data)


def by_hand(name: str, dropout: float, clients: int, device: str) -> Callable[[], None]:
    """Return a function that takes one step with all clients' parameters."""
    net = network(name, dropout).to(device).train()
    _, channels, size = NETS[name]
    values = {n: p.detach().expand(clients, *p.shape).clone() for n, p in net.named_parameters()}
    x = torch.randn(clients, BATCH, channels, size, size, device=device)
    y = torch.randint(10, (clients, BATCH), device=device)

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(net, values, (x,)), y)

    slopes = vmap(grad(loss), randomness="different")

    def step() -> None:
        for entry, slope in slopes(values, x, y).items():
            values[entry].sub_(slope, alpha=0.01)

    return step


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """Return a function that replays a step from a CUDA graph."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def seconds(call: Callable[[], object], device: str, times: int = 1) -> float:
    """Return the least time of a call, of five."""
    found = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(times):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append((time.perf_counter() - begin) / times)
    return min(found)


def main(words: Sequence[str] | None = None) -> None:
    """Print the profiles, and the times of a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accelerator", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--net", default="lenet5", choices=NETS)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rows", type=int, default=12, help="operations that are shown")
    given = parser.parse_args(words)
    device, kinds = given.accelerator, [ProfilerActivity.CPU]
    kinds += [ProfilerActivity.CUDA] if device == "cuda" else []
    print(f"{given.net}, {given.clients} clients, batches of {BATCH}; {machine()}")
    for dropout in (0.0, 0.5):
        turns = rounds(given.net, dropout, given.clients, device)
        next(turns), next(turns)  # What is made once is made.
        with profile(activities=kinds) as seen:
            next(turns)
        by = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
        print(f"\ndropout {dropout}: a round of {STEPS} steps")
        print(seen.key_averages().table(sort_by=by, row_limit=given.rows))
        ways = {"a step of a round": (seconds(partial(next, turns), device) / STEPS)}
        step = by_hand(given.net, dropout, given.clients, device)
        step()
        ways["a step by hand"] = seconds(step, device, STEPS)
        if device == "cuda":
            ways["a step by hand, from a CUDA graph"] = seconds(captured(step), device, STEPS)
        for way, found in ways.items():
            print(f"{way}: {found * 1e3:.3f} ms")


if __name__ == "__main__":
    main()
