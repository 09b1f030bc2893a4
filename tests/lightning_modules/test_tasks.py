"""Sets whose best loss is known: methods come close to it under their task's own loss."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from datamodules import IID, TensorData
from lightning_modules import FedAvg
from pfl.core.seeds import generator, scoped
from pfl.core.task import MultiLabel
from pfl.testing.federation import fit

LABELS, INPUTS = 4, 6


def test_labels_are_predicted_as_well_as_their_law_allows():
    """Label l is there with probability sigmoid(w_l x): its entropy is the least loss."""
    rng = generator(0, "labels")
    x = torch.randn(3000, INPUTS, generator=rng)
    law = (x @ torch.randn(INPUTS, LABELS, generator=rng)).sigmoid()
    y = torch.bernoulli(law, generator=rng).long()
    data = TensorData({"x": x, "y": y}, 5, IID(), batch_size=32)
    assert data.task == MultiLabel()
    with scoped(0):
        net = nn.Linear(INPUTS, LABELS)
    sgd = partial(torch.optim.SGD, lr=1.0)
    run = fit(FedAvg(net, optimizer=sgd, task=data.task), data, rounds=12)
    least = -(y * law.log() + (1 - y) * (1 - law).log()).mean().item()
    assert abs(run.summary["test/personal/loss/last"] / least - 1) < 0.05
