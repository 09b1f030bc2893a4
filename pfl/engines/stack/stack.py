"""Stacks of clients: their states have a common leading axis, and one module runs all of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.func import vmap

from pfl.core.data import ClientSplit
from pfl.core.failure import during
from pfl.core.state import call_with, copy_all, each, joined
from pfl.core.types import Batch, Inputs, Job, Pass, Phase, State
from pfl.engines.stack.draws import StackedDraws
from pfl.engines.stack.gather import Gather
from pfl.training.batching import read
from pfl.training.context import Context

ReturnT = TypeVar("ReturnT")
Rows: TypeAlias = slice | Tensor


class Stack:
    """The states of K clients; row k belongs to the k-th job.

    Rows are in descending order of the clients' training samples. A client with fewer samples has
    no more steps than one with more, so the clients that are still training are always the first
    rows; see :mod:`pfl.engines.stack.schedule` for the others.

    Attributes:
        context: The module that runs all clients, its data and device.
        jobs: K jobs, the client with the most training samples first.
        state: Each entry of the module's state dict, of shape (K, ...).
        draws: What the layers of all clients draw; ``None`` if they draw nothing.
    """

    def __init__(self, context: Context, jobs: Sequence[Job]) -> None:
        self.context = context
        self.jobs = jobs
        # The module itself is in the state of a client that has just been reset.
        context.load({})
        device = context.fabric.device
        self.state: State = {
            name: torch.stack([job.kept.get(name, value).to(device) for job in jobs])
            for name, value in context.template.items()
        }
        self._buffers = {name for name, _ in context.module.named_buffers()}
        self._places = torch.arange(len(jobs), device=device)
        self.draws = (
            StackedDraws(context.drawing, [job.seed_of("dropout") for job in jobs], device)
            if context.drawing
            else None
        )

    def samples_of(self, part: Phase | Pass) -> list[ClientSplit]:
        """Return the samples that a phase or pass goes through, for each client."""
        return [
            self.context.samples_of(part, job.info, self.own(row) if part.subset else {})
            for row, job in enumerate(self.jobs)
        ]

    def some(self, rows: Sequence[int]) -> Stack:
        """Return a stack of some of the clients, in the given order.

        If they are the first rows in their present order, the result shares its states with this
        stack. Otherwise it has copies, which :meth:`put_back` writes back.
        """
        return self if list(rows) == list(range(len(rows))) else self.copied(rows)

    def copied(self, rows: Sequence[int]) -> Stack:
        """Return a stack of some of the clients, in the given order, with copies of the states."""
        part = copy.copy(self)
        part.jobs = [self.jobs[row] for row in rows]
        index = torch.tensor(rows, device=self.context.fabric.device)
        part.state = {name: value[index] for name, value in self.state.items()}
        part._places = self._places[index]
        return part

    def put_back(self, rows: Mapping[int, int], part: Stack) -> None:
        """Write back states of a stack that :meth:`some` or :meth:`copied` returned.

        ``rows`` are rows of this stack, by those of the part.
        """
        if part is self:
            return
        # Row by row, because an index would have to be copied to the device.
        copy_all(
            [self.state[name][row] for name in part.state for row in rows.values()],
            [value[row] for value in part.state.values() for row in rows],
        )

    def own(self, row: int) -> State:
        """Return one client's current entries."""
        return {name: value[row] for name, value in self.state.items()}

    def write(self, rows: Rows | int, values: Mapping[str, Tensor]) -> None:
        """Set entries of some clients.

        Raises:
            MethodError: The module has no entry of a given name.
        """
        with torch.no_grad():
            for name, value in values.items():
                self.context.entry(self.state, name)[rows] = value

    def alone(self, row: int, call: Callable[..., ReturnT], *arguments: object) -> ReturnT:
        """Call a method of the module for one client, whose entries it may change in place."""
        with torch.no_grad(), during(f"client {self.jobs[row].info.client}"):
            return call_with(self.context.module, self.own(row), call, *arguments)

    def together(
        self,
        call: Callable[[Batch], ReturnT],
        rows: Rows,
        batch: Batch,
        leaves: Mapping[str, Tensor] | None = None,
        draws: Literal["error", "same"] = "error",
    ) -> ReturnT:
        """Call a function of a batch for several clients at once.

        Args:
            call: The function; it uses the module, whose buffers it may change in place. Each
                tensor of its result gets a leading axis of clients.
            rows: The clients.
            batch: Their batches; each tensor has a leading axis of clients.
            leaves: Tensors with gradients that replace entries of the state, for at least these
                rows.
            draws: Whether random numbers in the call are an error or the same for all clients (as
                from a generator that the call seeds). What layers draw differs.
        """
        state = {
            name: _rows((leaves or {}).get(name, value), rows) for name, value in self.state.items()
        }

        noise = dict(batch.noise or {})
        index = batch.index is not None

        def one(x: Inputs, y: Tensor, *others: Tensor) -> ReturnT:
            values = iter(others)
            entries = {name: next(values) for name in state}
            draws = {name: next(values) for name in noise}
            places = next(values) if index else None
            single = Batch(x, y, next(values, None), draws or None, places)
            return call_with(self.context.module, entries, call, single)

        scope = nullcontext() if self.draws is None else self.draws.of(self._places[rows])
        randomness = draws if self.draws is None else "different"
        # As separate arguments, because vmap traverses dictionaries in Python at every call.
        others = [*state.values(), *noise.values()]
        if batch.index is not None:
            others.append(batch.index)
        if batch.weight is not None:
            others.append(batch.weight)
        with scope:
            result: ReturnT = vmap(one, randomness=randomness)(batch.x, batch.y, *others)
        if isinstance(rows, Tensor):
            # These rows are copies, so changes that the call made must be written back.
            for name in self._buffers & state.keys():
                self.state[name][rows] = state[name].detach()
        return result


