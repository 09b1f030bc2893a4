"""The scores of predicting each client's class frequencies, without training."""

from __future__ import annotations

from typing import Any

import torch

from pfl.core.data import FederatedData, holders
from pfl.federation.summary import MEANS
from pfl.training.metrics import Scorer


def scored(data: FederatedData, score: str | None) -> dict[str, Any] | None:
    """Return the partition's hash and test scores; ``None`` if the task has no classes.

    A client's logits are the logarithms of the class frequencies in its training samples, the same
    for every test sample: the most frequent class is predicted.

    The worst tenth of ``score`` is returned too; ``None`` is the main score.
    """
    classes = data.num_classes
    if classes is None:
        return None
    scorer = Scorer(data.task, data.outputs, data.metrics)
    answers, sizes = [], []
    for client in holders(data, "test"):
        test = data.split(client, "test")
        counts = torch.bincount(data.split(client, "train").targets, minlength=classes)
        # A class without training samples is unlikely, not impossible.
        prior = ((counts + 1e-6) / (counts + 1e-6).sum()).log()
        answers.append((prior.expand(len(test), -1), test.targets))
        sizes.append(len(test))
    name = score or next(iter(scorer.better))
    scores = scorer.over_clients(scorer.scores(answers), sizes, "test/personal")
    wanted = {*scorer.better, *(name + ending for ending in MEANS)}
    short = {long.rpartition("/")[2]: value for long, value in scores.items()}
    kept = {key: value for key, value in short.items() if key in wanted}
    return {"partition": data.description()["hash"], "last": kept, "best_by_val": kept}
