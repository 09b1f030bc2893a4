"""Scores of a positive class, client by client against scikit-learn."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from lightning_modules import FedAvg
from pfl.core.seeds import generator
from pfl.core.task import Binary, Classification
from pfl.testing.federation import fit
from pfl.testing.toy import ToyData, mlp
from pfl.training.metrics import Scorer
from tests.helpers.messages import parts


def client(seed: int, samples: int, share: float):
    """Return logits that know something of the labels, and labels with a share of positives."""
    rng = generator(seed, "client")
    y = (torch.rand(samples, generator=rng) < share).long()
    logits = torch.randn(samples, 2, generator=rng)
    logits[:, 1] += y - 0.5
    return logits, y


def gaps_in_bins(chance, y):
    """Return the calibration error over 15 bins, as its definition reads."""
    bins = np.minimum((chance * 15).astype(int), 14)
    rows = [bins == number for number in range(15)]
    return sum(abs(chance[row].mean() - y[row].mean()) * row.mean() for row in rows if row.any())


def test_every_score_of_each_client_is_scikit_learns():
    clients = [client(1, 40, 0.3), client(2, 25, 0.8), client(3, 300, 0.1)]
    found = Scorer(Binary(), 2).scores(clients)
    for (logits, y), row in zip(clients, found, strict=True):
        chance, truth = logits.double().softmax(1)[:, 1].numpy(), y.numpy()
        guess = chance > 0.5
        assert row == pytest.approx(
            {
                "acc": sk.accuracy_score(truth, guess),
                "loss": sk.log_loss(truth, chance),
                "brier": sk.brier_score_loss(truth, chance),
                "ece": gaps_in_bins(chance, truth),
                "auroc": sk.roc_auc_score(truth, chance),
                "auprc": sk.average_precision_score(truth, chance),
                "sensitivity": sk.recall_score(truth, guess),
                "specificity": sk.recall_score(truth, guess, pos_label=0),
                "f1": sk.f1_score(truth, guess),
            },
            abs=1e-6,
        )


def toy(labels, task):
    samples = [(torch.randn(len(y), 5, generator=generator(7)), torch.tensor(y)) for y in labels]
    return ToyData(samples, outputs=2, task=task)


@pytest.mark.parametrize(
    ("task", "labels", "metric", "reason"),
    [
        (Binary(), [[1, 1, 1], [1, 1]], "torchmetrics.AUROC", "2 clients ~ targets ~ one class"),
        (Binary(), [[0, 0], [0, 0]], "torchmetrics.Recall", "2 clients ~ no target is positive"),
        (
            Classification(),
            [[0, 1], [1, 0]],
            "torchmetrics.classification.BinaryAveragePrecision",
            "Classification ~ same shape",
        ),
    ],
    ids=["one class", "no positive", "wrong task"],
)
def test_a_metric_that_no_client_has_ends_the_run_with_its_reason(task, labels, metric, reason):
    data = toy(labels, task)
    data.metrics = [metric]
    with pytest.raises(ValueError, match=parts(f"metric ~ {reason}")):
        fit(FedAvg(mlp(2), task=task), data, rounds=1)


@pytest.mark.parametrize(
    ("labels", "added", "ends"),
    [
        ([[1, 1], [1, 1], [0, 1]], True, True),
        ([[0, 1], [1, 1], [1, 1]], True, False),
        # The task's own metrics end no run.
        ([[1, 1], [1, 1], [1, 1]], False, False),
    ],
    ids=["held out", "one client", "own"],
)
def test_an_added_metric_that_only_a_held_out_client_has_ends_the_run(labels, added, ends):
    data = toy(labels, Binary())
    data.metrics, data.apart = ["torchmetrics.AUROC"] * added, {"unseen": (2,)}
    with pytest.raises(ValueError, match=parts("2 clients")) if ends else nullcontext():
        run = fit(FedAvg(mlp(2), task=Binary()), data, rounds=1)
        assert run.history[-1]["test/personal/auroc_clients"] == (1 if added else 0)
        assert run.history[-1]["test/personal/sensitivity_clients"] == 2
