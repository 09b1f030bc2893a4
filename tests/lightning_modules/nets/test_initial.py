"""Initial values that are drawn anew."""

from __future__ import annotations

import copy

import torch

from lightning_modules.nets.initial import redraw
from pfl.core.state import call_with, clone
from tests.helpers.device import NAME, simulated
from tests.helpers.federation import equal
from tests.helpers.toy import normed


def test_a_network_on_a_device_gets_the_draws_of_the_cpu_also_as_a_client_of_a_stack():
    net = normed()
    own = copy.deepcopy(net)
    redraw(own, 5)
    assert not torch.equal(own.head.weight, net.head.weight)
    with simulated():
        net.to(NAME)
        row = {name: value.detach() for name, value in clone(net.state_dict()).items()}
        call_with(net, row, redraw, net, 5)
        assert equal({name: value.cpu() for name, value in row.items()}, own.state_dict())
        redraw(net, 5)
        assert equal({n: value.cpu() for n, value in net.state_dict().items()}, own.state_dict())
