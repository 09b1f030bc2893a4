"""The server's side of what clients keep at their sites: tickets that name the states."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from pfl.core.types import Job, Ticket
from pfl.engines.keeper import Keeper
from pfl.extras.sites.transport import SiteError


class SitesKeeper(Keeper):
    """A keeper of tickets; the states are at the clients' sites, in :mod:`.states`."""

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Let clients start anew, with empty states; no others can be set from here.

        Raises:
            SiteError: A state is not empty.
        """
        new = dict(*args, **kwargs)
        for client in (client for client, state in new.items() if state):
            raise SiteError(
                f"client {client} keeps its state at its site: it can neither be set from here "
                "nor come from a run without sites"
            )
        super().update(new)

    def fill(self, job: Job) -> Job:
        """Return a client's job with its ticket, which its site redeems."""
        kept = self._kept.get(job.info.client)
        return replace(job, ticket=kept if isinstance(kept, Ticket) else None)


class TemporaryKeeper(SitesKeeper):
    """A keeper of tickets for sites that lose the states at the end of a run."""

    def packed(self) -> dict[str, Any]:
        """Return the tickets in plain values, with a warning that no site will redeem them."""
        if self.tickets:
            warnings.warn(
                "no checkpoint of this run can be resumed, as what clients keep lies in a "
                "temporary folder that ends with it: set loop.engine.folder",
                stacklevel=2,
            )
        return super().packed()
