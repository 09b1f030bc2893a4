"""The clients of a federation that are held out of its training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from pfl.core.types import FederatedData


class HeldOut(NamedTuple):
    """Clients that take no part in training: they join afterwards, to be tested.

    Attributes:
        unseen: The clients whose scores are reported.
        validation: The clients by which settings of a baseline are chosen; they are not reported.
    """

    unseen: tuple[int, ...] = ()
    validation: tuple[int, ...] = ()


NOBODY = HeldOut()


@runtime_checkable
class HoldsOut(Protocol):
    """Federated data that may hold out clients."""

    @property
    def held_out(self) -> HeldOut:
        """The clients that are held out."""


def held_out(data: FederatedData) -> HeldOut:
    """Return the clients that data hold out; none if the data do not tell."""
    return data.held_out if isinstance(data, HoldsOut) else NOBODY


def members(data: FederatedData) -> Sequence[int]:
    """Return the clients that are not held out, ascending."""
    out = {client for clients in held_out(data) for client in clients}
    return [client for client in range(data.num_clients) if client not in out]
