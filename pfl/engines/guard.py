"""A check before a run: stacked clients must give the same numbers as one client at a time.

A method may be declared vectorizable by mistake: for example, it may ignore the weight of padded
samples, or mix the samples of a batch. So two clients run two short rounds both ways, in float64 on
copies; and as a stack in the run's precision, in which torch may lack an operation that a stack
needs.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from lightning.fabric.plugins.precision.amp import MixedPrecision

from pfl.core.failure import error_line
from pfl.core.seeds import scoped
from pfl.core.types import Job
from pfl.engines.stack import round as stack_round
from pfl.training.context import Context
from pfl.training.excerpt import excerpt
from pfl.training.trial import Played, largest_difference, one_by_one, played


def disagreement(context: Context) -> str | None:
    """Return why a run must not stack its clients; ``None`` if both ways give the same numbers.

    The answer depends only on the method, its initial values and the data. The context and all
    random streams stay unchanged.
    """
    name = type(context.module).__name__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            small = excerpt(context, double=True)
            if (written := _written(small)) is not None:
                return f"{written}, for the samples too that only fill up a stack's batches"
            alone = dict(played(small, one_by_one))
        except Exception as error:
            return f"{name} could not be checked on two small clients: {error_line(error)}"
        try:
            stacked = dict(played(excerpt(context, double=True), _together))
        except Exception as error:
            return f"{name} fails when stacked: {error_line(error)}"
        if (apart := largest_difference(alone, stacked)) is not None:
            return f"{name} gives different numbers when stacked: {apart}"
        precision = context.fabric.strategy.precision
        if isinstance(precision, MixedPrecision):
            try:
                dict(played(excerpt(context), _together))
            except Exception as error:
                return f"{name} fails when stacked in {precision.precision}: {error_line(error)}"
    return None


def _written(context: Context) -> str | None:
    """Return which parameter the forward pass writes to, as an embedding with a largest norm does.

    Two short rounds do not always show it: padding repeats samples that a client sees anyway, only
    at another step.
    """
    splits = (context.data.split(client, "train") for client in (0, 1))
    if (split := next(filter(len, splits), None)) is None:
        return None
    before = {n: (one, one._version) for n, one in context.module.named_parameters()}
    with torch.no_grad(), scoped(0):
        context.module.train()(split.batch(torch.zeros(2, dtype=torch.int64)).x)
    found = (name for name, (one, version) in before.items() if one._version != version)
    return next((f"the forward pass writes to the parameter {name!r}" for name in found), None)


def _together(context: Context, jobs: Sequence[Job]) -> Played:
    results = stack_round.train(context, jobs)
    return results, stack_round.answers(stack_round.tested(context, jobs))
