"""The same experiment with a part of its rounds and data."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jsonargparse import Namespace

from pfl.cli.config import Experiment

_ROUNDS = "loop.rounds"
_SAMPLES = "data.init_args.max_samples"
_TRAINING = "data.init_args.max_train_samples"
# What is said of clients' sizes shrinks with the data.
_SMALLEST = "data.init_args.partition.init_args.min_samples"


def shorten(values: Namespace, scale: float, exponents: Mapping[str, float]) -> None:
    """Cut down what a configuration says of rounds and samples; nothing falls below 1.

    Where it does not say how many samples there are, :func:`limit_samples` does it later.

    Args:
        values: The parsed configuration, changed in place.
        scale: In (0, 1].
        exponents: Other keys, whose values are multiplied by ``scale`` to a power.
    """
    for key in (_ROUNDS, _SAMPLES, _TRAINING, _SMALLEST):
        if values.get(key):
            values[key] = part_of(values[key], scale)
    for key, exponent in exponents.items():
        if values.get(key) is not None:
            values[key] = values[key] * scale**exponent


def limit_samples(experiment: Experiment, scale: float) -> None:
    """Use a part of the data set; it is opened to see how large it is."""
    values = experiment.values
    if scale == 1 or values.get(_SAMPLES):
        return
    part = Namespace(data=values.data)
    data = experiment.parser.instantiate(part, instantiate_groups=False)["data"]
    data.prepare_data()
    values[_SAMPLES] = part_of(len(data.catalogue().targets), scale)


def part_of(count: int, scale: float) -> int:
    """Return a share of a number of things, at least one of them.

    Example:
        >>> part_of(40, 0.1), part_of(45, 0.1), part_of(3, 0.1)
        (4, 5, 1)
    """
    # The rounding keeps 0.07 * 100 = 7.000000000000001 at 7.
    return max(1, math.ceil(round(count * scale, 6)))
