"""FedAS's alignment as parts of any plan; its arithmetic is in ``test_fedas.py``."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_modules.layers import frozen
from lightning_modules.steps.alignment import Alignment
from lightning_modules.steps.phases import remember
from tests.helpers.messages import parts
from tests.helpers.toy import normed


class Client(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.previous = frozen(net.backbone)
        self.register_buffer("class_means", torch.zeros(net.num_classes, net.features))


def test_what_is_remembered_is_the_whole_backbone():
    client = Client(normed())
    values = remember(client.net.backbone, "previous").then({})
    assert values.keys() == {name for name in client.state_dict() if name.startswith("previous.")}
    for name, value in client.net.backbone.state_dict().items():
        assert torch.equal(values[f"previous.module.{name}"], value)


@pytest.mark.parametrize("wrong", [{"lr": 0}, {"epochs": -1}, {"batch": 0}, {"target": "mean"}])
def test_what_cannot_be_is_refused_by_the_name_of_the_option(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=parts(f"{name} ~ {wrong[name]}")):
        Alignment(**{"target": "class_mean", "lr": 0.1, "epochs": 1, "batch": 16, **wrong})
