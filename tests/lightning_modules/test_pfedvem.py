"""pFedVEM: the closed form of the confidence, the two objectives, what travels, and the server."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from lightning_modules.nets import SplitNet
from lightning_modules.pfedvem import PFedVEM
from pfl.core.types import Job
from pfl.federation.sampling import BernoulliSampler
from pfl.loop import FederatedLoop
from pfl.training import client_round
from tests.helpers import facts
from tests.helpers.federation import context, fit
from tests.helpers.toy import blobs, mlp, normed
from tests.lightning_modules.vem import (
    broadcast,
    broadcast_of,
    info,
    line,
    numbers,
    posterior,
)

FACTS = {
    PFedVEM: facts.Facts(
        travels=("net.backbone.", "server_head_"),
        stays=("net.head.", "confidence"),
        extra=("confidence",),
        floats=(facts.NET, facts.NET + 1),
        fewer={"head_epochs": 3, "epochs": 2},
        variants=[{"tau_timing": "after_head", "base_loss": "mean_head"}],
        stacks=[{"base_loss": "mean_head", "tau_timing": "after_head"}],
        serves={"server_momentum": ("momentum", 0.25)},
        draws="server_head_weight",
        needs_classes=True,
        needs_parts=True,
        not_private="phase 'head': its term 'nll' is not a mean over the samples of a batch",
    ),
}

# The round.


def run(module, data, kept=None, server=None, splits=()):
    job = Job(info(), kept or {}, server or broadcast_of(module), 3, splits)
    return client_round.train(context(module, data, "64-true"), job)


def kept_of(module):
    return {name: module.state_dict()[name].clone() for name in module.kept_names()}


def test_one_head_step_by_hand():
    """x = 2, y = 0, all means zero and no spread to speak of, so that softmax is (1/2, 1/2). The
    gradient of the nll is (-1/2, 1/2) for the biases and twice that for the weights, and the KL has
    none; at a rate of 0.1 the means become (0.1, -0.1) and (0.05, -0.05)."""
    module = line(lr_head=0.1, head_epochs=1, epochs=0, init_std=1e-5)
    posterior([[0.0], [0.0]], [0.0, 0.0], 1e-5, module)
    server = broadcast(module, [[0.0], [0.0]], [0.0, 0.0])
    result = run(module, numbers(2.0), kept_of(module), server)
    sent = {name: value.flatten().tolist() for name, value in result.upload.shared.items()}
    assert sent["server_head_weight"] == pytest.approx([0.1, -0.1], abs=1e-4)
    assert sent["server_head_bias"] == pytest.approx([0.05, -0.05], abs=1e-4)
    assert result.train["head/nll"] == pytest.approx(0.693147, abs=1e-4)


def test_each_phase_changes_its_own_part_only():
    """Invariant 7."""
    for epochs, moving in (((3, 0), "net.head."), ((0, 3), "net.backbone.")):
        module = PFedVEM(mlp(), head_epochs=epochs[0], epochs=epochs[1])
        working, server = context(module, blobs(), "64-true"), broadcast_of(module)
        module.receive(server, info())
        before = {name: value.clone() for name, value in module.state_dict().items()}
        client_round.train(working, Job(info(), {}, server, 3, ()))
        for name, value in module.state_dict().items():
            assert torch.equal(value, before[name]) != name.startswith(moving), name


def test_full_batch_head_steps_on_features_computed_once():
    """10 steps on the head; 5 epochs of 3 batches (9 samples, 4 a batch) on the base. The backbone
    sees the features in two chunks of 7 and 2, then 15 batches."""
    module = PFedVEM(mlp())
    seen = []
    module.net.backbone.register_forward_hook(lambda m, args, out: seen.append(len(args[0])))
    result = run(module, blobs())
    assert result.steps == 10 + 15
    assert result.samples == 10 * 9 + 5 * 9
    # A first look with two samples shows what draws.
    assert seen[:3] == [2, 7, 2]
    assert len(seen) == 1 + 2 + 15


def test_head_and_base_have_a_rate_each():
    head, base = PFedVEM(mlp(), lr_head=0.2, lr_base=0.03).plan()
    groups = [phase.optimizer([torch.zeros(1)]).param_groups[0] for phase in (head, base)]
    assert [group["lr"] for group in groups] == [0.2, 0.03]


@pytest.mark.filterwarnings("ignore:client 0 takes no step")
def test_one_sample_under_batch_norm_trains_the_head_alone_and_is_uploaded():
    """The base rests in eval mode while the head takes its 10 steps; then it can take none."""
    result = run(PFedVEM(normed()), blobs(sizes=(1,)))
    assert result.steps == 10
    assert result.upload is not None


def test_the_upload_pairs_the_new_mean_with_the_old_confidence():
    """tau = 4/3 as in test_confidence_by_hand, from the posterior before training and the new w."""
    module = line(lr_head=0.01)
    posterior([[1.0], [2.0]], [0.0, 1.0], 0.5, module)
    server = broadcast(module, [[0.0], [2.0]], [0.0, 0.0])
    result = run(module, numbers(1.0, -1.0, 2.0), kept_of(module), server)
    assert result.upload.extra["confidence"].item() == pytest.approx(4 / 3)
    mean = result.kept["net.head.mean_weight"]
    assert torch.equal(result.upload.shared["server_head_weight"], mean)
    assert not torch.equal(mean.flatten(), torch.tensor([1.0, 2.0]).double())
    assert not any("std" in name for name in result.upload.shared)


def test_algorithm_one_updates_the_confidence_after_the_head():
    """The kept tau = 7 drives the round; what goes up, and is kept, is that of the new posterior.
    Without head steps that is the 4/3 of test_confidence_by_hand."""
    module = line(tau_timing="after_head", head_epochs=0)
    posterior([[1.0], [2.0]], [0.0, 1.0], 0.5, module)
    server = broadcast(module, [[0.0], [2.0]], [0.0, 0.0])
    kept = kept_of(module) | {"confidence": torch.tensor(7.0).double()}
    module.load_state_dict(kept, strict=False)
    module.receive(server, info())
    assert module.confidence.item() == 7
    result = run(module, numbers(1.0, -1.0), kept, server)
    assert result.upload.extra["confidence"].item() == pytest.approx(4 / 3)
    assert result.kept["confidence"].item() == pytest.approx(4 / 3)


def test_personal_model_is_own_base_under_the_mean_and_global_model_the_servers():
    module = line()
    posterior([[1.0], [-1.0]], [0.5, 0.0], 0.5, module)
    module.eval()
    x = torch.tensor([[2.0]]).double()
    assert module(x).tolist() == [[2.5, -2.0]]
    module.load_global(broadcast(module, [[3.0], [0.0]], [0.0, 1.0]))
    assert module(x).tolist() == [[6.0, 1.0]]
    assert module.has_global_model()


def test_a_client_is_tested_as_training_left_it():
    """Before its base is averaged with that of the others, and not under what comes back."""
    unsaid, local, later = (
        fit(PFedVEM(mlp()), blobs(), 1, evaluate_at=points).history[-1]["test/personal/loss"]
        for points in (None, ["post_local"], ["post_broadcast"])
    )
    assert unsaid == local
    assert unsaid != later


# A client that trains without uploading.


def test_an_unsampled_client_keeps_its_head_and_gets_the_new_base():
    """Invariant 12.

    Every client trains and is tested; at probability 0.01 and minimum 1 of 3 the others'
    posteriors stay with them and their bases are thrown away."""
    loop = FederatedLoop(rounds=1, sampler=BernoulliSampler(0.01, minimum=1), progress=False)
    module = PFedVEM(mlp())
    start = {name: value.clone() for name, value in module.state_dict().items()}
    outcome = loop.fit(module, blobs())
    assert sorted(outcome.kept) == [0, 1, 2]
    heads = [kept["net.head.mean_weight"] for kept in outcome.kept.values()]
    assert not any(torch.equal(head, start["net.head.mean_weight"]) for head in heads)
    assert sum(torch.equal(h, outcome.server.shared["server_head_weight"]) for h in heads) == 1
    assert not any("backbone" in name for kept in outcome.kept.values() for name in kept)


@pytest.mark.parametrize(
    ("net", "told"),
    [
        (nn.Linear(3, 2), "needs a network's head and backbone apart: give Linear two parts"),
        (SplitNet(nn.Flatten(), nn.Sequential(mlp().head)), "one torch.nn.Linear"),
    ],
)
def test_the_head_must_be_one_linear_layer(net, told):
    with pytest.raises(TypeError, match=re.escape(told)):
        PFedVEM(net)
