"""Numbers reported by a method about its clients' models."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pfl.callbacks.analysis import Analysis
from pfl.core.data import holders
from pfl.core.types import RoundResult
from pfl.federation.run import Row, Run


class ModelNumbers(Analysis):
    """Numbers reported by a method about each client's personalised model.

    Absent clients are included.

    The file has the columns ``round, client, samples`` and those of
    :meth:`~pfl.core.client.ClientModule.describe`.

    Raises:
        ValueError: At the start, if the method reports no numbers.
    """

    file = "numbers.csv"

    def on_fit_start(self, run: Run) -> None:
        """Reject a method that reports no numbers."""
        super().on_fit_start(run)
        if not run.module.describe():
            name = type(run.module).__name__
            raise ValueError(f"ModelNumbers: {name} reports no numbers (its describe() is empty)")

    def rows(self, run: Run, result: RoundResult) -> Iterator[Row]:
        """Yield a row for each client with training data."""
        for client in holders(run.data, "train"):
            module, samples = run.personal(client).module, len(run.data.split(client, "train"))
            with torch.no_grad():
                numbers = {name: float(value) for name, value in module.describe().items()}
            yield {"round": result.round, "client": client, "samples": samples, **numbers}
