"""LP-FT: the invariants in docs/methods."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from lightning_modules.lp_ft import LPFT
from pfl.core.state import clone
from pfl.core.types import Broadcast
from pfl.training import client_round
from tests.helpers import facts
from tests.helpers.federation import HEAVY, SGD, close, context, equal, job
from tests.helpers.toy import blobs, mlp, normed

FACTS = {
    LPFT: facts.Facts(
        travels=("net.",),
        floats=facts.NET,
        fewer={"lp_epochs": 2, "ft_epochs": 2},
        variants=[{"ft_bn": "train", "lp_epochs": 0}],
        needs_parts=True,
    ),
}


def tuned(module, data=None, client=0, start=None, **job_options):
    """Return the states before and after a client's personalisation, in float64."""
    data = data or blobs()
    ctx = context(module, data, "64-true")
    shared = clone(start or {n: module.state_dict()[n] for n in module.shared_names()})
    test = job(data, client, Broadcast(shared), **job_options)
    client_round.test(ctx, replace(test, splits=("test",)))
    return shared, clone(module.state_dict())


@pytest.mark.parametrize("net", [mlp, normed])
def test_both_phases_by_hand(net):
    """Invariant 4. The head on features in eval mode, then everything at a tenth of the rate.

    Full batches; each phase has momentum of its own, and batch norms stay in eval mode.
    """
    data, own = blobs(batch_size=99), net().double().eval()
    _, after = tuned(LPFT(net(), optimizer=HEAVY, lp_epochs=5, ft_epochs=3), data)
    split = data.split(0, "train")
    x = split.x.double()
    features = own.backbone(x).detach()

    def train(parameters, logits, epochs, lr):
        optimizer = HEAVY(parameters)
        for group in optimizer.param_groups:
            group["lr"] = lr
        for _ in range(epochs):
            optimizer.zero_grad()
            cross_entropy(logits(), split.targets).backward()
            optimizer.step()

    train(own.head.parameters(), lambda: own.head(features), 5, 0.1)
    train(own.parameters(), lambda: own(x), 3, 0.01)
    assert close(after, {f"net.{name}": value for name, value in own.state_dict().items()}, 1e-10)


def test_a_body_under_a_fitted_head_hardly_moves():
    """Invariants 5 and 6.

    Its gradient is the residual's, which the probe takes away; without one it moves far more.

    Also 6: features drift by 0 under the probe, then by 0.76, under fine-tuning alone by 2.73.
    """
    drifts = {}
    x = blobs().split(0, "train").x.double()
    for epochs in ((300, 0), (300, 10), (0, 10)):
        options = {"lp_epochs": epochs[0], "ft_epochs": epochs[1], "ft_lr": 0.1}
        module = LPFT(mlp(), optimizer=SGD, **options)
        before = module.net.backbone.double()(x).detach()
        tuned(module)
        drifts[epochs] = (module.net.backbone(x) - before).norm(dim=1).mean().item()
    assert drifts[300, 0] == 0
    assert 0 < drifts[300, 10] < drifts[0, 10] / 3


def test_labels_of_the_test_are_not_used():
    """Invariant 9."""

    def model(shift):
        data = blobs()
        x, y = data.splits["test"][0]
        data.splits["test"][0] = (x, (y + shift) % 3)
        return tuned(LPFT(mlp(), optimizer=SGD), data)[1]

    assert equal(model(0), model(1))


def test_rates_fall_as_that_of_training_does():
    """In round 3 at decay 0.5 a step of the head is a quarter as long."""
    ways = []
    for round in (1, 3):
        module = LPFT(mlp(), optimizer=SGD, lp_epochs=1, ft_epochs=0, lr_decay=0.5)
        before, after = tuned(module, blobs(batch_size=99), round=round)
        ways.append(after["net.head.bias"] - before["net.head.bias"])
    assert torch.allclose(ways[1], ways[0] / 4)
