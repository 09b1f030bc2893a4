"""Data without test samples, so that tuning cannot use them."""

from __future__ import annotations

from typing import Any

from pfl.core.data import ClientSplit, DataSource, members
from pfl.core.data_view import EmptySplit
from pfl.core.types import NO_CLIENT, DataSplit


class Blinded:
    """A data module whose test samples and held-out clients are hidden.

    Everything else is delegated to the data module.
    """

    def __init__(self, data: DataSource) -> None:
        self._data = data
        self._shown = {NO_CLIENT, *members(data)}
        # Clients with another role have no samples here.
        self.apart: dict[str, list[int]] = {}

    def split(self, client: int, name: DataSplit) -> ClientSplit:
        """Return a split of a client; the test split is empty."""
        found = self._data.split(client, name)
        if name == "test" or client not in self._shown:
            return EmptySplit(found.targets[:0], "a trial has no test samples")
        return found

    def pooled_test(self) -> ClientSplit | None:
        """Return ``None``: there is no pooled test set."""
        return None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._data, name)
