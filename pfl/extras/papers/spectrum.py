"""Singular values of the classifier over rounds.

UniVarFL (Fig. 1) claims that they decay fast under label skew.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from pfl.callbacks.analysis import Analysis
from pfl.core.client import ClientModule
from pfl.core.types import Result, RoundResult
from pfl.federation.run import Row, Run


class ClassifierSpectrum(Analysis):
    """Singular values of the last linear layer's weight, relative to the largest.

    There are rows for the clients that trained in the round, before averaging, and for the server's
    model if the layer is shared. The columns of the file are ``round, client`` (-1 is the server),
    ``index, value``.
    """

    file = "spectrum.csv"

    def __init__(self) -> None:
        self._trained: dict[int, Tensor] = {}

    def on_fit_start(self, run: Run) -> None:
        """Open the file, and discard the clients of an interrupted round."""
        super().on_fit_start(run)
        self._trained = {}

    def on_result(self, run: Run, result: Result) -> None:
        """Store a trained client's classifier, unless its result is discarded."""
        if not result.finite:
            return
        shared = {} if result.upload is None else result.upload.shared
        weight = {**shared, **result.kept}.get(classifier(run.module))
        if weight is not None:
            self._trained[result.client] = weight

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Append the rows of an evaluated round, and discard the round's clients."""
        super().on_round_end(run, result)
        self._trained = {}

    def rows(self, run: Run, result: RoundResult) -> Iterator[Row]:
        """Yield the singular values of each model."""
        models = dict(sorted(self._trained.items()))
        if (of_server := run.server.shared.get(classifier(run.module))) is not None:
            models[-1] = of_server
        for client, weight in models.items():
            # A server with one model for each client stacks them and has no single one.
            if weight.dim() != 2:
                continue
            values = torch.linalg.svdvals(weight.cpu().double())
            for index, value in enumerate((values / values[0]).tolist()):
                yield {"round": result.round, "client": client, "index": index, "value": value}


def classifier(module: ClientModule) -> str:
    """Return the name of the last linear layer's weight.

    Raises:
        ValueError: The network has no linear layer.
    """
    names = [name for name, layer in module.net.named_modules() if isinstance(layer, nn.Linear)]
    if not names:
        raise ValueError(f"{type(module.net).__name__} has no linear layer to use as classifier")
    return ".".join(filter(None, ("net", names[-1], "weight")))
