"""A server that several methods share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pfl.core.checks import not_negative
from pfl.core.server import Server, ServerState
from pfl.core.state import add, subtract
from pfl.core.types import Upload


@dataclass(eq=False)
class MovingServer(Server[ServerState]):
    """A server that moves from its old values towards the average of the uploads.

    The new values are ``(1 - beta) old + beta average``. Used by pFedMe (Dinh et al., NeurIPS 2020,
    arXiv 2006.08848) and pFedBayes (Zhang et al., ICML 2022, arXiv 2206.07977).

    Args:
        weighting: As in :class:`~pfl.core.server.Server`.
        step: beta; 1 gives the average, more than 1 goes beyond it.

    Raises:
        ValueError: ``step`` is negative.
    """

    step: float = 1.0

    def __post_init__(self) -> None:
        not_negative(server_step=self.step)

    def merge(self, state: ServerState, uploads: Sequence[Upload]) -> ServerState:
        """Return the state after the step; see :meth:`pfl.core.server.Server.merge`."""
        after = super().merge(state, uploads)
        if self.step == 1:
            return after
        change = subtract(after.shared, state.shared)
        return replace(after, shared=add(state.shared, change, self.step))

    def merge_mean(self, state: ServerState, mean: Upload, count: float) -> ServerState:
        """Take the same step towards the mean; see :meth:`pfl.core.server.Server.merge_mean`."""
        return self.merge(state, [mean])
