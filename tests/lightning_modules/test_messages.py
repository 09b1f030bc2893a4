"""What each method sends and what stays with its clients; sizes of the papers' networks."""

from __future__ import annotations

import pytest
import torch

from lightning_modules import (
    CNN2,
    CNN3,
    CNN5,
    CNN8,
    PFAKD,
    FashionCNN,
    FedAS,
    FedSimSup,
    LeNet5,
    PFedHN,
    PFedVEM,
    ResNet18,
    UniVarFL,
)
from pfl.core.types import ClientInfo
from tests.helpers.discovery import build, facts, methods
from tests.helpers.toy import normed


@pytest.mark.parametrize("buffers", ["average", "local"])
@pytest.mark.parametrize("method", methods(), ids=lambda method: method.__name__)
def test_what_travels_and_what_stays(method, buffers):
    """Local statistics stay, too; integer counters of batch norms never travel."""
    if method is PFedHN and buffers == "average":
        with pytest.raises(ValueError, match="buffers must be one of local"):
            build(method, normed(), buffers=buffers)
        return
    module = build(method, normed(), buffers=buffers)
    stated = facts(method)
    counters = {n for n, v in module.state_dict().items() if not v.is_floating_point()}
    shared = {n for n in module.state_dict() if n.startswith(stated.travels)} - counters
    kept = {n for n in module.state_dict() if n.startswith(stated.stays)}
    if buffers == "local":
        statistics = {n for n in shared if "running_" in n}
        shared, kept = shared - statistics, kept | statistics
    assert {*module.shared_names()} == shared
    assert {*module.kept_names()} == kept
    assert module.extra == stated.extra


def supervised(classes, shape, hidden):
    """Build FedSimSup with the networks of its paper."""
    net = LeNet5(classes, shape, hidden=(120,))
    return FedSimSup(net, LeNet5(classes, shape, channels=(3, 6), hidden=(hidden,)))


@pytest.mark.parametrize(
    ("make", "down", "up"),
    [
        (lambda: supervised(10, (3, 32, 32), 48), 52_202, 0),
        (lambda: supervised(100, (3, 32, 32), 40), 63_092, 0),
        (lambda: supervised(62, (1, 28, 28), 40), 40_914, 0),
        (lambda: PFedVEM(LeNet5(10, channels=(16, 32))), 121_182, 1),
        (lambda: PFedVEM(CNN5(20)), 620_936, 1),
        (lambda: PFAKD(FashionCNN(10)), 115_776, 0),
        (lambda: PFAKD(CNN3(10)), 43_616, 0),
        (lambda: PFAKD(CNN3(10, head_split="fc_block")), 27_168, 0),
        (lambda: PFAKD(ResNet18(100)), 11_168_832, 0),
        (lambda: FedAS(CNN2(10)), 873_408, 1),
        # 161,594 parameters and two running statistics of each of 832 channels.
        (lambda: UniVarFL(CNN8(10)), 163_258, 0),
        (lambda: UniVarFL(CNN8(10), buffers="local"), 161_594, 0),
    ],
)
def test_traffic_of_the_papers_networks(make, down, up):
    """Floats down, and how many more go up."""
    module = make()
    upload = module.upload(ClientInfo(0, 9, torch.tensor([3, 3, 3])))
    assert sum(module.state_dict()[name].numel() for name in module.shared_names()) == down
    sent = (*upload.shared.values(), *upload.extra.values())
    assert sum(value.numel() for value in sent) == down + up
