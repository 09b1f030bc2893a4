"""A few samples of two clients and a plan of few steps, which try a run before it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from pfl.core.data import ClientSplit, FederatedData, item, members
from pfl.core.data_view import DataView, Subset
from pfl.core.state import averages
from pfl.core.types import NO_CLIENT, Batch, Count, DataSplit, Phase, Plan
from pfl.training.context import Context, doubled

# Padding repeats samples; one of four repeated changes every mean.
SAMPLES = (8, 7)
BATCH = 4
STEPS = 2


def excerpt(context: Context, double: bool = False) -> Context:
    """Return a copy of a context with few samples of two clients and a plan of few steps.

    Args:
        context: The context.
        double: Whether the copy is in float64 instead of the run's precision.
    """
    data = _excerpt(context.data, _clients(context.data), double)
    small = context.in_double(data) if double else context.replica(context.fabric, data)
    small.plan, small.adapt = _shortened(small.plan), _shortened(small.adapt)
    return small


@contextmanager
def scaled(context: Context, factor: float) -> Iterator[None]:
    """Multiply what training starts from and all real inputs by a factor, in this scope."""

    def times(value: Tensor) -> Tensor:
        return value * factor if averages(value) else value

    data, template = context.data, context.template
    context.data = replace(
        DataView.of(data), split=lambda client, name: _Changed(data.split(client, name), times)
    )
    context.template = {n: times(v) if n in context.trainable else v for n, v in template.items()}
    try:
        yield
    finally:
        context.data, context.template = data, template


def _excerpt(
    data: FederatedData, clients: Sequence[tuple[int, int]], double: bool
) -> FederatedData:
    """Return data of two clients: the first samples of real ones, for training and tests alike."""

    def some(client: int, name: DataSplit, count: int) -> ClientSplit:
        whole = data.split(client, name)
        part = Subset(whole, torch.arange(min(count, len(whole))))
        return _Changed(part, doubled) if double else part

    splits = [some(client, "train", count) for client, count in clients]

    def split(client: int, name: DataSplit) -> ClientSplit:
        return some(NO_CLIENT, name, BATCH) if name == "public" else splits[client]

    return replace(
        DataView.of(data),
        num_clients=len(splits),
        apart={},
        metrics=(),
        batch_size=BATCH,
        eval_batch_size=BATCH,
        drop_last=False,
        split=split,
    )


class _Changed:
    """A split of which a function changes each tensor of a batch.

    Args:
        split: The split.
        change: The function.
    """

    def __init__(self, split: ClientSplit, change: Callable[[Tensor], Tensor]) -> None:
        self.targets, self.augmented = split.targets, split.augmented
        self._split, self._change = split, change

    def __len__(self) -> int:
        return len(self._split)

    def batch(self, positions: Tensor, rng: torch.Generator | None = None) -> Batch:
        """Return the samples at ``positions``."""
        batch = self._split.batch(positions, rng)
        return batch._replace(
            x=tree_map_only(Tensor, self._change, batch.x), y=self._change(batch.y)
        )

    def item(self, positions: Tensor, rng: torch.Generator | None = None) -> Any:  # noqa: ANN401
        """Return the samples at ``positions`` in the form of the split."""
        return tree_map_only(Tensor, self._change, item(self._split, positions, rng))


def _clients(data: FederatedData) -> list[tuple[int, int]]:
    """Return the two largest clients and the number of samples of each, which should differ."""
    held = {client: len(data.split(client, "train")) for client in members(data)}
    first, *others = sorted(held, key=lambda client: -held[client])
    second = others[0] if others and held[others[0]] else first
    one, other = min(SAMPLES[0], held[first]), min(SAMPLES[1], held[second])
    if one == other > 1:
        other -= 1
    return [(first, one), (second, other)]


def _shortened(plan: Plan) -> Plan:
    """Return a plan with at most :data:`STEPS` steps in each phase."""

    def most(limit: int, count: Count) -> Count:
        if callable(count):
            return lambda entries, info: min(limit, count(entries, info))
        return min(limit, count)

    return [
        replace(
            part,
            # An epoch of the excerpt has two batches at most.
            epochs=most(STEPS if part.full_batch else 1, part.epochs),
            steps=None if part.steps is None else most(STEPS, part.steps),
        )
        if isinstance(part, Phase)
        else part
        for part in plan
    ]
