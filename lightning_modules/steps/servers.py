"""Servers that step towards the average, or beyond it, and the step itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pfl.core.checks import not_negative
from pfl.core.server import Server, ServerState
from pfl.core.state import add, select, subtract
from pfl.core.types import ClientInfo, Patterns, State, Upload


@dataclass(eq=False)
class MovingServer(Server[ServerState]):
    """A server that moves from its old values towards the average of the uploads.

    The new values are ``(1 - beta) old + beta average``. Used by pFedMe (Dinh et al., NeurIPS 2020,
    arXiv 2006.08848) and pFedBayes (Zhang et al., ICML 2022, arXiv 2206.07977).

    Args:
        weighting: As in :class:`~pfl.core.server.Server`.
        step: beta; 1 gives the average, more than 1 goes beyond it.
        parameters: Names of the entries that go beyond the average; the others stop at it.

    Raises:
        ValueError: ``step`` is negative.
    """

    step: float = 1.0
    parameters: Patterns = ("*",)

    def __post_init__(self) -> None:
        not_negative(server_step=self.step)

    def merge(self, state: ServerState, uploads: Sequence[Upload]) -> ServerState:
        """Return the state after the step; see :meth:`pfl.core.server.Server.merge`."""
        after = super().merge(state, uploads)
        if self.step == 1:
            return after
        # Beyond their average, running variances could be negative.
        names = self.parameters if self.step > 1 else ("*",)
        return replace(after, shared=stepped(state.shared, after.shared, self.step, names))

    def merge_mean(self, state: ServerState, mean: Upload, count: float) -> ServerState:
        """Take the same step towards the mean; see :meth:`pfl.core.server.Server.merge_mean`."""
        return self.merge(state, [mean])


@dataclass(frozen=True, kw_only=True)
class DampedState(ServerState):
    """The shared values, and the sum of all members' weights."""

    total: int


class DampedServer(Server[DampedState]):
    """A server that averages as if absent members had sent back the last global values.

    So do the authors of FedEM (Marfoq et al., NeurIPS 2021, arXiv 2108.10252).
    """

    def init(self, shared: State, clients: Sequence[ClientInfo]) -> DampedState:
        """Add up the weights of all members."""
        return DampedState(shared=shared, total=self._total(clients))

    def merge(self, state: DampedState, uploads: Sequence[Upload]) -> DampedState:
        """Return the state with the average over all members."""
        after = super().merge(state, uploads)
        share = self._total(uploads) / state.total
        return replace(after, shared=stepped(state.shared, after.shared, share))

    def _total(self, clients: Sequence[ClientInfo | Upload]) -> int:
        samples = [client.samples for client in clients]
        return sum(samples if self.weighting == "samples" else map(bool, samples))


def stepped(old: State, new: State, scale: float, names: Patterns = ("*",)) -> State:
    """Return ``old + scale (new - old)`` for the entries with such names; the others are new.

    Example:
        >>> import torch
        >>> old, new = {"w": torch.tensor(1.0)}, {"w": torch.tensor(3.0)}
        >>> stepped(old, new, 2.0)
        {'w': tensor(5.)}
    """
    start = select(old, names)
    return {**new, **add(start, subtract(select(new, names), start), scale)}
