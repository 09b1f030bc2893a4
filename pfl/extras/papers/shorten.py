"""Shortened experiments: a share of rounds and data."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jsonargparse import Namespace

from pfl.cli.config import Experiment

_ROUNDS = "loop.rounds"
_SAMPLES = "data.init_args.max_samples"
_TRAINING = "data.init_args.max_train_samples"
# The minimum size of a client shrinks with the data.
_SMALLEST = "data.init_args.partition.init_args.min_samples"


def shorten(values: Namespace, scale: float, exponents: Mapping[str, float]) -> None:
    """Reduce the numbers of rounds and samples in a configuration, to at least 1.

    :func:`limit_samples` later limits the number of samples if the configuration does not. Values
    of the keys in ``exponents`` are multiplied by that power of ``scale``.
    """
    for key in (_ROUNDS, _SAMPLES, _TRAINING, _SMALLEST):
        if values.get(key):
            values[key] = part_of(values[key], scale)
    for key, exponent in exponents.items():
        if values.get(key) is not None:
            values[key] = values[key] * scale**exponent


def limit_samples(experiment: Experiment, scale: float) -> None:
    """Limit the samples to a share of the data set, reading it to find its size."""
    values = experiment.values
    if scale == 1 or values.get(_SAMPLES):
        return
    data = experiment.make("data", values.data)
    data.prepare_data()
    values[_SAMPLES] = part_of(len(data.catalogue().targets), scale)


def part_of(count: int, scale: float) -> int:
    """Return a share of ``count``, rounded up, at least one.

    Example:
        >>> part_of(40, 0.1), part_of(45, 0.1), part_of(3, 0.1)
        (4, 5, 1)
    """
    # Rounding first keeps 0.07 * 100 = 7.000000000000001 at 7.
    return max(1, math.ceil(round(count * scale, 6)))
