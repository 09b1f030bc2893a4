"""Data of a federation as seen by server and site: sizes, and one client's samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from pfl.core.data import ClientSplit, FederatedData, members
from pfl.core.data_view import DataView
from pfl.core.types import NO_CLIENT, Batch, DataSplit, Split
from pfl.disk import canonical
from pfl.engines.transport.wire import Sizes
from pfl.extras.sites.transport import SiteError


def one_client(data: FederatedData, local: int, client: int) -> DataView:
    """Return a site's data: one client, under the server's number for it.

    Access to another client raises a :class:`SiteError`.

    Args:
        data: The site's data.
        local: Index of the client in the data.
        client: Index of the client for the server.
    """

    def split(asked: int, name: DataSplit) -> ClientSplit:
        if asked not in (client, NO_CLIENT):
            raise SiteError(f"this is the site of client {client}, not of {asked}")
        return data.split(NO_CLIENT if asked == NO_CLIENT else local, name)

    return replace(DataView.of(data), split=split)


class Known(NamedTuple):
    """What a server knows of a client at a site.

    Attributes:
        sizes: Number of samples of each split.
        label_counts: (C,) training samples of each class; ``None`` if unknown.
        data: Hash of the data.
    """

    sizes: Sizes
    label_counts: Sequence[int] | None
    data: str


def at_sites(data: FederatedData, sites: Mapping[int, Known], real: bool = True) -> DataView:
    """Return the server's data: the sizes that sites report, and samples without a site.

    Args:
        data: The server's own data; samples of clients with a site are never read from it.
        sites: What each site has told of its client.
        real: Whether they are real ones; see :class:`~pfl.core.data_view.DataView`.

    Raises:
        SiteError: A client of the data has no site.
    """
    if missing := [client for client in members(data) if client not in sites]:
        names = ", ".join(map(str, missing[:10]))
        raise SiteError(
            f"{len(sites)} sites connected, but none for these clients: {names}; start them, or "
            f"lower data.num_clients, which is {data.num_clients}"
        )

    def split(client: int, name: DataSplit) -> ClientSplit:
        if client not in sites or name == "public":
            return data.split(client, name)
        counts = sites[client].label_counts if name == "train" else None
        return _Distant(client, getattr(sites[client].sizes, name, 0), counts)

    def rows(client: int, name: Split) -> NoReturn:
        raise SiteError(f"the rows of client {client} are at its site")

    def description() -> dict[str, Any]:
        # The hash is that of the sites' data if the data are not here.
        hashes = {str(client): site.data for client, site in sites.items()}
        return {"hash": canonical.digest(hashes), **data.description()}

    changed = {"split": split, "rows": rows, "description": description}
    name = type(data).__name__
    return replace(DataView.of(data), stands_for=name, real=real, **changed)  # type: ignore[arg-type]


class _Distant:
    """A split at a site, of which only sizes are known.

    Attributes:
        label_counts: (C,) samples of each class; ``None`` if unknown.
        augmented: ``False``; the site handles augmentation.
    """

    augmented = False

    def __init__(self, client: int, size: int, counts: Sequence[int] | None) -> None:
        self._client, self._size = client, size
        self.label_counts = None if counts is None else torch.tensor(counts)

    @property
    def targets(self) -> Tensor:
        """Raise: samples stay at their site."""
        return self._refuse()

    def __len__(self) -> int:
        return self._size

    def batch(self, positions: Tensor, rng: torch.Generator | None = None) -> Batch:
        """Raise: samples stay at their site."""
        return self._refuse()

    def _refuse(self) -> NoReturn:
        raise SiteError(f"the samples of client {self._client} stay at its site")
