"""A check before a run: stacked clients must give the same numbers as one client at a time.

A method may be declared vectorizable by mistake: for example, it may ignore the weight of padded
samples, or mix the samples of a batch. So two clients run two short rounds both ways, in float64 on
copies; and as a stack in the run's precision, in which torch may lack an operation that a stack
needs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from lightning.fabric.plugins.precision.amp import MixedPrecision
from torch import Tensor

from pfl.core.data import ClientSplit, FederatedData, members
from pfl.core.data_view import DataView
from pfl.core.failure import error_line
from pfl.core.state import each, flattened
from pfl.core.types import Batch, Count, Job, Phase, Plan, Result, State
from pfl.engines.stack import round as stack_round
from pfl.training import client_round
from pfl.training.context import Context, doubled
from pfl.training.server_round import Coordinator, uploads_of

# Padding repeats samples; one of four repeated changes every mean.
SAMPLES = (8, 7)
BATCH = 4
STEPS = 2
TOLERANCE = 1e-9
# Entries below this are only rounding errors, such as those of a bias before a batch norm.
SMALLEST = 1e-4

# The results of some jobs, and the answers of the models that are tested after them.
Played: TypeAlias = tuple[Sequence[Result], Sequence[client_round.Answers]]
Play: TypeAlias = Callable[[Context, Sequence[Job]], Played]


def disagreement(context: Context) -> str | None:
    """Return why a run must not stack its clients; ``None`` if both ways give the same numbers.

    The answer depends only on the method, its initial values and the data. The context and all
    random streams stay unchanged.
    """
    clients = _clients(context.data)
    name = type(context.module).__name__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            alone = dict(_played(_copy(context, clients), _alone))
        except Exception as error:
            return f"{name} could not be checked on two small clients: {error_line(error)}"
        try:
            stacked = dict(_played(_copy(context, clients), _together))
        except Exception as error:
            return f"{name} fails when stacked: {error_line(error)}"
        if (apart := _largest_difference(alone, stacked)) is not None:
            return f"{name} gives different numbers when stacked: {apart}"
        precision = context.fabric.strategy.precision
        if isinstance(precision, MixedPrecision):
            try:
                dict(_played(_copy(context, clients, double=False), _together))
            except Exception as error:
                return f"{name} fails when stacked in {precision.precision}: {error_line(error)}"
    return None


def _excerpt(
    data: FederatedData, clients: Sequence[tuple[int, int]], double: bool
) -> FederatedData:
    """Return data of two clients: the first samples of real ones, for training and tests alike."""
    splits = [_Some(data.split(one, "train"), count, double) for one, count in clients]
    public = data.public_split()
    shown = None if public is None else _Some(public, min(BATCH, len(public)), double)
    return replace(
        DataView.of(data),
        num_clients=len(splits),
        apart={},
        metrics=(),
        batch_size=BATCH,
        eval_batch_size=BATCH,
        drop_last=False,
        split=lambda client, name: splits[client],
        public_split=lambda: shown,
    )


class _Some:
    """The first samples of a split, perhaps in float64."""

    def __init__(self, split: ClientSplit, count: int, double: bool) -> None:
        self.targets = split.targets[:count]
        self.augmented = split.augmented
        self._split, self._double = split, double

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, positions: Tensor, rng: torch.Generator | None = None) -> Batch:
        """Return the samples at ``positions``."""
        batch = self._split.batch(positions, rng)
        if not self._double:
            return batch
        return Batch(each(doubled, batch.x), doubled(batch.y))


def _clients(data: FederatedData) -> list[tuple[int, int]]:
    """Return the two largest clients and the number of samples of each, which should differ."""
    held = {client: len(data.split(client, "train")) for client in members(data)}
    first, *others = sorted(held, key=lambda client: -held[client])
    second = others[0] if others and held[others[0]] else first
    one, other = min(SAMPLES[0], held[first]), min(SAMPLES[1], held[second])
    if one == other > 1:
        other -= 1
    return [(first, one), (second, other)]


def _copy(context: Context, clients: Sequence[tuple[int, int]], double: bool = True) -> Context:
    """Return a copy of a context with a plan of few steps, in float64 or the run's precision."""
    excerpt = _excerpt(context.data, clients, double)
    small = context.in_double(excerpt) if double else context.replica(context.fabric, excerpt)
    small.plan, small.adapt = _shortened(small.plan), _shortened(small.adapt)
    return small


def _shortened(plan: Plan) -> Plan:
    """Return a plan with at most :data:`STEPS` steps in each phase."""

    def most(limit: int, count: Count) -> Count:
        if callable(count):
            return lambda entries, info: min(limit, int(count(entries, info)))
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


def _played(context: Context, play: Play) -> Iterator[tuple[str, Tensor]]:
    """Run two rounds; yield every resulting tensor with a descriptive name."""
    coordinator = Coordinator(context, rounds=2, seed=0)
    state = coordinator.start()
    kept: dict[int, State] = {}
    for number in (1, 2):
        jobs = [
            coordinator.job(state, client, number, kept.get(client, {}), ("test",))
            for client in (0, 1)
        ]
        results, answers = play(context, jobs)
        for result, answer in zip(results, answers, strict=True):
            upload = result.upload
            compared = {
                "upload": {} if upload is None else {**upload.shared, **upload.extra},
                "kept": result.kept,
                "tested": {"logits": answer["test"][0]},
                "logged": {name: torch.tensor(value) for name, value in result.logged.items()},
            }
            for (part, name), value in flattened(compared).items():
                yield f"{part} {name} (client {result.client}, round {number})", value
        kept = {result.client: result.kept for result in results}
        state = coordinator.aggregate(state, uploads_of(results))


def _alone(context: Context, jobs: Sequence[Job]) -> Played:
    results = [client_round.train(context, job) for job in jobs]
    return results, [client_round.answers(context, job) for job in jobs]


def _together(context: Context, jobs: Sequence[Job]) -> Played:
    results = stack_round.train(context, jobs)
    return results, stack_round.answers(stack_round.tested(context, jobs))


def _largest_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> str | None:
    """Describe the entry that differs most, if it differs by more than rounding."""
    if missing := sorted(one.keys() ^ other.keys()):
        return f"only one of the two ways gives the {missing[0]}"
    worst, where = TOLERANCE, None
    for name, value in one.items():
        a, b = value.double(), other[name].double()
        if a.shape != b.shape:
            return f"the {name} is {tuple(b.shape)} instead of {tuple(a.shape)}"
        if not torch.equal(a.isnan(), b.isnan()):
            return f"the {name} is NaN in only one of the two ways"
        if a.numel() == 0:
            continue
        a, b = a.nan_to_num(), b.nan_to_num()
        apart = float((a - b).abs().max()) / max(float(a.abs().max()), SMALLEST)
        if apart > worst:
            worst, where = apart, name
    return None if where is None else f"the {where} differs by {worst:.1e} of its largest value"
