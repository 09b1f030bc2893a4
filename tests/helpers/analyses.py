"""A small analysis, for tests of behaviour common to all analyses."""

from __future__ import annotations

from pfl.callbacks.analysis import Analysis
from pfl.core.data import holders


class Norms(Analysis):
    """An analysis that writes the norm of each client's personalised model."""

    file = "norms.csv"

    def rows(self, run, result):
        for client in holders(run.data, "train"):
            parameters = run.personal(client).module.parameters()
            norm = sum(float(p.detach().square().sum()) for p in parameters) ** 0.5
            yield {"round": result.round, "client": client, "norm": norm}
