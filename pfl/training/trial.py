"""Two short rounds of two clients, and how far two ways of running them are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from pfl.core.state import as_real, flattened
from pfl.core.types import Job, Result, State
from pfl.training import client_round
from pfl.training.context import Context, copied, fabric_like
from pfl.training.server_round import Coordinator, uploads_of

TOLERANCE = 1e-9
# Entries below this are only numerical noise, such as those of a bias before a batch norm.
SMALLEST = 1e-4

# The results of some jobs, and the answers of the models that are tested after them.
Played: TypeAlias = tuple[Sequence[Result], Sequence[client_round.Answers]]
Play: TypeAlias = Callable[[Context, Sequence[Job]], Played]


def played(context: Context, play: Play) -> Iterator[tuple[str, Tensor]]:
    """Run two rounds of clients 0 and 1; yield every resulting tensor with a descriptive name."""
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
                "tested": _tested(answer.get("test")),
                "logged": {name: torch.tensor(value) for name, value in result.logged.items()},
            }
            for (part, name), value in flattened(compared).items():
                yield f"{part} {name} (client {result.client}, round {number})", value
        kept = {result.client: result.kept for result in results}
        state = coordinator.aggregated(state, uploads_of(results))


def one_by_one(context: Context, jobs: Sequence[Job]) -> Played:
    """Run jobs one after another, and test their models."""
    results = [client_round.train(context, job) for job in jobs]
    return results, [client_round.answers(context, job) for job in jobs]


def of_pairs(context: Context) -> Context:
    """Return a copy of a context whose complex entries are pairs along a last axis of two.

    The network's code still sees complex numbers; the method, its server and optimisers see pairs.
    """
    fabric = fabric_like(context.fabric)
    module = copied(context.module, context.fabric, fabric)
    # A parameter under two names stays one.
    pairs: dict[int, Tensor] = {}
    for child in module.modules():
        tables: tuple[dict[str, Any], ...] = (child._parameters, child._buffers)
        names = set[str]()
        for table in tables:
            for name, value in table.items():
                if value is None or not value.is_complex():
                    continue
                names.add(name)
                pair = as_real(value.detach()).clone()
                if isinstance(value, nn.Parameter):
                    pair = nn.Parameter(pair, value.requires_grad)
                table[name] = pairs.setdefault(id(value), pair)
        if names and child is not module:
            child.__class__ = _seeing_complex(type(child), names)
    return Context(
        module,
        context.data,
        fabric,
        context.gradient_clip_val,
        template={name: as_real(value) for name, value in context.template.items()},
        trainable=context.trainable,
    )


def _seeing_complex(kind: type[nn.Module], names: set[str]) -> type[nn.Module]:
    """Return a class whose code sees pairs of these names as complex numbers."""

    def seen(name: str) -> property:
        def get(self: nn.Module) -> Tensor:
            own: Any = self._parameters if name in self._parameters else self._buffers
            return torch.view_as_complex(own[name])

        return property(get)

    def assign(self: nn.Module, name: str, value: Any) -> None:  # noqa: ANN401
        own = name in names and isinstance(value, Tensor)
        kind.__setattr__(self, name, as_real(value) if own else value)

    return type(kind.__name__, (kind,), {"__setattr__": assign, **{n: seen(n) for n in names}})


def largest_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> str | None:
    """Describe the entry that differs most, if it differs by more than the tolerance."""
    if missing := sorted(one.keys() ^ other.keys()):
        return f"only one of the two ways gives the {missing[0]}"
    worst, where = TOLERANCE, None
    for name, value in one.items():
        a, b = as_real(value).double(), as_real(other[name]).double()
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


def _tested(answer: object) -> State:
    """Return the outputs of a test, or the scores that a module took itself."""
    if isinstance(answer, Mapping):
        numbers = cast(Mapping[str, float], answer)
        return {name: torch.tensor(value) for name, value in numbers.items()}
    return {} if answer is None else {"logits": cast(Sequence[Tensor], answer)[0]}
