"""Bare PyTorch loops that do only the local work of a round."""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

import torch
import torch.nn.functional as F
from torch import nn

from lightning_modules.nets.blocks import Conv2d
from pfl.core.data import FederatedData
from pfl.core.seeds import generator
from pfl.core.types import Split

SGD = partial(torch.optim.SGD, lr=0.005)


@dataclass
class Turn:
    """One round of one variant, in seconds.

    Attributes:
        train: Local training.
        overhead: Everything except training and tests: sampling, broadcast, aggregation, records.
        evaluate: Tests of all clients' models (for FedAvg, all are the global one).
    """

    train: float
    overhead: float = 0.0
    evaluate: float = 0.0

    @property
    def whole(self) -> float:
        """Seconds of the whole round."""
        return self.train + self.overhead + self.evaluate


def bare(
    net: nn.Module, data: FederatedData, device: torch.device, workers: int = 1
) -> Iterator[Turn]:
    """Do the same local work with nothing around it; batches are indexed from float tensors.

    Several workers are Python threads, each with one op thread and its own network.
    """
    own_train, own_test = (
        [_whole(data, c, n) for c in range(data.num_clients)] for n in ("train", "test")
    )
    nets = [copy.deepcopy(net).to(device) for _ in range(workers)]
    start = {name: value.clone() for name, value in nets[0].state_dict().items()}
    idle: SimpleQueue[nn.Module] = SimpleQueue()
    for own in nets:
        idle.put(own)

    def work(number: int, client: int) -> None:
        own = idle.get()
        own.load_state_dict(start)
        train(own, own_train[client], data.batch_size, generator(number, "bare", client))
        _ = {name: value.clone() for name, value in own.state_dict().items()}
        idle.put(own)

    def tested(client: int) -> float:
        own = idle.get()
        x, y = own_test[client]
        with torch.inference_mode():
            found = float((own.eval()(x).argmax(-1) == y).float().mean()) if len(y) else 0.0
        idle.put(own)
        return found

    order = sorted(range(data.num_clients), key=lambda c: -len(own_train[c][1]))
    with pool(workers) as started:
        for number in range(sys.maxsize):
            begin = time.perf_counter()
            list(started.map(partial(work, number), order))
            trained = since(begin, device)
            list(started.map(tested, order))
            yield Turn(trained, evaluate=since(begin, device) - trained)


def _whole(data: FederatedData, client: int, name: Split) -> tuple[torch.Tensor, torch.Tensor]:
    split = data.split(client, name)
    batch = split.batch(torch.arange(len(split)))
    assert isinstance(batch.x, torch.Tensor)
    return batch.x, batch.y


def train(
    net: nn.Module,
    samples: tuple[torch.Tensor, torch.Tensor],
    batch_size: int,
    rng: torch.Generator,
) -> None:
    """Train one epoch on one client's samples."""
    x, y = samples
    net.train()
    optimizer = SGD(net.parameters())
    for index in torch.split(torch.randperm(len(y), generator=rng).to(y.device), batch_size):
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(net(x[index]), y[index]))
        optimizer.step()


@contextmanager
def pool(workers: int) -> Iterator[Executor | type[_Here]]:
    """Yield a pool of threads with one op thread each; for one worker, the calling thread."""
    if workers == 1:
        yield _Here
        return
    before, everyone = torch.get_num_threads(), threading.Barrier(workers + 1)

    def begin() -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)
        everyone.wait()

    with ThreadPoolExecutor(workers, initializer=begin) as pool:
        for _ in range(workers):
            pool.submit(int)
        everyone.wait()
        torch.set_num_threads(before)
        yield pool


class _Here:
    """The calling thread, with the interface of a pool."""

    map = map


def plain(net: nn.Module) -> nn.Module:
    """Replace our convolutions in a network by PyTorch's own."""
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


def since(begin: float, device: torch.device) -> float:
    """Return the seconds since a time, after what was started on the device has ended."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin
