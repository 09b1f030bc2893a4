"""A check before a run that keeps single samples private: does the plan treat them separately?

A step's gradient must be the mean of what each sample would give alone, or the clip of single
gradients bounds nothing. Instead of trusting a declaration, the objectives are computed on a few
samples, together and one by one, and every loss term is compared, at several states of the client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from operator import itemgetter

import torch
from lightning.fabric.plugins.precision.amp import MixedPrecision
from torch import Tensor

from pfl.core.data import ClientSplit, FederatedData
from pfl.core.data_view import DataView
from pfl.core.devices import widest
from pfl.core.failure import error_line
from pfl.core.seeds import generator
from pfl.core.state import clone, copy_all, each, tensors
from pfl.core.types import Batch, Job, Pass, Phase, Totals
from pfl.extras.privacy.sample_level import PrivateSamples
from pfl.training.batching import map_inputs
from pfl.training.client_round import begin
from pfl.training.context import Context, doubled
from pfl.training.declaration import MethodError
from pfl.training.phases import prepared, run_objective

SAMPLES = 6
"""Samples of the client that is looked at."""

TOLERANCE = 1e-7
"""Largest difference, in units of the largest number, that is taken for rounding."""


def unsupported_reason(context: Context, job: Job) -> str | None:
    """Return why a method cannot keep single samples private; ``None`` if it can.

    The context stays unchanged. The job is of the first round, for a client with training data.
    """
    name = type(context.module).__name__
    if not context.module.vectorizable:
        return f"{name} is not vectorizable, which gradients of single samples need"
    if context.scaler is not None:
        return "16-mixed scales losses, which single gradients cannot be; use bf16-mixed"
    if widest(device := context.fabric.device) is not torch.float64:
        return f"{device.type} has no float64, in which objectives are checked; use the CPU"
    for part in context.plan:
        if (why := _declared(context, part)) is not None:
            return f"{name}, {part.label}: {why}"
    job = replace(job, kept={})
    return _measured(context.in_double(), job) or _lacking(context, job)


def _declared(context: Context, part: Phase | Pass) -> str | None:
    """Return what a part of a plan declares that reads data without noise."""
    if isinstance(part, Pass):
        return "it takes statistics of the samples, without noise" if part.walks else None
    if part.split == "public":
        return "it trains on public data, whose steps are not accounted for"
    if context.couples_samples(part.evals):
        return "batch norm mixes the samples of a batch; use group norm (norm: group)"
    if part.share < 1 or part.until is not None:
        return "it chooses samples or its length by rules that are not accounted for"
    if part.varies:
        return "its number of steps differs from client to client, and is not accounted for"
    return None


def _measured(context: Context, job: Job) -> str | None:
    """Return what a client's round does that no bound on single gradients covers."""
    module, split = context.module, context.data.split(job.info.client, "train")
    name = type(module).__name__
    context.load({})
    try:
        with torch.no_grad():
            begin(module, job)
    except (ValueError, TypeError, AttributeError) as error:
        return f"{name} needs what a private client does not send, such as class counts: {error}"
    batch = _batch(context.data, split)
    for part in context.plan:
        if isinstance(part, Pass):
            context.write(part.then(Totals({}, {}, 0, 0)))
        elif (why := _coupled(context, part, batch)) is not None:
            return f"{name}, {part.label}: {why}"
    return None


def _lacking(context: Context, job: Job) -> str | None:
    """Return what torch lacks for gradients of single samples, in this precision."""
    precision = context.fabric.strategy.precision
    copied = context.replica(context.fabric)
    with copied.fabric.autocast():
        dtype = torch.get_default_dtype()  # of the samples, as data are read in this scope
    module, split = copied.module, copied.data.split(job.info.client, "train")
    level = PrivateSamples(clip=1.0, sigma=0.0)
    double = _batch(copied.data, split)
    batch = Batch(each(partial(_floats, dtype), double.x), _floats(dtype, double.y))
    copied.load({})
    with torch.no_grad(), copied.isolated(job):
        begin(module, job)
        for part in copied.plan:
            if isinstance(part, Pass):
                copied.write(part.then(Totals({}, {}, 0, 0)))
                continue
            shapes, place = part.noise.items(), batch.y.device
            noise = {n: torch.zeros(s, dtype=dtype, device=place) for n, s in shapes}
            with prepared(copied, part):
                steps = level.gradients(copied, part, [job], 1)
                try:
                    with copied.fabric.autocast():
                        steps.sums(map_inputs(part, batch, held=False)._replace(noise=noise))
                except RuntimeError as error:
                    instead = (
                        "; 32-true may have them" if isinstance(precision, MixedPrecision) else ""
                    )
                    return (
                        "torch has no gradients of single samples of this network in "
                        f"{precision.precision}{instead} ({error_line(error)})"
                    )
    return None


