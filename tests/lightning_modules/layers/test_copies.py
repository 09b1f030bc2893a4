"""Frozen copies."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lightning_modules.layers import copy_into, frozen
from tests.helpers.messages import parts


def normalised() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5))


def test_frozen_copy_has_no_parameters_and_all_entries():
    net = normalised()
    teacher = frozen(net)
    assert not list(teacher.parameters())
    entries = teacher.state_dict()
    assert entries.keys() == {f"module.{name}" for name in net.state_dict()}
    for name, value in net.state_dict().items():
        assert torch.equal(entries[f"module.{name}"], value)
        assert entries[f"module.{name}"].data_ptr() != value.data_ptr()
    assert len(list(net.parameters())) == 4, "the original stays as it is"


def test_frozen_copy_stays_in_eval_mode():
    holder = nn.ModuleDict({"net": normalised(), "teacher": frozen(normalised())})
    holder.train()
    assert holder["net"][1].training
    assert not any(module.training for module in holder["teacher"].modules())
    x = torch.rand(5, 4)
    before = copy.deepcopy(holder["teacher"].state_dict())
    first, second = holder["teacher"](x), holder["teacher"](x)
    assert torch.equal(first, second), "no dropout"
    for name, value in holder["teacher"].state_dict().items():
        assert torch.equal(value, before[name]), "no statistics written"


def test_frozen_copy_gives_what_the_module_gives_in_eval_mode():
    net = normalised()
    for _ in range(3):
        net(torch.rand(8, 4))
    teacher, x = frozen(net), torch.rand(5, 4)
    assert torch.equal(teacher(x), net.eval()(x))


def test_batch_statistics():
    """PFAKD's teacher: normalises with the batch, as the net in train mode, and writes nothing."""
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    teacher, x = frozen(net, batch_statistics=True), torch.rand(5, 4)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    assert torch.equal(teacher(x), copy.deepcopy(net).train()(x))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert set(teacher.state_dict()) == {f"module.{n}" for n, _ in net.named_parameters()}


@pytest.mark.parametrize("batch_statistics", [False, True])
def test_copy_into_refreshes_values(batch_statistics):
    net = normalised()
    teacher = frozen(net, batch_statistics)
    entries = teacher.state_dict()
    for _ in range(2):
        net(torch.rand(8, 4))
    nn.init.ones_(net[0].weight)
    copy_into(teacher, net)
    for name, value in entries.items():
        assert torch.equal(value, net.state_dict()[name.removeprefix("module.")]), name
    nn.init.zeros_(net[0].weight)
    assert entries["module.0.weight"].all(), "values were copied, not shared"


def test_copy_into_refuses_another_network():
    with pytest.raises(ValueError, match=parts("Linear ~ '0.bias' ~ Sequential")):
        copy_into(frozen(normalised()), nn.Linear(4, 6))
