"""Check that a plan treats samples separately, before a run keeps them private.

A step's gradient must be the mean of the samples' own gradients; otherwise clipping these bounds
nothing. Instead of trusting a declaration, the check computes the objectives on a few samples,
together and one by one, and compares every loss term at several states of the client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import itemgetter

import torch
from lightning.fabric.plugins.precision.amp import MixedPrecision
from torch import Tensor

from pfl.core.batch_norms import without
from pfl.core.data import ClientSplit
from pfl.core.data_view import stand_in
from pfl.core.devices import widest
from pfl.core.failure import error_line
from pfl.core.judging import TaskError, accepted, usual_targets
from pfl.core.layer_draws import undropped
from pfl.core.seeds import generator
from pfl.core.state import clone, copy_all, each, tensors
from pfl.core.types import Batch, Drawn, Job, Pass, Phase, Totals
from pfl.extras.privacy.sample_level import PrivateSamples
from pfl.training.batching import map_inputs
from pfl.training.client_round import begin
from pfl.training.context import Context, doubled
from pfl.training.declaration import MethodError
from pfl.training.phases import prepared, rule_of, run_objective

SAMPLES = 6
"""Number of the client's samples that are compared."""

TOLERANCE = 1e-7
"""Largest difference, relative to the largest number, that counts as rounding."""


def unsupported_reason(context: Context, job: Job) -> str | None:
    """Return why a method cannot keep single samples private, or ``None`` if it can.

    The context stays unchanged. The job is one of the first round with training data.
    """
    for net in context.own_nets.values():
        return (
            f"the loss of {type(net).__name__} is its own training_step, of a whole batch: take "
            "level: user, or give its layers as an nn.Module"
        )
    name, task = type(context.module).__name__, context.data.task
    if not task.separable:
        return f"the loss of the task {task} is of a whole batch: no sample has one of its own"
    if not context.module.vectorizable:
        return f"{name} is not vectorizable, as gradients of single samples require"
    if context.scaler is not None:
        return "16-mixed cannot scale the losses of single samples; use bf16-mixed"
    if widest(device := context.fabric.device) is not torch.float64:
        return f"{device.type} has no float64, which the check of objectives needs; use the CPU"
    for entry in sorted(context.trainable):
        if context.template[entry].is_complex():
            return f"{entry!r} has complex numbers, and the noise is for real ones"
    for part in context.plan:
        if (why := _declared(context, part)) is not None:
            return f"{name}, {part.label}: {why}"
    job, copied = replace(job, kept={}), context.in_double()
    # A sample's mask depends on the batch that it is in.
    with undropped(copied.drawing):
        why = _measured(copied, job)
    return why or _lacking(context, job)


def _declared(context: Context, part: Phase | Pass) -> str | None:
    """Return the reason why a part of a plan, as declared, reads data without noise."""
    if isinstance(part, Pass):
        return "it computes statistics of the samples without noise" if part.walks else None
    if part.split == "public":
        return "it trains on public data, whose steps are not accounted for"
    if context.couples_samples(part.evals):
        return f"batch norm mixes the samples of a batch; {without(context.module)}"
    if part.share < 1 or part.subset is not None or part.until is not None:
        return "it chooses samples or its length by rules that are not accounted for"
    if part.varies:
        return "its number of steps differs between clients, which is not accounted for"
    return None


def _measured(context: Context, job: Job) -> str | None:
    """Return what a client's round does beyond bounded gradients of single samples."""
    module, split = context.module, context.data.split(job.info.client, "train")
    name = type(module).__name__
    context.load({})
    try:
        with torch.no_grad():
            begin(module, job)
    except (ValueError, TypeError, AttributeError) as error:
        return f"{name} needs data that private clients do not send, such as class counts: {error}"
    try:
        read = _batch(context, split)
    except TaskError as error:
        return f"{error}; the samples of a site are not read for this check"
    batch = Batch(each(doubled, read.x), doubled(read.y))
    for part in context.plan:
        if isinstance(part, Pass):
            context.write(part.then(Totals({}, {}, 0, 0)))
        elif (why := _coupled(context, part, batch)) is not None:
            return f"{name}, {part.label}: {why}"
    return None


