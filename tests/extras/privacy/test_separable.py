"""Which methods can keep single samples private, and what the others are told."""

from __future__ import annotations

import copy
import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from lightning.fabric import Fabric

from lightning_modules import MOON, CD2PFed, FedAvg, FedBN
from lightning_modules.nets import CNN8, MLP
from pfl.core.client import ClientModule
from pfl.core.task import Classification, MultiLabel, Regression
from pfl.core.types import Outcome, Phase
from pfl.extras.privacy import separable
from pfl.extras.privacy.budget import _unseen
from pfl.extras.privacy.separable import unsupported_reason
from pfl.testing.federation import ToyFederation
from pfl.testing.toy import blobs, mlp, normed
from pfl.training.context import Context
from tests.helpers.discovery import facts, methods, subject
from tests.helpers.federation import LacksKernel

STATISTICS = "it computes statistics of the samples without noise"
COUPLED = "is not a mean over the samples of a batch"
COUNTS = "such as class counts"


def verdict(module, data=None):
    """What is said of a method whose clients tell no class counts."""
    federation = ToyFederation(module, data)
    job = federation.job(0)
    return unsupported_reason(
        federation.context, replace(job, info=replace(job.info, label_counts=None))
    )


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.__name__)
def test_methods_are_refused_by_name_and_reason(method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = verdict(subject(method).module())
    reason = facts(method).not_private
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert method.__name__ in found
        assert reason in found


@pytest.mark.parametrize(
    ("net", "how"),
    [
        (normed(), "give the network group norms"),
        (MLP(3, (5,), batch_norm=True), r"\(net\.batch_norm: false\)"),
        (CNN8(3, (1, 32, 32)), r"\(net\.norm: group\)"),
    ],
)
def test_batch_norms_are_refused_and_the_networks_own_option_is_named(net, how):
    found = unsupported_reason(ToyFederation(FedBN(net)).context, None)
    assert re.search(f"mixes the samples of a batch; .*{how}", found)


def test_a_loss_with_factors_of_classes_is_a_mean_over_samples():
    """Torch's would divide by the factors of a batch, so that a single sample's cancelled out."""
    task = Classification(class_weights=(1.0, 2.0, 5.0))
    assert verdict(FedAvg(mlp(), task=task), blobs(task=task)) is None


class Hinged(ClientModule):
    """A term that couples samples, but only where outputs are small."""

    vectorizable = True

    def losses(self, batch):
        gap = (1e-4 - self(batch.x).square().mean()).clamp(min=0)
        return {**super().losses(batch), "floor": (1e4 * gap) ** 2}


class Straight(ClientModule):
    """A term without a value, but with a gradient."""

    vectorizable = True

    def losses(self, batch):
        product = self(batch.x).mean() ** 2
        return {**super().losses(batch), "silent": product - product.detach()}


class Keeping(ClientModule):
    """An objective that returns a row for each sample."""

    vectorizable = True

    def plan(self):
        return [Phase(name="local", objective=lambda b: Outcome(self.losses(b), {}, {"x": b.x}))]


class Halving(ClientModule):
    """A client that takes part of its samples."""

    vectorizable = True

    def plan(self):
        return [Phase(name="local", objective=self.losses, share=0.5)]


class Growing(ClientModule):
    """Steps that depend on the client."""

    vectorizable = True

    def plan(self):
        return [Phase(name="local", objective=self.losses, epochs=lambda own, info: info.round)]


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (Hinged, f"its term 'floor' {COUPLED}"),
        (Straight, f"its term 'silent' {COUPLED}"),
        (Keeping, "it keeps 'x'"),
        (Halving, "it chooses samples"),
        (Growing, "its number of steps differs"),
    ],
)
def test_what_no_clip_bounds_is_found(method, reason):
    assert reason in verdict(method(mlp()))


def test_a_loss_scale_is_refused():
    fabric = Fabric(accelerator="cpu", devices=1, precision="16-mixed")
    context = Context(FedAvg(mlp()), blobs(), fabric)
    context.scaler = torch.amp.GradScaler("cpu")
    job = ToyFederation(FedAvg(mlp())).job(0)
    assert "16-mixed cannot scale the losses" in unsupported_reason(context, job)


def said_in(precision, module):
    """Return what is said of a method in a precision."""
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    job = ToyFederation(copy.deepcopy(module)).job(0)
    return unsupported_reason(Context(module, blobs(), fabric), replace(job, kept={}))


def test_what_torch_lacks_in_half_precision_is_said_before_the_first_step():
    assert verdict(LacksKernel(mlp())) is None
    found = said_in("bf16-mixed", LacksKernel(mlp()))
    assert found.startswith("torch cannot compute single samples' gradients of this network in bf")
    assert "try 32-true (RuntimeError: not implemented for 'BFloat16')" in found


def test_what_torch_lacks_in_every_precision_is_said_before_the_first_step():
    """An instance norm with running statistics writes them for all samples at once."""
    norm, net = torch.nn.InstanceNorm1d(1, track_running_stats=True), mlp()
    around = (torch.nn.Unflatten(1, (1, -1)), norm, torch.nn.Flatten())
    net.backbone = torch.nn.Sequential(*around, net.backbone)
    found = said_in("32-true", FedAvg(net))
    assert found.startswith("torch cannot compute single samples' gradients of this network in 32")


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
@pytest.mark.parametrize("method", [CD2PFed, FedAvg, MOON])
def test_precisions_in_which_torch_has_it(method, precision):
    """The check with dropout leaves torch's stream as it was."""
    net = mlp()
    net.backbone.append(torch.nn.Dropout())
    module = method(net)
    before = torch.get_rng_state()
    assert said_in(precision, module) is None
    assert torch.equal(torch.get_rng_state(), before)


class Attends(torch.nn.Module):
    """Drops by a function, at the rate of a layer, as attention of transformers does."""

    def __init__(self):
        super().__init__()
        self.dropout = torch.nn.Dropout(0.3)

    def forward(self, x):
        return torch.nn.functional.dropout(x, self.dropout.p, self.training)


def test_dropout_by_a_function_couples_no_samples():
    net = mlp()
    net.backbone.append(Attends())
    before = torch.get_rng_state()
    assert verdict(FedAvg(net)) is None
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "task", [Classification(), MultiLabel(), Regression(quantiles=(0.1, 0.5, 0.9))]
)
def test_random_samples_of_a_site_have_targets_as_its_own(task):
    data = blobs(task=task)
    own, given = data.split(0, "train"), SimpleNamespace(data=_unseen(data, 0))
    random = separable._batch(given, own)
    assert random.y.shape[1:] == own.targets.shape[1:]
    assert random.y.is_floating_point() == own.targets.is_floating_point()


def test_the_check_leaves_the_run_as_it_was():
    federation = ToyFederation(FedAvg(mlp()))
    before = {name: value.clone() for name, value in federation.context.entries.items()}
    assert unsupported_reason(federation.context, federation.job(0)) is None
    assert all(before[name].equal(value) for name, value in federation.context.entries.items())