def _rows(value: Tensor, rows: Rows) -> Tensor:
    # A full slice is skipped, because its gradient would be a copy.
    return value if isinstance(rows, slice) and rows.stop == len(value) else value[rows]


@dataclass(frozen=True)
class Group:
    """Clients that the module computes together, and their batch.

    Attributes:
        rows: Rows of the clients in the stack.
        sizes: Number of real samples of each client, by its row; the rest is padding. Finished
            clients have none; their rows come last.
        batch: Their batches, with a leading axis of clients.
    """

    rows: Rows
    sizes: dict[int, int]
    batch: Batch


def groups(sizes: Sequence[int], batch: Batch, apart: bool) -> Iterator[Group]:
    """Divide the first clients of a stack into groups that can be computed together.

    Args:
        sizes: Number of real samples of each client.
        batch: Their batches, with a leading axis of clients.
        apart: Whether the samples of a batch influence each other (``Context.couples_samples``).
            Then only clients with equally many samples form a group, and nothing is padded.
    """
    if not apart or min(sizes) == max(sizes):
        yield Group(slice(0, len(batch.y)), dict(enumerate(sizes)), batch)
        return
    for size in sorted(set(sizes) - {0}, reverse=True):
        members = [row for row, real in enumerate(sizes) if real == size]
        rows = torch.tensor(members)
        noise = {name: draws[rows] for name, draws in (batch.noise or {}).items()}
        x = each(itemgetter((rows, slice(size))), batch.x)
        index = None if batch.index is None else batch.index[rows, :size]
        part = Batch(x, batch.y[rows, :size], None, noise, index)
        yield Group(rows, dict.fromkeys(members, size), part)


def walk(splits: Sequence[ClientSplit], size: int, apart: bool) -> Iterator[Group]:
    """Yield batches of all clients of a stack in stored order, ``size`` samples at a time.

    Args:
        splits: One split for each client; may be empty.
        size: Number of samples in a batch.
        apart: As in :func:`groups`.
    """
    gather = Gather.over(splits)
    for start in range(0, max(map(len, splits), default=0), size):
        sizes = [max(0, min(size, len(split) - start)) for split in splits]
        while not sizes[-1]:
            sizes.pop()
        if gather is None:
            batch = pad(
                [_batch_of(split, start, n) for split, n in zip(splits, sizes, strict=False)]
            )
        else:
            batch = gather.chunk(start, sizes)
            batch = batch._replace(weight=weights(sizes, batch.x, batch.y))
        yield from groups(sizes, batch, apart)


def _batch_of(split: ClientSplit, start: int, size: int) -> Batch | None:
    return read(split, torch.arange(start, start + size)) if size else None


def pad(batches: Sequence[Batch | None]) -> Batch:
    """Stack the batches of K clients, padded to the largest by repeating samples.

    Args:
        batches: One for each client, ``None`` for a client without samples; at least one has some.

    Returns:
        ``x``: (K, B, ...), ``y``: (K, B), ``weight``: (K, B) or ``None`` if nothing is padded.
    """
    sizes = [0 if batch is None else len(batch.y) for batch in batches]
    size = max(sizes)
    model = next(batch for batch in batches if batch is not None)
    padded = list[Batch]()
    for batch in batches:
        # A client without samples borrows some; its results are ignored.
        real = model if batch is None else batch
        if len(real.y) < size:
            rows = torch.arange(size, device=real.y.device) % len(real.y)
            index = None if real.index is None else real.index[rows]
            real = Batch(each(itemgetter(rows), real.x), real.y[rows], index=index)
        padded.append(real)
    x, y = joined(torch.stack, [one.x for one in padded]), torch.stack([one.y for one in padded])
    places = [one.index for one in padded if one.index is not None]
    return Batch(x, y, weights(sizes, x, y), index=torch.stack(places) if places else None)


def weights(sizes: Sequence[int], x: Inputs, y: Tensor) -> Tensor | None:
    """Return (K, B) ones for real samples and zeros for padding; ``None`` if nothing is padded.

    Args:
        sizes: K numbers of real samples.
        x: (K, B, ...) inputs, one tensor or several named ones.
        y: (K, B, ...) targets.
    """
    if min(sizes) == y.shape[1]:
        return None
    dtype = torch.get_default_dtype()
    if isinstance(x, Tensor) and x.is_floating_point():
        dtype = x.dtype
    real = torch.tensor(sizes, device=y.device)[:, None]
    return (torch.arange(y.shape[1], device=y.device) < real).to(dtype)