def _lacking(context: Context, job: Job) -> str | None:
    """Return what torch lacks for gradients of single samples in this precision."""
    precision = context.fabric.strategy.precision
    try:
        drawn(context, replace(job, steps=(PrivateSamples(clip=1.0, sigma=0.0),)))
    except RuntimeError as error:
        instead = "; try 32-true" if isinstance(precision, MixedPrecision) else ""
        return (
            "torch cannot compute single samples' gradients of this network in "
            f"{precision.precision}{instead} ({error_line(error)})"
        )
    return None


def drawn(context: Context, job: Job) -> list[Drawn]:
    """Return the noise of a trial: a step of each phase on some samples, on a copy."""
    copied = context.replica(context.fabric)
    with copied.fabric.autocast():
        dtype = torch.get_default_dtype()  # dtype of the samples that are read in this scope
    module, split = copied.module, copied.data.split(job.info.client, "train")
    copied.load({})
    read = _batch(copied, split)
    batch = Batch(each(partial(_floats, dtype), read.x), _floats(dtype, read.y))
    found, place = list[Drawn](), batch.y.device
    with torch.no_grad(), copied.isolated(job):
        begin(module, job)
        for part in copied.plan:
            if isinstance(part, Pass):
                copied.write(part.then(Totals({}, {}, 0, 0)))
                continue
            shapes = part.noise.items()
            noise = {n: torch.zeros(s, dtype=dtype, device=place) for n, s in shapes}
            with prepared(copied, part):
                steps = rule_of(copied, job).gradients(copied, part, [job], 1)
                with copied.fabric.autocast():
                    steps.alone(map_inputs(part, batch)._replace(noise=noise), 0, empty=False)
                found += steps.drawn(0, 1)
    return found


def _floats(dtype: torch.dtype, value: Tensor) -> Tensor:
    return value.to(dtype) if value.is_floating_point() else value


def _batch(context: Context, split: ClientSplit) -> Batch:
    """Return samples spread over a client's data; random ones if the data are elsewhere.

    Raises:
        TaskError: They are, and the task takes no targets that are made up for it.
    """
    data, count = context.data, min(SAMPLES, len(split))
    if stand_in(data):
        rng, task = generator(0, "separable", "samples"), data.task
        targets = (count, max(1, data.outputs // task.outputs(1)))
        y = torch.randint(2, targets, generator=rng).double()
        if data.num_classes is not None:
            y = torch.randint(data.num_classes, (count,), generator=rng)

        def drawn(value: Tensor) -> Tensor:
            if not value.is_floating_point():
                return value
            return torch.randn(value.shape, generator=rng, dtype=torch.float64).to(value.device)

        x = each(drawn, data.blank(count))
        y = y.to(tensors(x)[0].device)
        if not type(task).__module__.startswith("pfl.core."):
            # Only the network knows the form of its outputs.
            context.set_mode(None)
            dtype = next(context.module.parameters()).dtype
            with torch.no_grad():
                outputs = context.module(each(partial(_floats, dtype), x)).double()
            example = task.example(data.outputs)
            made = () if example is None else (example[1][:count].to(y.device),)
            y = accepted(task, outputs, chain(made, usual_targets(outputs, rng), (y,)))
        return Batch(x, y)
    return split.batch(torch.linspace(0, len(split) - 1, count).long())


def _coupled(context: Context, phase: Phase, batch: Batch) -> str | None:
    """Return the evidence that a phase's objective is not a mean over samples."""
    rng = generator(0, "separable", phase.name)
    draws = {n: torch.randn(s, generator=rng, dtype=torch.float64) for n, s in phase.noise.items()}
    noise = {name: value.to(batch.y.device) for name, value in draws.items()}
    context.set_mode(None)
    batch = map_inputs(phase, batch)
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
                            f"its term {term!r} is not a mean over the samples of a batch: it "
                            "couples or sums them"
                        )
    except MethodError as error:
        return str(error)
    except (TypeError, ValueError) as error:
        return f"it needs data that private samples do not have, such as their index: {error}"
    return None


def _vectors(phase: Phase, trained: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    """Return each term of a batch and its gradient as one vector.

    Raises:
        MethodError: The objective returns more than loss terms.
    """
    outcome = run_objective(phase, batch)
    if outcome.entries or outcome.rows:
        first, *others = [*outcome.entries, *outcome.rows]
        more = f" and {len(others)} more" if others else ""
        raise MethodError(f"it keeps {first!r}{more}, which depend on samples without noise")
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
    """Set the trained parameters in turn to their values, to nearby ones and to small ones.

    A term such as a hinge can be zero at some of them.
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
