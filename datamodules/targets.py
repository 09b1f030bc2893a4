"""Labels, subclasses and domains: a data set without its pixels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Targets:
    """Labels, subclasses and domains of samples, which a partitioner may use.

    Attributes:
        labels: (n,) class of each sample, as the model is to predict it.
        fine: (n,) subclass of each sample, where the classes are superclasses.
        domains: (n,) origin of each sample: art style, hospital, writer.
    """

    labels: Ints
    fine: Ints | None = None
    domains: Ints | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, ids: Ints) -> Targets:
        """Return the targets of some samples, in the order given."""
        return Targets(
            self.labels[ids],
            None if self.fine is None else self.fine[ids],
            None if self.domains is None else self.domains[ids],
        )

    @property
    def finest(self) -> Ints:
        """(n,) subclass of each sample, or its class where there are no subclasses."""
        return self.labels if self.fine is None else self.fine

    def kinds(self) -> Ints:
        """Return (n,) numbers of the pairs of subclass (or class) and domain."""
        if self.domains is None:
            return self.finest
        return self.finest * (int(self.domains.max(initial=0)) + 1) + self.domains


@dataclass(frozen=True, eq=False)
class Catalogue:
    """All samples of a data set, by number: official training samples first, then official test.

    Attributes:
        targets: Of every sample.
        num_train: Number of official training samples; all, where there is no official test set.
        class_names: (C,) names of the classes.
        fine_names: Names of the subclasses.
        domain_names: Names of the domains.
        digest: Identifies the inputs on every machine: a hash of the arrays, or of the files' names
            and sizes.
    """

    targets: Targets
    num_train: int
    class_names: Sequence[str]
    fine_names: Sequence[str] = ()
    domain_names: Sequence[str] = ()
    digest: str = ""

    def __post_init__(self) -> None:
        targets = self.targets
        for kind, values, names in (
            ("class", targets.labels, self.class_names),
            ("subclass", targets.fine, self.fine_names),
            ("domain", targets.domains, self.domain_names),
        ):
            if (
                values is not None
                and len(values)
                and not 0 <= values.min() <= values.max() < len(names)
            ):
                raise ValueError(
                    f"there are {kind} numbers from {values.min()} to {values.max()}, "
                    f"but {len(names)} {kind} names"
                )

    def content_hash(self) -> str:
        """Hash inputs, labels, subclasses, domains and the official division."""
        parts = hashlib.sha256(f"{self.digest};{self.num_train}".encode())
        for values in (self.targets.labels, self.targets.fine, self.targets.domains):
            parts.update(b"none" if values is None else values.astype("<i8").tobytes())
        return parts.hexdigest()[:32]


def array_digest(*arrays: NDArray[np.uint8]) -> str:
    """Hash the shapes and values of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]
