"""Partitioners that cut every class at the same points, which separates label and quantity skew.

Source: Zhu, Ma and Blaschko, "Confidence-aware personalized federated learning via variational
expectation maximization" (pFedVEM), CVPR 2023, and its released code: label skew, label-concept
drift and quantity skew ("slicing"). There all classes have equal counts; here, classes of unequal
counts are cut at equal fractions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import numpy as np

from datamodules.checks import require
from datamodules.partition import draws
from datamodules.partition.partitioner import Partitioner
from datamodules.targets import Ints, Targets
from pfl.core.checks import not_negative
from pfl.core.ranges import AtLeastOne, Range

Quantity: TypeAlias = Literal["random_cuts", "equal", "lognormal"]
# The labels that are cut into blocks, and those of which each client owns a block.
Owned: TypeAlias = tuple[Ints, Sequence[Ints]]


@dataclass(frozen=True, kw_only=True)
class Slices(Partitioner):
    """Base class: each class is cut into blocks, and a client gets one block of each class it owns.

    Args:
        quantity: How block sizes are drawn: ``random_cuts`` at distinct uniform points (pFedVEM),
            ``equal``, or ``lognormal``.
        sigma: Standard deviation of the logarithm of ``lognormal`` sizes.
        released: Draw like pFedVEM's released code: with the same split seed (42 there), clients
            have the same number of samples of each class.

    Raises:
        ValueError: ``sigma`` is negative or infinite, or ``quantity`` is unknown.
    """

    quantity: Quantity = "random_cuts"
    sigma: Annotated[float, Range("[0, inf)")] = 1.0
    released: bool = False

    def rng(self, seed: int) -> np.random.Generator:
        """Return the random generator for a split seed."""
        if not self.released:
            return super().rng(seed)
        not_negative(split_seed=seed)
        return np.random.default_rng(seed)

    @abstractmethod
    def owned(self, targets: Targets, num_clients: int, rng: np.random.Generator) -> Owned:
        """Return the classes to cut, and the classes of each client.

        Returns:
            classes: (n,) class or subclass of each sample.
            owned: The classes of each client; every class is owned equally often.
        """

    def draw(self, targets: Targets, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        """Divide the samples; ``__call__`` checks the result."""
        # The released code deals the classes with a separate generator of the same seed.
        dealer = deepcopy(rng) if self.released else rng
        classes, owned = self.owned(targets, num_clients, dealer)
        names, counts = np.unique(classes, return_counts=True)
        blocks, smallest = sum(map(len, owned)) // len(counts), counts.min()
        require(
            blocks <= smallest,
            f"{type(self).__name__} cuts each class into {blocks} blocks for {num_clients} "
            f"clients, but the smallest has {smallest} samples; lower num_clients",
        )
        pools = draws.members(classes, rng)
        # Drawn for the smallest class and scaled to the others.
        points = self.cut_points(smallest, blocks, rng)
        # A client gets the next free block of each of its classes; in the released code the last
        # one.
        step = -1 if self.released else 1
        unused = {
            name: iter(np.split(pool, points * len(pool) // smallest)[::step])
            for name, pool in zip(names.tolist(), pools, strict=True)
        }
        return draws.join([[next(unused[name]) for name in own.tolist()] for own in owned])

    def cut_points(self, size: int, blocks: int, rng: np.random.Generator) -> Ints:
        """Draw the points at which ``size`` samples are cut into non-empty blocks.

        Returns:
            (blocks - 1,) ascending points in 1..size-1.
        """
        if self.quantity == "random_cuts":
            return np.sort(rng.choice(np.arange(1, size), blocks - 1, replace=False))
        if self.quantity == "equal":
            return np.arange(1, blocks) * size // blocks
        weights = np.exp(self.sigma * rng.standard_normal(blocks))
        return np.cumsum(1 + draws.apportion(size - blocks, weights))[:-1]

    def deal(
        self,
        above: Sequence[Ints],
        per_client: int,
        num_clients: int,
        rng: np.random.Generator,
        chained: bool = False,
    ) -> list[Ints]:
        """Deal classes at random in each group of clients, which together have each class once.

        Args:
            above: Groups of classes that are dealt separately, such as those of each superclass; of
                equal size, a multiple of ``per_client``.
            per_client: Number of classes of each kind that a client gets.
            num_clients: Number of clients.
            rng: Random generator.
            chained: Let each group's deal shuffle the previous one, as in the released code.

        Raises:
            ValueError: The clients do not fill their groups.
        """
        group = len(above[0]) // per_client
        require(
            num_clients % group == 0,
            f"{type(self).__name__} deals the classes over groups of {group} clients; "
            f"num_clients={num_clients} is not divisible by {group}",
        )
        owned: list[Ints] = []
        for _ in range(num_clients // group):
            dealt = np.stack([rng.permutation(classes) for classes in above])
            if chained:
                above = list(dealt)
            owned += [part.ravel() for part in np.split(dealt, group, axis=1)]
        return owned


@dataclass(frozen=True, kw_only=True)
class QuantitySkew(Slices):
    """Quantity skew: clients differ in size, but have the same class proportions.

    Args:
        quantity: How block sizes are drawn: ``random_cuts`` at distinct uniform points (pFedVEM),
            ``equal``, or ``lognormal``.
        sigma: Standard deviation of the logarithm of ``lognormal`` sizes.
        released: Draw like pFedVEM's released code: with the same split seed (42 there), clients
            have the same number of samples of each class.
    """

    def owned(self, targets: Targets, num_clients: int, rng: np.random.Generator) -> Owned:
        """Assign all classes to every client."""
        return targets.labels, [np.unique(targets.labels)] * num_clients


@dataclass(frozen=True, kw_only=True)
class FixedClasses(Slices):
    """Label skew: every client has the same number of classes (5 of 10 in pFedVEM).

    Clients come in groups of C / classes_per_client (in pairs, for 5 of 10). The classes are dealt
    at random within each group; the clients of a group have equal sizes.

    Args:
        classes_per_client: Number of classes of a client; must divide the number of classes, C.
        quantity: How block sizes are drawn: ``random_cuts`` at distinct uniform points (pFedVEM),
            ``equal``, or ``lognormal``.
        sigma: Standard deviation of the logarithm of ``lognormal`` sizes.
        released: Draw like pFedVEM's released code: with the same split seed (42 there), clients
            have the same number of samples of each class.

    Raises:
        ValueError: ``classes_per_client`` is smaller than 1.
    """

    classes_per_client: AtLeastOne = 5

    def owned(self, targets: Targets, num_clients: int, rng: np.random.Generator) -> Owned:
        """Deal all classes at random in each group of clients."""
        classes = np.unique(targets.classes)
        per_client = self.classes_per_client
        require(
            len(classes) % per_client == 0,
            f"classes_per_client={per_client} does not divide the {len(classes)} classes",
        )
        return targets.classes, self.deal([classes], per_client, num_clients, rng)


@dataclass(frozen=True, kw_only=True)
class ConceptDrift(Slices):
    """Label-concept drift: every client has all superclasses, but its own subclasses of them.

    With s subclasses per superclass, clients come in groups of s / subclasses_per_client (5 on
    CIFAR-100). The subclasses of every superclass are dealt at random within each group; the
    clients of a group have equal sizes.

    Args:
        subclasses_per_client: Number of subclasses of each superclass that a client has; must
            divide s. With all s subclasses these are pFedVEM's homogeneous clients.
        quantity: How block sizes are drawn: ``random_cuts`` at distinct uniform points (pFedVEM),
            ``equal``, or ``lognormal``.
        sigma: Standard deviation of the logarithm of ``lognormal`` sizes.
        released: Draw like pFedVEM's released code: with the same split seed (42 there), clients
            have the same number of samples of each class.

    Raises:
        ValueError: ``subclasses_per_client`` is smaller than 1.
    """

    subclasses_per_client: AtLeastOne = 1

    def owned(self, targets: Targets, num_clients: int, rng: np.random.Generator) -> Owned:
        """Deal the subclasses of every superclass at random in each group of clients."""
        if targets.fine is None:
            raise ValueError(
                "ConceptDrift needs subclasses; give the data set's option superclasses: it then "
                "predicts superclasses, and its classes become subclasses"
            )
        under = [np.unique(targets.fine[targets.classes == c]) for c in np.unique(targets.classes)]
        size = len(under[0])
        require(
            all(len(subclasses) == size for subclasses in under)
            and len(np.unique(targets.fine)) == size * len(under),
            "ConceptDrift needs equal numbers of subclasses in each superclass, each subclass in "
            "one; there are " + ", ".join(str(len(subclasses)) for subclasses in under),
        )
        require(
            size % self.subclasses_per_client == 0,
            f"subclasses_per_client={self.subclasses_per_client} does not divide the {size} "
            "subclasses of a superclass",
        )
        return targets.fine, self.deal(
            under, self.subclasses_per_client, num_clients, rng, chained=self.released
        )
