"""Labels, subclasses and domains: a data set without its inputs."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Targets:
    """Labels, subclasses and domains of samples, which a partitioner may use.

    Attributes:
        labels: (n,) class of each sample, as the model predicts it.
        fine: (n,) subclass of each sample, if the classes are superclasses.
        domains: (n,) origin of each sample: art style, hospital, writer.
        columns: (n,) numbers by which samples can be ordered, by name, such as ``time``.
        has_classes: ``False`` if the model does not predict classes; all labels are then zero.
    """

    labels: Ints
    fine: Ints | None = None
    domains: Ints | None = None
    columns: Mapping[str, Floats] = field(default_factory=dict)
    has_classes: bool = True

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, ids: Ints) -> Targets:
        """Select the targets of samples, in the given order."""
        return Targets(
            self.labels[ids],
            None if self.fine is None else self.fine[ids],
            None if self.domains is None else self.domains[ids],
            {name: values[ids] for name, values in self.columns.items()},
            self.has_classes,
        )

    @property
    def classes(self) -> Ints:
        """(n,) class of each sample, for partitioners that need classes.

        Raises:
            ValueError: There are no classes.
        """
        if not self.has_classes:
            raise ValueError(
                "the samples have no classes to divide by: choose a partitioner without classes "
                "(IID, QuantitySkew, ByDomain, ByColumn)"
            )
        return self.labels

    def column(self, name: str) -> Floats:
        """Return the (n,) numbers of a column.

        Raises:
            ValueError: There is no column of this name.
        """
        if name not in self.columns:
            known = ", ".join(self.columns) or "none"
            raise ValueError(
                f"the data have no column {name!r} to order samples by; they have {known}"
            )
        return self.columns[name]

    @property
    def finest(self) -> Ints:
        """(n,) subclass of each sample, or its class if there are no subclasses."""
        return self.labels if self.fine is None else self.fine

    def kinds(self) -> Ints:
        """Return (n,) numbers that identify the pair of subclass (or class) and domain."""
        if self.domains is None:
            return self.finest
        return self.finest * (int(self.domains.max(initial=0)) + 1) + self.domains


@dataclass(frozen=True, eq=False)
class Catalogue:
    """All samples of a data set, by number: official training samples first, then official test.

    Attributes:
        targets: Targets of every sample.
        num_train: Number of official training samples; all samples if there is no official test
            set.
        class_names: (C,) names of the classes.
        fine_names: Names of the subclasses.
        domain_names: Names of the domains.
        digest: Machine-independent hash of the inputs: of the arrays, or of the files' names and
            sizes.
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
            # Names are printed, and terminals interpret control characters.
            for name in names:
                if any(unicodedata.category(letter) == "Cc" for letter in str(name)):
                    raise ValueError(f"the {kind} name {name!a} has a control character")
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
        """Hash inputs, labels, subclasses, domains and the official train/test split."""
        parts = hashlib.sha256(f"{self.digest};{self.num_train}".encode())
        for values in (self.targets.labels, self.targets.fine, self.targets.domains):
            parts.update(b"none" if values is None else values.astype("<i8").tobytes())
        for name, numbers in sorted(self.targets.columns.items()):
            parts.update(name.encode() + numbers.astype("<f8").tobytes())
        return parts.hexdigest()[:32]


def plain_name(name: str) -> str:
    """Return a name, stripped and in Unicode's form NFC, so that equal-looking names are equal.

    Example:
        >>> plain_name(" Zu\u0308rich") == "Z\u00fcrich"
        True
    """
    return unicodedata.normalize("NFC", name).strip()


def array_digest(*arrays: NDArray[Any]) -> str:
    """Hash the shapes and values of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]
