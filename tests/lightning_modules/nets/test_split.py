"""Backbone, head and last layers."""

from __future__ import annotations

import pytest
from torch import nn

from lightning_modules.nets import FrozenParts, LeNet5, LoRA, Projected, SplitNet, last_layers
from tests.helpers.messages import parts


def test_split_net_asks_for_sizes_it_cannot_read():
    with pytest.raises(ValueError, match=parts("Identity ~ features= ~ num_classes=")):
        SplitNet(nn.Flatten(), nn.Identity())
    net = SplitNet(nn.Flatten(), nn.Identity(), features=4, num_classes=4)
    assert (net.features, net.num_classes) == (4, 4)


@pytest.mark.parametrize(
    "build",
    [Projected, LoRA, lambda net: FrozenParts(net, ["*"])],
    ids=["Projected", "LoRA", "FrozenParts"],
)
def test_a_network_around_another_asks_for_its_parts(build):
    net = nn.Linear(5, 3)
    net.backbone = nn.Identity()
    with pytest.raises(TypeError, match=parts("SplitNet(backbone, head) ~ a Linear has no head")):
        build(net)


def test_last_layers():
    later, earlier = last_layers(LeNet5(10), 2, prefix="net.")
    assert later == ("net.backbone.9.*", "net.head.*")
    assert earlier == ("net.backbone.0.*", "net.backbone.3.*", "net.backbone.7.*")
    assert last_layers(LeNet5(10), 0)[0] == ()
    with pytest.raises(ValueError, match=parts("5 layers ~ 6")):
        last_layers(LeNet5(10), 6)
