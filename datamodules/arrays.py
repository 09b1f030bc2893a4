"""Data sets given as arrays."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules.base import FederatedDataModule
from datamodules.targets import Catalogue, Ints, Targets, array_digest
from pfl.core.types import Inputs


@dataclass(frozen=True, eq=False)
class Arrays:
    """A whole data set, official training samples first.

    Attributes:
        pixels: (n, C, H, W).
        targets: Targets of every sample.
        num_train: Number of official training samples; all samples if there is no official test
            set.
        fine_names: Names of the subclasses.
        domain_names: Names of the domains.
    """

    pixels: NDArray[np.uint8]
    targets: Targets
    num_train: int
    fine_names: Sequence[str] = ()
    domain_names: Sequence[str] = ()

    def catalogue(self, class_names: Sequence[str]) -> Catalogue:
        """Return the catalogue: everything but the pixels, and the names of the classes."""
        return Catalogue(
            self.targets,
            self.num_train,
            class_names,
            self.fine_names,
            self.domain_names,
            array_digest(self.pixels),
        )


class ArrayData(FederatedDataModule):
    """Base class of data sets given as arrays; a subclass implements :meth:`read`."""

    @abstractmethod
    def read(self) -> Arrays:
        """Read the whole data set."""

    @cached_property
    def arrays(self) -> Arrays:
        """The whole data set, read once."""
        return self.read()

    def catalogue(self) -> Catalogue:
        """Return labels, subclasses and domains of all samples."""
        return self.arrays.catalogue(self.class_names)

    def inputs(self, ids: Ints) -> tuple[Inputs, Ints]:
        """Return the pixels of all samples; row i is sample i."""
        return torch.from_numpy(self.arrays.pixels), ids
