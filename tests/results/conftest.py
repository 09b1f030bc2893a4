from __future__ import annotations

from functools import partial

import pytest
import torch

from lightning_modules.fedas import FedAS
from lightning_modules.fedavg import FedAvg
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop
from tests.helpers.toy import blobs, mlp

SGD = partial(torch.optim.SGD, lr=0.1)


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """Two finished runs of the loop: FedAS and FedAvg, three rounds each."""
    root = tmp_path_factory.mktemp("runs")
    found = {}
    for kind in (FedAS, FedAvg):
        loop = FederatedLoop(
            rounds=3,
            sampler=UniformSampler(0.7),
            progress=False,
            default_root_dir=str(root),
            name=kind.__name__,
            seed=3,
        )
        config = f"seed: 3\nmodel: {{class_path: lightning_modules.{kind.__name__}}}\n"
        found[kind.__name__] = loop.fit(kind(mlp(), optimizer=SGD), blobs(), config=config)
    return found
