"""What adapters drop does not depend on the engine."""

import pytest
import torch

from lightning_modules import FedAvg, LoRA
from pfl.core.seeds import scoped
from pfl.engines.threads import ThreadsEngine
from tests.engines.agreement import fit
from tests.helpers.federation import SGD
from tests.helpers.toy import mlp


# With two workers, threads do not depend on how many cores there are.
@pytest.mark.parametrize(
    ("name", "engine"),
    [("threads", ThreadsEngine(2)), ("vectorised", "vectorised"), ("processes", "processes")],
)
def test_engines_agree_with_dropout_on(name, engine):
    def run(engine):
        with scoped(1):
            net = LoRA(mlp(), rank=2, targets=["backbone.*"], dropout=0.5)
        return fit(FedAvg(net, optimizer=SGD), engine, rounds=2)

    one, other = run("sequential"), run(engine)
    assert other.header["engine"].startswith(name)
    for entry, value in one.server.shared.items():
        assert torch.allclose(other.server.shared[entry], value, atol=1e-5)
    assert name == "vectorised" or one.fingerprint == other.fingerprint
