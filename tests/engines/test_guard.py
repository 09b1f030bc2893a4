"""Before a stack is used, two clients play both ways: a method that is wrong stacked is found."""

import re

import pytest
import torch
from torch import nn

from lightning_modules.fedper import FedPer
from lightning_modules.perfedavg import PerFedAvg
from pfl.core.state import clone, fingerprint
from pfl.core.types import Outcome
from pfl.engines.guard import disagreement
from pfl.loop import FederatedLoop
from tests.engines.agreement import fit, module_of
from tests.helpers.federation import HEAVY, LacksKernel, context
from tests.helpers.toy import blobs, mlp, normed
from tests.testing import broken
from tests.testing.broken_rounds import ScalesBySamples


class MarksPadding(broken.Method):
    """An entry that its objective computes of padding too."""

    def losses(self, batch):
        return Outcome(super().losses(batch), {"visits": self(batch.x).mean()})


class MixesSamples(broken.Method):
    """Its losses do not see that every logit depends on all samples of the batch."""

    def forward(self, x):
        return self.net(x) + self.net(x).mean()


class Renormalises(broken.Method):
    """Its embedding makes vectors short as they are read, those of padding too."""

    def __init__(self, net, **options):
        super().__init__(net, **options)
        self.table = nn.Embedding.from_pretrained(torch.ones(3, 3), freeze=False, max_norm=0.1)

    def forward(self, x):
        return self.net(x) + self.table((x[:, 0] > 0).long())


class Branches(broken.Method):
    """A branch on a value cannot be stacked at all."""

    def losses(self, batch):
        terms = super().losses(batch)
        return terms if terms["ce"] > 0 else {"ce": terms["ce"] * 2}


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (
            broken.ForgetsWeight,
            r"ForgetsWeight gives different numbers when stacked: the .* \(client 1",
        ),
        (broken.WeighsByItsOwnLoss, r"the \w+ visits \(client 1"),
        (MarksPadding, r"the \w+ visits \(client 1"),
        (ScalesBySamples, r"ScalesBySamples gives different numbers when stacked"),
        (MixesSamples, r"the tested logits \(client 1"),
        (Renormalises, r"the forward pass writes to the parameter 'table\.weight', for the"),
        (Branches, r"Branches fails when stacked: RuntimeError"),
    ],
)
def test_a_method_that_is_wrong_when_stacked_runs_sequentially(method, sentence):
    alone = fit(method(mlp(), optimizer=HEAVY), "sequential")
    guarded = fit(method(mlp(), optimizer=HEAVY), "vectorised")
    said = guarded.header["engine"]
    assert said.startswith("sequential, not vectorised: ")
    assert re.search(sentence, said)
    assert guarded.fingerprint == alone.fingerprint


def test_a_method_that_is_right_stays_stacked():
    assert disagreement(context(broken.Method(mlp()), blobs())) is None


def test_what_cannot_be_stacked_in_half_precision_is_found():
    assert disagreement(context(LacksKernel(mlp()), blobs())) is None
    found = disagreement(context(LacksKernel(mlp()), blobs(), "bf16-mixed"))
    assert str(found).startswith("LacksKernel fails when stacked in bf16-mixed: ")


def test_gradients_within_the_objective_of_batch_norms_in_half_precision():
    """PyTorch 2.15 cannot stack them: clients are then trained one after another."""
    run = fit(module_of(PerFedAvg, normed), "vectorised", rounds=1, precision="bf16-mixed")
    assert all(value.isfinite().all() for value in run.server.shared.values())


def test_half_precision_is_stacked_where_it_can_be():
    assert disagreement(context(module_of(FedPer, normed), blobs(), "bf16-mixed")) is None


@pytest.mark.parametrize("sizes", [(1,), (0, 1), (1, 1), (3, 3), (0, 40, 2)])
def test_any_sizes_of_clients_can_be_checked(sizes):
    """One client plays both; who has nothing plays none."""
    assert disagreement(context(module_of(FedPer, mlp), blobs(sizes))) is None


def test_a_guard_changes_nothing():
    data = blobs()
    ctx = context(FedPer(mlp(), optimizer=HEAVY), data)
    before = fingerprint([clone(ctx.entries), ctx.template])
    modes = [child.training for child in ctx.module.modules()]
    stream = torch.get_rng_state()
    assert disagreement(ctx) is None
    assert fingerprint([clone(ctx.entries), ctx.template]) == before
    assert [child.training for child in ctx.module.modules()] == modes
    assert torch.equal(torch.get_rng_state(), stream)


def test_a_resumed_run_decides_as_the_first_did(tmp_path):
    """The guard plays from the initial values, whatever the checkpoint has made of them."""
    options = {"engine": "vectorised", "default_root_dir": str(tmp_path), "progress": False}
    first = FederatedLoop(1, **options).fit(broken.ForgetsWeight(mlp()), blobs())
    more = FederatedLoop(2, **options).fit(broken.ForgetsWeight(mlp()), blobs(), "last")
    assert more.round == 2
    assert more.header["engine"] == first.header["engine"]


def test_clients_of_few_equal_samples_play_unequal_parts():
    """Of four samples each, padding shows only where one of the two leaves a sample out."""
    found = disagreement(context(broken.ForgetsWeight(mlp()), blobs((4, 4, 4))))
    assert "gives different numbers when stacked" in str(found)
