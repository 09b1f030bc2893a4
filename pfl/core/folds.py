"""Folds: what a server makes of a round's uploads, one after another, as they arrive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar

from torch import Tensor

from pfl.core.state import RunningMean, message_size, select
from pfl.core.types import Patterns, State, Upload

ValueT = TypeVar("ValueT")
EVERYTHING: Patterns = ("*",)


class Fold(ABC, Generic[ValueT]):
    """Takes the uploads of one round, in ascending order of clients, and none of them twice.

    A server makes new folds for each round (:meth:`pfl.core.server.Server.begin`). An upload is
    dropped once all folds have taken it, so that memory does not grow with the cohort, unless a
    fold holds what it takes (:meth:`held`).
    """

    @abstractmethod
    def add(self, upload: Upload) -> None:
        """Take an upload: all of it, or none of it and raise an error.

        The upload's tensors belong to nobody else, but must not be written to.
        """

    @abstractmethod
    def value(self) -> ValueT:
        """Return what became of at least one upload."""

    def held(self, upload: Upload) -> int:
        """Return the bytes of such an upload that stay in memory until the round is over."""
        return 0

    def of_mean(self, mean: Upload, count: float) -> ValueT:
        """Return the value for a private round, of which only a mean of all uploads is known.

        A fold that is a sum over clients, all of which count equally, overrides this.

        Args:
            mean: The mean, of no client.
            count: The expected number of uploads.
        """
        raise TypeError(f"{type(self).__name__} takes single uploads")

    @property
    def private(self) -> bool:
        """Whether the mean of all uploads suffices; see :meth:`of_mean`."""
        return type(self).of_mean is not Fold.of_mean


Folds: TypeAlias = dict[str, Fold[Any]]
"""Folds by name."""


class Mean(Fold[State]):
    """The weighted mean of entries in ``shared``; see :class:`~pfl.core.state.RunningMean`.

    Args:
        weight: Returns an upload's weight; weights need not sum to one.
        names: Patterns of the entries.
        planned: The sum of the weights, if it is known beforehand. The mean's bits are those of
            weights that sum to one; otherwise, sums are divided at the end.
    """

    def __init__(
        self,
        weight: Callable[[Upload], float],
        names: Patterns = EVERYTHING,
        planned: float = 1.0,
    ) -> None:
        self._weight, self._names, self._planned = weight, names, planned
        self._total, self._sum = 0.0, RunningMean()

    def add(self, upload: Upload) -> None:
        """Add an upload's entries."""
        weight = self._weight(upload)
        self._sum.add(self._entries(upload), weight / self._planned)
        self._total += weight

    def value(self) -> State:
        """Return the mean; not a number, if all weights are zero."""
        return self._sum.value(self._total / self._planned)

    def of_mean(self, mean: Upload, count: float) -> State:
        """Return the mean's entries."""
        return self._entries(mean)

    def _entries(self, upload: Upload) -> State:
        return upload.shared if self._names == EVERYTHING else select(upload.shared, self._names)


class Sum(Fold[Tensor]):
    """The sum of an entry in ``extra``, in its own type.

    Args:
        name: The entry.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._sum: Tensor | None = None

    def add(self, upload: Upload) -> None:
        """Add an upload's entry."""
        value = upload.extra[self._name]
        self._sum = value.clone() if self._sum is None else self._sum.add_(value)

    def value(self) -> Tensor:
        """Return the sum.

        Raises:
            ValueError: There is nothing to add.
        """
        if self._sum is None:
            raise ValueError(f"no upload has sent {self._name!r}")
        return self._sum

    def of_mean(self, mean: Upload, count: float) -> Tensor:
        """Return the mean times the number of uploads."""
        return count * mean.extra[self._name]


class Uploads(Fold[list[Upload]]):
    """The uploads themselves, or parts of them: for what cannot be computed one after another.

    Memory then grows with the cohort, and the run's header says so.

    Args:
        shared: Patterns of the entries in ``shared``.
        extra: Patterns of those in ``extra``.
    """

    def __init__(self, shared: Patterns = EVERYTHING, extra: Patterns = EVERYTHING) -> None:
        self.shared, self.extra = shared, extra
        self._held: list[Upload] = []

    def add(self, upload: Upload) -> None:
        """Hold an upload."""
        self._held.append(self._parts(upload))

    def held(self, upload: Upload) -> int:
        """Return the bytes of the parts."""
        return message_size(self._parts(upload))

    def _parts(self, upload: Upload) -> Upload:
        parts = select(upload.shared, self.shared), select(upload.extra, self.extra)
        return replace(upload, shared=parts[0], extra=parts[1], encoded=None)

    def value(self) -> list[Upload]:
        """Return the uploads, in ascending order of clients."""
        return self._held

    def without(self, clients: Collection[int]) -> list[Upload]:
        """Return the uploads of all but some clients."""
        return [upload for upload in self._held if upload.client not in clients]


@dataclass(frozen=True)
class Folded:
    """A finished round, as a server sees it.

    Attributes:
        uploads: The uploads that arrived, at least one, in ascending order of clients. Of their
            values they have only the numbers that ``Server.reports`` names. Empty in a private
            round, in which no single upload is known.
        shares: (len(uploads),) float64 weights of the uploads, which sum to one.
        count: Number of uploads; the expected one in a private round.
        values: The values of the folds, by name.
    """

    uploads: Sequence[Upload]
    shares: Tensor
    count: float
    values: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401
        return self.values[name]

    @property
    def mean(self) -> State:
        """The value of the fold ``mean``, which every server has by default."""
        mean: State = self.values["mean"]
        return mean

    @property
    def private(self) -> bool:
        """Whether no single upload is known."""
        return not self.uploads
