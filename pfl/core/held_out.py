"""Clients that are held out of training, and the names of clients."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from pfl.core.data import FederatedData
from pfl.core.types import Split


class HeldOut(NamedTuple):
    """Clients that take no part in training: they join afterwards, to be tested.

    Attributes:
        unseen: The clients whose scores are reported.
        validation: The clients on which a baseline's settings are chosen; they are not reported.
    """

    unseen: tuple[int, ...] = ()
    validation: tuple[int, ...] = ()


NOBODY = HeldOut()


def held_out(data: FederatedData) -> HeldOut:
    """Return the clients that are held out of training, if any."""
    out: HeldOut = getattr(data, "held_out", NOBODY)
    return out


def members(data: FederatedData) -> Sequence[int]:
    """Return the clients that are not held out, ascending."""
    out = {client for clients in held_out(data) for client in clients}
    return [client for client in range(data.num_clients) if client not in out]


def holders(data: FederatedData, *splits: Split) -> Sequence[int]:
    """Return the clients that are not held out and have samples of each of some splits."""
    return [c for c in members(data) if all(len(data.split(c, name)) for name in splits)]


@runtime_checkable
class KnowsOrigins(Protocol):
    """Federated data with names of clients, and the rows of samples in the data set."""

    @property
    def client_names(self) -> Sequence[str]:
        """(N,) names of the clients; empty if they have only numbers."""

    def rows(self, client: int, split: Split, /) -> Sequence[int]:
        """Return the number of each sample in the data set, from 0."""


def client_names(data: FederatedData) -> Sequence[str]:
    """Return the names of clients; empty if the data have none."""
    return data.client_names if isinstance(data, KnowsOrigins) else ()


def warn_of_name(number: int, names: Sequence[str]) -> None:
    """Warn if a client's number is also the name of another client, such as hospital 3."""
    if str(number) in names and (named := names.index(str(number))) != number:
        warnings.warn(
            f"{number} is the number of a client; the client named {number} has the number {named}",
            stacklevel=2,
        )
