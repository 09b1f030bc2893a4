"""Data of a federation as server and site see them: sizes here, one client's samples there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from pfl.core.data import ClientSplit, DataSource, FederatedData
from pfl.core.data_view import DataView
from pfl.core.held_out import HeldOut, client_names, held_out, members
from pfl.core.types import Batch, Inputs, Split
from pfl.disk import canonical
from pfl.engines.transport.wire import Introduction
from pfl.extras.sites.transport import SiteError


class OneClient(DataView):
    """A site's data: one client, under the number by which the server calls it.

    Args:
        data: The site's data.
        local: Index of the client in them.
        client: Index of the client for the server.
    """

    def __init__(self, data: FederatedData, local: int, client: int) -> None:
        super().__init__(data)
        self._local, self._client = local, client

    def split(self, client: int, name: Split) -> ClientSplit:
        """Return a split of the client.

        Raises:
            SiteError: Another client is asked for.
        """
        if client != self._client:
            raise SiteError(f"this is the site of client {self._client}, not of {client}")
        return self._data.split(self._local, name)


class Told(DataView):
    """The server's data: the sizes that sites report, and samples that belong to no site.

    Args:
        data: What the server was given; samples of clients with a site are never read from it.
        sites: The introduction of each site.

    Raises:
        SiteError: A client of the data has no site.
    """

    def __init__(self, data: FederatedData, sites: Mapping[int, Introduction]) -> None:
        super().__init__(data)
        if missing := [client for client in members(data) if client not in sites]:
            names = ", ".join(map(str, missing[:10]))
            raise SiteError(
                f"{len(sites)} sites have come, but none of these clients: {names}; start them, or "
                f"lower data.num_clients, which is {data.num_clients}"
            )
        self._sites = sites

    @property
    def stands_for(self) -> str:
        """The name of the data that these stand for."""
        return type(self._data).__name__

    @property
    def held_out(self) -> HeldOut:
        """The clients that are held out; their data are here."""
        return held_out(self._data)

    @property
    def groups(self) -> tuple[tuple[str, ...], list[int]]:
        """Labels of groups of clients, and each client's group."""
        groups: tuple[tuple[str, ...], list[int]] = getattr(self._data, "groups", ((), []))
        return groups

    @property
    def client_names(self) -> Sequence[str]:
        """(N,) names of the clients; empty if they have only numbers."""
        return client_names(self._data)

    def rows(self, client: int, split: Split) -> NoReturn:
        """Refuse: a site does not reveal which rows it has.

        Raises:
            SiteError: Always.
        """
        raise SiteError(f"the rows of client {client} are at its site")

    def split(self, client: int, name: Split) -> ClientSplit:
        """Return the sizes of a split at a site, or the split of a client that is here."""
        if client not in self._sites:
            return self._data.split(client, name)
        introduction = self._sites[client]
        counts = introduction.label_counts if name == "train" else None
        return _Distant(client, introduction.sizes.get(name, 0), counts)

    def description(self) -> dict[str, Any]:
        """Describe the partition; its hash is that of the sites' data if they are not here."""
        hashes = {str(client): site.data for client, site in self._sites.items()}
        return {"hash": canonical.digest(hashes), **self._data.description()}

    def placeholder(self, count: int) -> Inputs:
        """Return inputs of zeros; the data that the server was given know the shapes."""
        return cast(DataSource, self._data).blank(count)


class _Distant:
    """A split at a site, of which only numbers are known.

    Attributes:
        label_counts: (C,) samples of each class; ``None`` if they are not known.
        augmented: ``False``; the site knows.
    """

    augmented = False

    def __init__(self, client: int, size: int, counts: Sequence[int] | None) -> None:
        self._client, self._size = client, size
        self.label_counts = None if counts is None else torch.tensor(counts)

    @property
    def targets(self) -> Tensor:
        """Refuse: samples stay at their site."""
        return self._refuse()

    def __len__(self) -> int:
        return self._size

    def batch(self, positions: Tensor, rng: torch.Generator | None = None) -> Batch:
        """Refuse: samples stay at their site."""
        return self._refuse()

    def _refuse(self) -> NoReturn:
        raise SiteError(f"the samples of client {self._client} stay at its site")