def _floats(dtype: torch.dtype, value: Tensor) -> Tensor:
    return value.to(dtype) if value.is_floating_point() else value


def _batch(data: FederatedData, split: ClientSplit) -> Batch:
    """Return samples from all over a client's data; random ones if the data lie elsewhere."""
    count = min(SAMPLES, len(split))
    if isinstance(data, DataView) and data.stands_for:
        rng, task = generator(0, "separable", "samples"), data.task
        y = torch.randint(2, (count, data.outputs // task.outputs(1)), generator=rng).double()
        if data.num_classes is not None:
            y = torch.randint(data.num_classes, (count,), generator=rng)

        def drawn(value: Tensor) -> Tensor:
            if not value.is_floating_point():
                return value
            return torch.randn(value.shape, generator=rng, dtype=torch.float64).to(value.device)

        x = each(drawn, data.blank(count))
        return Batch(x, y.to(tensors(x)[0].device))
    batch = split.batch(torch.linspace(0, len(split) - 1, count).long())
    return Batch(each(doubled, batch.x), doubled(batch.y))


def _coupled(context: Context, phase: Phase, batch: Batch) -> str | None:
    """Return what shows that a phase's objective is no mean over samples."""
    rng = generator(0, "separable", phase.name)
    draws = {n: torch.randn(s, generator=rng, dtype=torch.float64) for n, s in phase.noise.items()}
    noise = {name: value.to(batch.y.device) for name, value in draws.items()}
    context.set_mode(None)
    batch = map_inputs(phase, batch, held=False)
    places = [slice(number, number + 1) for number in range(len(batch.y))]
    singles = [Batch(each(itemgetter(i), batch.x), batch.y[i], noise=noise) for i in places]
    try:
        with prepared(context, phase) as trained:
            for _ in _states(trained, rng):
                whole = _vectors(phase, trained, batch._replace(noise=noise))
                alone = [_vectors(phase, trained, one) for one in singles]
                for term, vector in whole.items():
                    mean = torch.stack([vectors[term] for vectors in alone]).mean(0)
                    if vector.isfinite().all() and not _same(vector, mean):
                        return (
                            f"its term {term!r} is no mean over the samples of a batch, but "
                            "couples or adds them up"
                        )
    except MethodError as error:
        return str(error)
    except (TypeError, ValueError) as error:
        return f"it needs what private samples do not have, such as their index: {error}"
    return None


def _vectors(phase: Phase, trained: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    """Return each term of a batch with its gradient, as one vector.

    Raises:
        MethodError: The objective returns more than terms.
    """
    outcome = run_objective(phase, batch)
    if outcome.entries or outcome.rows:
        first, *others = [*outcome.entries, *outcome.rows]
        more = f" and {len(others)} more" if others else ""
        raise MethodError(f"it keeps {first!r}{more}, which samples change without noise")
    vectors = {}
    for name, term in outcome.terms.items():
        parts = [term.detach().reshape(1)]
        if term.requires_grad:
            parameters = [*trained.values()]
            slopes = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
            parts += [slope.flatten() for slope in slopes if slope is not None]
        vectors[name] = torch.cat(parts)
    return vectors


def _same(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= TOLERANCE * one.abs().max().clamp(min=TOLERANCE))


def _states(trained: Mapping[str, Tensor], rng: torch.Generator) -> Iterator[None]:
    """Give the trained parameters their values, others nearby, and small ones.

    A term can be zero at some of them, as a hinge is.
    """

    def nearby(value: Tensor) -> Tensor:
        factors = torch.rand(value.shape, generator=rng, dtype=torch.float64) + 0.5
        return value * factors.to(value.device)

    start = [*clone(trained).values()]
    yield
    for change in (nearby, lambda value: 0.01 * value):
        copy_all([*trained.values()], [change(value) for value in start])
        yield
    copy_all([*trained.values()], start)
