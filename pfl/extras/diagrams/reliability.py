"""Confidence and accuracy of the personal models, for reliability diagrams.

Guo et al., "On Calibration of Modern Neural Networks", ICML 2017. ``pfl test --reliability``
writes ``reliability.csv`` into the run folder, with a row for each client and each bin of
confidence that is not empty; ``pfl plot`` and ``pfl report`` draw it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from pfl.federation.evaluator import Evaluator
from pfl.training.client_round import outputs

BINS = 15
FILE = "reliability.csv"


def rows(evaluator: Evaluator) -> Iterator[dict[str, float]]:
    """Yield the rows of all clients.

    Raises:
        ValueError: The task has no classes.
    """
    data = evaluator.run.data
    if not data.task.has_classes:
        raise ValueError(f"confidence needs a task with classes, but the task is {data.task}")
    for client in range(data.num_clients):
        split = data.split(client, "test")
        if len(split) == 0:
            continue
        context = evaluator.run.personal(client)
        with torch.inference_mode():
            logits, labels = outputs(context, split)
            confidence, predicted = logits.float().softmax(-1).max(-1)
        for row in bins(confidence.cpu().numpy(), (predicted == labels).cpu().numpy()):
            yield {"round": evaluator.run.round, "client": client, **row}


def bins(confidence: NDArray[np.float32], correct: NDArray[np.bool_]) -> list[dict[str, float]]:
    """Return number of samples, mean confidence and accuracy of each bin that is not empty.

    There are 15 bins of equal width, as in the calibration error ``ece``; a border belongs to the
    bin above it.

    Args:
        confidence: (n,) largest probability of each prediction.
        correct: (n,) whether the prediction is correct.
    """
    borders = np.linspace(0, 1, BINS + 1, dtype=np.float32)
    place = np.clip(np.searchsorted(borders, confidence, side="right") - 1, 0, BINS - 1)
    return [
        {
            "bin": number,
            "samples": int((place == number).sum()),
            "confidence": float(confidence[place == number].mean()),
            "accuracy": float(correct[place == number].mean()),
        }
        for number in np.unique(place).tolist()
    ]
