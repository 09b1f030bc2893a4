"""How large a run's clients are, told without reading or writing any image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from jsonargparse import Namespace

from pfl.tables.plan import PlannedRun
from pfl.tables.shorten import part_of

if TYPE_CHECKING:
    from datamodules import Catalogue, FederatedDataModule

# Training and test samples of data sets that are fetched; each class has as many.
_PUBLISHED = {
    "CIFAR10": (50_000, 10_000),
    "CIFAR100": (50_000, 10_000),
    "FashionMNIST": (60_000, 10_000),
    "STL10": (5_000, 8_000),
}


# Arguments that say which samples there are.
_WHICH = ("root", "superclasses", "images_per_class", "samples", "classes", "subclasses", "domains")


@dataclass(frozen=True)
class Sizes:
    """A federation's data in numbers.

    Attributes:
        train: (N,) training samples of each client.
        tested: Test samples of all clients together.
        pooled: Samples of the common test set.
        images: Samples that anybody uses; clients may share test samples.
        shape: Channels, height and width.
        classes: C.
    """

    train: Sequence[int]
    tested: int
    pooled: int
    images: int
    shape: tuple[int, int, int]
    classes: int

    @property
    def bytes(self) -> int:
        """Of these images, which are kept as one byte a pixel and channel."""
        return self.images * prod(self.shape)


class Surveyor:
    """Divides labels as runs would; opens each data set once."""

    def __init__(self) -> None:
        self._catalogues: dict[tuple[str, ...], Catalogue] = {}

    def sizes(self, run: PlannedRun) -> Sizes:
        """The sizes of a run's clients.

        Raises:
            ValueError: The recipe does not fit the data.
            OSError: The data are not there, and how many there are is not known.
        """
        values = run.experiment.values.data
        data = _data(run.experiment.parser, values)
        arguments = (str(values.init_args.get(name)) for name in _WHICH)
        which = (str(values.class_path), *arguments)
        if which not in self._catalogues:
            self._catalogues[which] = _catalogue(data)
        catalogue = self._catalogues[which]
        rule = data.rule
        if run.scale < 1 and rule.max_samples is None:
            rule = replace(rule, max_samples=part_of(len(catalogue.targets), run.scale))
        divide = import_module("datamodules.splits").divide
        division = divide(catalogue, data.partition, data.num_clients, rule)
        return Sizes(
            train=[len(holding.train) for holding in division.holdings],
            tested=sum(len(holding.test) for holding in division.holdings),
            pooled=0 if division.pooled_test is None else len(division.pooled_test),
            images=len(division.samples()),
            shape=data.input_shape,
            classes=data.num_classes,
        )


def _data(parser: Any, values: Namespace) -> FederatedDataModule:  # noqa: ANN401
    values = values.clone()
    # Nothing is fetched, and nothing written.
    for name, value in (("download", False), ("cache_dir", None)):
        if name in values.init_args:
            values.init_args[name] = value
    data: FederatedDataModule = parser.instantiate(
        Namespace(data=values), instantiate_groups=False
    )["data"]
    return data


def _catalogue(data: FederatedDataModule) -> Catalogue:
    """That of the data set, or of one of its published size."""
    try:
        return data.catalogue()
    except OSError:
        if type(data).__name__ not in _PUBLISHED:
            raise
    from datamodules import Arrays

    train, test = _PUBLISHED[type(data).__name__]
    fetched: Any = data
    superclasses = getattr(data, "superclasses", False)
    classes = 100 if superclasses else data.num_classes
    targets = fetched.targets(np.arange(train + test, dtype=np.int64) % classes)
    blank = np.empty((train + test, 0, 0, 0), np.uint8)
    names = tuple(map(str, range(classes))) if superclasses else ()
    fetched.arrays = Arrays(blank, targets, train, names)
    return data.catalogue()
