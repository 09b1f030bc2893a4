"""What all methods for adapted networks have in common."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_modules import (
    MRMTL,
    DualLoRA,
    FedAvg,
    FedOTP,
    FedSALoRA,
    FFALoRA,
    FLoRA,
    Local,
    LoRA,
    SplitNet,
)
from lightning_modules.nets import ToyTowers
from pfl.engines.threads import ThreadsEngine
from tests.engines.agreement import SIZES, fit, same
from tests.helpers import federation
from tests.helpers.adapters import adapted
from tests.helpers.federation import HEAVY, SGD
from tests.helpers.toy import blobs, mlp

METHODS = (FedSALoRA, FFALoRA, FLoRA, DualLoRA, MRMTL)


@pytest.mark.parametrize("method", METHODS, ids=lambda kind: kind.__name__)
def test_engines_agree_with_dropout_on(method):
    """Bit for bit; what an adapter drops is a function of client, round and step."""
    runs = [
        fit(method(adapted(mlp(), dropout=0.3), optimizer=HEAVY), engine)
        for engine in ("sequential", ThreadsEngine(workers=2))
    ]
    assert runs[1].header["engine"].startswith("threads")
    assert same(*runs)
    still = fit(method(adapted(mlp()), optimizer=HEAVY), "sequential")
    assert still.fingerprint != runs[0].fingerprint


@pytest.mark.parametrize("method", [*METHODS, FedOTP], ids=lambda kind: kind.__name__)
def test_the_header_counts_the_numbers_of_an_upload(method):
    """Also of factors that the server does not average, and of a prompt beside the network."""
    net = ToyTowers(mlp()) if method is FedOTP else adapted(mlp())
    run = federation.fit(method(net, optimizer=SGD), blobs(SIZES), 1)
    counted = int(run.header["travels"].split(" of ")[0])
    assert counted > 0
    assert run.history[-1]["comm/bytes_up"] == 4 * counted * len(SIZES)


@pytest.mark.parametrize("method", METHODS, ids=lambda kind: kind.__name__)
def test_new_adapters_leave_the_networks_bits(method):
    """B = 0 before any round."""
    x = torch.randn(4, 5)
    assert torch.equal(method(adapted(mlp())).eval()(x), mlp().eval()(x))


HEADS = {
    "FedSA-LoRA": (FedSALoRA, Local, {}),
    "FedSA-LoRA, shared": (FedSALoRA, FedAvg, {"head": "shared"}),
    "FFA-LoRA": (FFALoRA, FedAvg, {}),
    "FFA-LoRA, kept": (FFALoRA, Local, {"head": "kept"}),
    "FLoRA": (FLoRA, FedAvg, {"broadcast": "dense"}),
    "DualLoRA": (DualLoRA, FedAvg, {"form": "F", "gate": "fixed", "weighting": "samples"}),
}


@pytest.mark.parametrize(("method", "other", "options"), HEADS.values(), ids=HEADS)
def test_rank_zero_is_tuning_of_the_head(method, other, options):
    """With the same fingerprint: of the averaged heads, or of each client's own."""
    run, plain = (
        federation.fit(kind(LoRA(mlp(), rank=0), optimizer=SGD, **own), blobs())
        for kind, own in ((method, options), (other, {}))
    )
    assert run.fingerprint == plain.fingerprint


class Body(nn.Module):
    """A backbone that peft adapts."""

    def __init__(self, config):
        super().__init__()
        import peft

        layers = nn.Sequential()
        layers.add_module("first", nn.Linear(5, 6))
        self.adapted = peft.get_peft_model(layers, config)

    def forward(self, x):
        return self.adapted(x).relu()


@pytest.mark.parametrize("method", [FedSALoRA, FFALoRA, DualLoRA], ids=lambda kind: kind.__name__)
def test_adapters_of_peft_are_known_by_their_names(method):
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    net = SplitNet(Body(peft.LoraConfig(r=2, target_modules=["first"])), nn.Linear(6, 3))
    module = method(net, optimizer=SGD)
    run = federation.fit(module, blobs(), 2)
    sent = {name for name in run.server.shared if "lora" in name}
    factors = {"FedSALoRA": {"A"}, "FFALoRA": {"B"}, "DualLoRA": {"A", "B"}}[method.__name__]
    assert {name.split("lora_")[1][0] for name in sent} == factors
    assert not any("base_layer" in name for name in (*run.server.shared, *run.kept.get(0, {})))
