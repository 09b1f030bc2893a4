"""A stack tells of each client whether its own numbers are finite."""

from __future__ import annotations

import math

import pytest
import torch

from lightning_modules.fedavg import FedAvg
from pfl.core.types import Broadcast
from pfl.engines.sequential import SequentialEngine
from pfl.engines.vectorised import VectorisedEngine
from tests.helpers.federation import SGD, context, job
from tests.helpers.toy import blobs, mlp


class LossAlone(FedAvg):
    """Client 1 has a term that is no number, and which no weight depends on."""

    def losses(self, batch):
        marked = batch.x[:, 0].isinf()
        found = super().losses(batch._replace(x=batch.x.nan_to_num(posinf=1.0)))
        return {**found, "mark": torch.where(marked, math.nan, 0.0).sum()}


class WeightsAlone(FedAvg):
    """Client 1 uploads a weight that is no number; its losses are numbers."""

    def upload(self, info):
        found = super().upload(info)
        if info.client == 1:
            found.shared["net.head.bias"][0] = math.nan
        return found


@pytest.mark.parametrize("engine", [SequentialEngine, VectorisedEngine])
@pytest.mark.parametrize("method", [LossAlone, WeightsAlone])
def test_either_the_loss_or_the_weights_are_enough(method, engine):
    data = blobs()
    if method is LossAlone:
        data.splits["train"][1][0][:, 0] = math.inf
    module = method(mlp(), optimizer=SGD)
    used = engine()
    line = used.setup(context(module, data))
    assert engine is SequentialEngine or line.startswith("vectorised"), line
    sent = Broadcast({name: module.state_dict()[name].clone() for name in module.shared_names()})
    results = list(used.train([job(data, client, sent) for client in range(3)]))
    assert [result.finite for result in results] == [True, False, True]
    bad = results[1]
    assert all(map(math.isfinite, bad.train.values())) == (method is WeightsAlone)
    weights = bad.upload.shared.values()
    assert all(value.isfinite().all() for value in weights) == (method is LossAlone)
