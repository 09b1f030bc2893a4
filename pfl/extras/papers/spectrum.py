"""Singular values of the classifier over rounds.

UniVarFL (Fig. 1) claims that they fall off fast where labels are skewed.
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
    """Writes the singular values of the last linear layer's weight, divided by the largest.

    They are those of the clients that trained in the round, before averaging, and of the server's
    model if the layer is shared. The columns of the file are ``round, client`` (-1 is the server),
    ``index, value``.
    """

    file = "spectrum.csv"

    def __init__(self) -> None:
        self._trained: dict[int, Tensor] = {}

    def on_fit_start(self, run: Run) -> None:
        """Open the file, and forget the clients of an interrupted round."""
        super().on_fit_start(run)
        self._trained = {}

    def on_result(self, run: Run, result: Result) -> None:
        """Store the classifier of a client that has trained, unless its result is discarded."""
        if not result.finite:
            return
        shared = {} if result.upload is None else result.upload.shared
        weight = {**shared, **result.kept}.get(classifier(run.module))
        if weight is not None:
            self._trained[result.client] = weight

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Append the rows of an evaluated round, and forget the round's clients."""
        super().on_round_end(run, result)
        self._trained = {}

    def rows(self, run: Run, result: RoundResult) -> Iterator[Row]:
        """Yield the singular values of each model."""
        models = dict(sorted(self._trained.items()))
        if (of_server := run.server.shared.get(classifier(run.module))) is not None:
            models[-1] = of_server
        for client, weight in models.items():
            # A server with one model for each client stacks them, and has none of its own.
            if weight.dim() != 2:
                continue
            values = torch.linalg.svdvals(weight.cpu().double())
            for index, value in enumerate((values / values[0]).tolist()):
                yield {"round": result.round, "client": client, "index": index, "value": value}


def classifier(module: ClientModule) -> str:
    """Return the name of the weight of a network's last linear layer.

    Raises:
        ValueError: The network has no linear layer.
    """
    names = [name for name, layer in module.net.named_modules() if isinstance(layer, nn.Linear)]
    if not names:
        raise ValueError(f"{type(module.net).__name__} has no linear layer to use as classifier")
    return ".".join(filter(None, ("net", names[-1], "weight")))
