"""MNIST-1D: signals of 40 numbers from the package ``mnist1d``, measured by sensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from lightning.pytorch.utilities.seed import isolate_rng

from datamodules.checks import optional
from datamodules.partition.partitioner import Partitioner
from datamodules.tensors import TensorData
from pfl.core.ranges import AtLeastOne, NotNegative


class MNIST1D(TensorData):
    """Ten digits as signals of 40 numbers, with clients that differ only in features.

    A client is a sensor with a random gain, offset and slope: it measures ``gain x + offset + slope
    t`` of a signal x, where t runs from -1 to 1. The signals come from the published generator,
    with other random numbers. Nothing is downloaded.

    Source: Greydanus, Kobak, "Scaling down deep learning with MNIST-1D", ICML 2024. Licence of the
    package: Apache-2.0.

    Args:
        num_clients: Number of clients, N; if not given, one for each sensor.
        partition: As in :class:`FederatedDataModule`; ``ByDomain`` if not given.
        sensors: Number of sensors.
        samples: Number of signals of each sensor.
        shift: Difference between sensors: standard deviation of offset, slope and the logarithm of
            the gain; 0 for equal sensors.
        data_seed: Seed of signals and sensors.
        options: As in :class:`TensorData`, such as ``standardise``.

    Raises:
        ImportError: The package ``mnist1d`` is not installed.
        ValueError: A number is out of range.
    """

    def __init__(
        self,
        num_clients: int | None = None,
        partition: Partitioner | str | None = None,
        *,
        sensors: AtLeastOne = 8,
        samples: AtLeastOne = 500,
        shift: NotNegative[float] = 1.0,
        data_seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__({}, num_clients, partition, task="classification", **options)
        self.sensors = sensors
        self.samples = samples
        self.shift = shift
        self.data_seed = data_seed

    def read(self) -> Mapping[str, Any]:
        """Generate the signals of all sensors."""
        x, y = _signals(10 * -(-self.sensors * self.samples // 10), self.data_seed)
        sensor = np.arange(len(y)) % self.sensors
        rng = np.random.default_rng(self.data_seed)
        gain, offset, slope = self.shift * rng.normal(size=(3, self.sensors, 1))
        time = np.linspace(-1, 1, x.shape[1])
        seen = np.exp(gain)[sensor] * x + offset[sensor] + slope[sensor] * time
        wanted = slice(self.sensors * self.samples)
        return {"x": seen.astype(np.float32)[wanted], "y": y[wanted], "client": sensor[wanted]}


def _signals(count: int, seed: int) -> tuple[Any, Any]:
    """Return (count, 40) signals and (count,) digits, in random order.

    Raises:
        ImportError: The package ``mnist1d`` is not installed.
    """
    data = optional("mnist1d.data", "mnist1d", "MNIST1D")
    arguments = data.get_dataset_args()
    arguments.num_samples, arguments.train_split, arguments.seed = count, 1.0, seed
    # The generator seeds and uses the global streams of Python and numpy.
    with isolate_rng(include_cuda=False):
        made = data.make_dataset(arguments)
    return made["x"], made["y"]
