"""Names of clients, and where their samples come from."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from pfl.core.data import FederatedData
from pfl.core.types import Split


@runtime_checkable
class NamesClients(Protocol):
    """Federated data with names of clients."""

    @property
    def client_names(self) -> Sequence[str]:
        """(N,) names of the clients; empty if they have only numbers."""


@runtime_checkable
class KnowsOrigins(NamesClients, Protocol):
    """Federated data that also know the rows of samples in the data set."""

    def rows(self, client: int, split: Split, /) -> Sequence[int]:
        """Return the number of each sample in the data set, from 0."""


def client_names(data: FederatedData) -> Sequence[str]:
    """Return the names of clients; empty if the data have none."""
    return data.client_names if isinstance(data, NamesClients) else ()


def warn_of_name(number: int, names: Sequence[str]) -> None:
    """Warn if a client's number is also the name of another client, such as hospital 3."""
    if str(number) in names and (named := names.index(str(number))) != number:
        warnings.warn(
            f"{number} is the number of a client; the client named {number} has the number {named}",
            stacklevel=2,
        )
