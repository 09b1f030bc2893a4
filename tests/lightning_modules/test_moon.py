"""MOON: the invariants in docs/methods."""

import math

import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from lightning_modules.moon import MOON
from lightning_modules.nets import Projected
from pfl.core.types import Batch, Broadcast
from pfl.training import client_round
from tests.helpers.federation import HEAVY, SGD, close, context, equal, job
from tests.helpers.toy import blobs, mlp, normed


def make(net, **options):
    return MOON(net, out_dim=4, **options)


def shared(module, shift=0.0):
    state = module.state_dict()
    return {name: state[name].clone() + shift for name in module.shared_names()}


def test_equal_models_give_log_2_and_no_gradient():
    """Invariant 2."""
    module, x = make(mlp()), blobs().split(0, "train").x
    with torch.no_grad():
        module.receive(Broadcast(shared(module, 0.1)), job(blobs()).info)
    terms = torch.stack(
        [module.losses(Batch(row[None], torch.tensor([0])))["contrast"] for row in x]
    )
    assert torch.allclose(terms, torch.full((9,), math.log(2)), atol=1e-6)
    grads = torch.autograd.grad(terms.sum(), list(module.net.backbone.parameters()))
    assert all(g.abs().max() < 1e-6 for g in grads)


def test_the_received_model_and_the_previous_one_do_not_move():
    """Invariant 4.

    Batch norm, momentum and weight decay; the previous model changes only when training ends.
    """
    data, module = blobs(), MOON(normed(), optimizer=HEAVY, epochs=2, out_dim=4)
    sent = shared(module, 0.1)
    first = client_round.train(context(module, data), job(data, broadcast=Broadcast(sent)))
    for name, value in module.received.module.state_dict().items():
        if value.is_floating_point():
            assert torch.equal(value, sent[f"net.backbone.{name}"])
    (phase, _) = module.plan()
    module.plan, before = (lambda: [phase]), first.kept
    again = client_round.train(
        context(module, data), job(data, kept=before, broadcast=Broadcast(sent))
    )
    assert phase.name == "local"
    assert equal({n: again.kept[n] for n in before}, before)
    assert not any(
        p.requires_grad for p in (*module.received.buffers(), *module.previous.buffers())
    )


def test_the_objective_by_hand():
    """CE + mu * cross-entropy of the logits [g, p] / tau with target 0."""
    module, (x, y) = make(mlp(), mu=5.0, tau=0.5), blobs().splits["train"][0]
    module.previous.module.projector[2].weight.add_(0.3)
    module.received.module.projector[2].bias.sub_(0.2)
    z, net = module.net.backbone(x), module.net
    pair = [cosine_similarity(z, other(x)) for other in (module.received, module.previous)]
    contrastive = cross_entropy(torch.stack(pair, 1) / 0.5, torch.zeros(9, dtype=torch.long))
    terms = module.losses(Batch(x, y))
    assert terms["ce"].item() == pytest.approx(cross_entropy(net.head(z), y).item())
    assert terms["contrast"].item() == pytest.approx(5 * contrastive.item(), abs=1e-5)


def test_the_previous_model_is_the_one_after_the_last_participation():
    data, module = blobs(), make(mlp(), optimizer=SGD)
    result = client_round.train(
        context(module, data), job(data, broadcast=Broadcast(shared(module)))
    )
    own = {n.replace("previous.module", "net.backbone"): v for n, v in result.kept.items()}
    own.pop("participated")
    assert close(own, {n: v for n, v in result.upload.shared.items() if "backbone" in n})


def test_without_a_projector_features_are_contrasted():
    module = MOON(mlp(), projector=False)
    assert not isinstance(module.net, Projected)
    assert isinstance(MOON(mlp()).net, Projected)
    assert MOON(mlp()).net.features == 256
