"""What the clients of a run may report: names of numbers, how much they trained, and what beside.

The names are those of one step of each phase, played on placeholders before the first round.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pfl.core.client import ClientModule
from pfl.core.data import ClientSplit
from pfl.core.data_view import DataView, Subset
from pfl.core.ranges import MOST
from pfl.core.seeds import generator, scoped
from pfl.core.state import clone, each, equal, form_of, matches, tensors
from pfl.core.types import Batch, ClientInfo, Inputs, Job, Pass, Phase, State
from pfl.training import client_round
from pfl.training.amounts import Amount, of_phase
from pfl.training.context import Context
from pfl.training.contexts import Contexts
from pfl.training.gradients import carried
from pfl.training.phases import Tally, run_phase

# Samples of a played step: batch norms need two.
_SAMPLES = 4
# Names of a phase, or of logs, that could not be played.
_UNPLAYED = 64


class ReportError(ValueError):
    """A client reports what its round cannot have given."""


@dataclass
class Reported:
    """The reports that clients of a run may send.

    Args:
        contexts: The method with its data.
    """

    contexts: Contexts
    _terms: set[str] = field(init=False, default_factory=set)
    _logged: set[str] = field(init=False, default_factory=set)
    # Phases that need more than placeholders, whose terms can have any name.
    _open: set[str] = field(init=False, default_factory=set)
    # For each part of a plan, the entries that no part before it changes.
    _unchanged: dict[str, set[str]] = field(init=False, default_factory=dict)
    # Type and number of axes of what travels beside the weights and is no entry of the module.
    _forms: dict[str, tuple[torch.dtype, int]] = field(init=False, default_factory=dict)
    _largest: float = field(init=False)

    def __post_init__(self) -> None:
        """Play a step of each phase of each network."""
        contexts = self.contexts
        # What travels is the same in all networks.
        self.first = contexts.first
        double = any(value.dtype == torch.float64 for value in self.first.template.values())
        self._largest = MOST if double else torch.finfo(torch.float32).max
        split = _placeholders(contexts.first)
        with warnings.catch_warnings(), scoped(0):
            warnings.simplefilter("ignore")
            for one in contexts.each():
                self._play(one, split)

    def _play(self, context: Context, split: _Placeholders | None) -> None:
        phases = [part.name for part in context.plan if isinstance(part, Phase)]
        self._open |= {*phases}
        if split is None:
            return
        count = context.data.num_classes
        counts = None if count is None else torch.bincount(split.targets, minlength=count)
        job = Job(ClientInfo(0, len(split), counts, 1, 1), {}, None, 0)
        played = _copied(context, split)
        played.load({})
        before = clone(played.entries)
        unchanged = {*before}
        with played.isolated(job):
            for part in played.plan:
                self._unchanged[part.name] = self._unchanged.get(part.name, unchanged) & unchanged
                tally = Tally()
                try:
                    some = _some(part, played.entries, job.info, split)
                    if isinstance(part, Pass):
                        client_round.run_pass(played, job, part, some, tally)
                    else:
                        once = replace(part, epochs=1, steps=None, until=None, share=1.0)
                        run_phase(played, job, once, some, tally)
                except Exception:
                    # What the placeholders are not good for is no mistake of the method.
                    unchanged = set()
                    continue
                if tally.steps:
                    self._open.discard(part.name)
                self._terms |= {*tally.terms.sums}
                self._logged |= {*tally.logged.sums}
                now = played.entries
                unchanged = {name for name in unchanged if equal(before[name], now[name])}
            with suppress(Exception), torch.no_grad():
                for name, value in played.module.upload(job.info).extra.items():
                    if name not in before:
                        self._forms[name] = value.dtype, value.dim()

    def check_beside(self, extra: State) -> None:
        """Refuse what is sent beside the weights in another form than the module sends it.

        Raises:
            ReportError: It has another type, or another number of axes.
        """
        for name, value in extra.items():
            right = self._forms.get(name)
            if right is not None and (value.dtype, value.dim()) != right:
                kind = str(right[0]).removeprefix("torch.")
                raise ReportError(
                    f"it sends {name!r} as {form_of(value)} instead of {kind}, axes: {right[1]}"
                )

    def check(
        self,
        job: Job,
        steps: int,
        samples: int,
        train: Mapping[str, float],
        logged: Mapping[str, float],
    ) -> None:
        """Refuse numbers that a job cannot have given.

        Args:
            job: The job.
            steps: Optimiser steps that the client reports.
            samples: Samples that it reports to have seen.
            train: Its mean losses.
            logged: Its means of what steps logged.

        Raises:
            ReportError: Its plan has other numbers of steps or samples, or a name is not that of a
                loss or a log.
        """
        complaints = itertools.chain(
            _of_nothing(job, steps, samples, [*train, *logged]),
            self._of_amounts(job, steps, samples),
            self._of_numbers([*train.items(), *logged.items()]),
            self._of_losses([*train]),
            self._of_logs([*logged]),
        )
        for what in complaints:
            raise ReportError(f"it reports {what}")

    def _of_amounts(self, job: Job, steps: int, samples: int) -> Iterator[str]:
        """Yield what is wrong with the amount of training."""
        possible = [self._amount(job, kept) for kept in self._kept(job)]
        if not any(one.allows(steps, samples) for one in possible):
            nearest = min(possible, key=lambda p: abs(p.steps - steps) + abs(p.samples - samples))
            told = zip(("steps", "samples"), (steps, samples), nearest[:2], strict=True)
            for what, value, right in told:
                if value > right or (nearest.exact and value < right):
                    yield f"{value:,} {what}, but its plan has {right:,}"

    def _of_numbers(self, numbers: Sequence[tuple[str, float]]) -> Iterator[str]:
        """Yield which numbers no step gives."""
        for name, number in numbers:
            if self._largest < abs(number) < math.inf:
                yield f"{number:g} as {name[:60]!r}, which no step gives"

    def _of_losses(self, names: Sequence[str]) -> Iterator[str]:
        """Yield which losses no phase has."""
        unknown = [name for name in names if name not in self._terms]
        unplayed = [name for name in unknown if name.partition("/")[0] in self._open]
        yield from _too_many("loss", unplayed)
        for name in unknown:
            if name not in unplayed:
                yield f"the loss {name[:60]!r}, which no phase has"

    def _of_logs(self, names: Sequence[str]) -> Iterator[str]:
        """Yield which numbers no step logs."""
        module = self.first.module
        unknown = [n for n in names if n not in self._logged and not matches(n, module.logs)]
        if unknown and not self._open:
            yield (
                f"{unknown[0][:60]!r}, which the first step does not log: what steps log under "
                f"some conditions only is named in {type(module).__name__}.logs"
            )
        yield from _too_many("log", unknown)

    def _amount(self, job: Job, kept: State) -> Amount:
        """Return how long a client trains with some values of what it keeps."""
        amount = Amount()
        context, known = self.contexts.declared(job.info.client), self._received(job) | kept
        info = job.info
        for step in job.steps:
            info = step.training_info(info)
        for part in context.plan:
            if isinstance(part, Phase):
                unchanged = self._unchanged.get(part.name, set())
                entries = {name: value for name, value in known.items() if name in unchanged}
                amount = amount.plus(of_phase(context, part, replace(job, info=info), entries))
        return amount

    def _received(self, job: Job) -> State:
        """Return the entries that a client has just received."""
        sent = job.broadcast
        if sent is None or type(self.first.module).receive is not ClientModule.receive:
            return {}
        return {**sent.shared, **sent.extra}

    def _kept(self, job: Job) -> Iterator[State]:
        """Yield the values of what a client keeps that may decide how long it trains."""
        context = self.contexts.declared(job.info.client)
        later = context.module.kept_later
        first = {name: context.template[name] for name in later}
        if job.ticket is None:
            yield first | {name: value for name, value in job.kept.items() if name in later}
            return
        for values in itertools.product(*later.values()):
            pairs = zip(first.items(), values, strict=True)
            yield {name: torch.full_like(value, number) for (name, value), number in pairs}


def _of_nothing(job: Job, steps: int, samples: int, names: Sequence[str]) -> Iterator[str]:
    """Yield what contradicts that no step was taken, or some were."""
    if carried(job.steps) is None and (steps == 0) != (samples == 0):
        yield f"{steps:,} steps with {samples:,} samples"
    if steps == 0 and names:
        yield "losses or logs without a step"


def _too_many(what: str, names: Sequence[str]) -> Iterator[str]:
    """Complain about more names than the phases that could not be played may have."""
    if len(names) > _UNPLAYED:
        yield f"{len(names):,} names of a {what}, starting with {names[0][:60]!r}"


def _placeholders(context: Context) -> _Placeholders | None:
    """Return made-up samples in the form of a client's; ``None`` if the data do not say it."""
    data = context.data
    example, blank = data.task.example(data.outputs), getattr(data, "blank", None)
    if example is None or blank is None:
        return None
    y = example[1][:_SAMPLES]
    rng = generator(0, "reported")

    def drawn(value: Tensor) -> Tensor:
        if not value.is_floating_point():
            return value
        return torch.randn(value.shape, generator=rng, dtype=torch.float64).to(value)

    try:
        return _Placeholders(each(drawn, blank(len(y))), y)
    except ValueError:
        return None


def _some(
    part: Phase | Pass, entries: State, info: ClientInfo, split: _Placeholders
) -> ClientSplit:
    """Return the placeholders that a part of a plan sees: as many as its subset has at most."""
    if part.subset is None:
        return split
    positions = part.subset(entries, info)[: len(split)]
    return Subset(split, positions.clamp(max=len(split) - 1))


def _copied(context: Context, split: _Placeholders) -> Context:
    """Return a copy of a context in which all samples are placeholders."""
    view = DataView.of(context.data)
    made = replace(view, split=lambda client, name: split)
    return context.replica(data=made)


class _Placeholders:
    """Made-up samples.

    Args:
        x: (n, ...) inputs, on the device.
        targets: (n, ...) targets.
    """

    augmented = False

    def __init__(self, x: Inputs, targets: Tensor) -> None:
        self._x, self.targets = x, targets

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, positions: Tensor, rng: torch.Generator | None = None) -> Batch:
        """Return the samples at some positions."""
        x = each(lambda value: value[positions.to(value.device)], self._x)
        return Batch(x, self.targets[positions.cpu()].to(tensors(x)[0].device))
