"""Frozen parameters are in no state, and the network's own code finds them where it left them."""

import copy
import pickle
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from lightning_modules import FML, MRMTL, Ditto, FedAvg, FedProx, FedSimSup
from lightning_modules.nets import PerClient
from pfl.core import constants as frozen
from pfl.core.constants import (
    as_given,
    equal_copies,
    frozen_size,
    hold_constant,
    hold_frozen,
    lazy_copy,
)
from pfl.core.state import constants
from pfl.training.reach import duplicate
from tests.helpers.federation import fit
from tests.helpers.messages import parts
from tests.helpers.toy import contradicting, mlp


class Asks(nn.Module):
    """Asks for its parameters while it computes, as pretrained networks do for their type."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()), requires_grad=False)
        self.encoder = nn.LSTM(3, 4).requires_grad_(False)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        names = [name for name, _ in self.named_parameters()]
        assert names[:2] == ["scale", "encoder.weight_ih_l0"]
        kind = next(self.encoder.parameters()).dtype
        return self.scale * self.head(self.encoder(x.to(kind))[0])


def copies(net):
    yield net
    yield copy.deepcopy(net)
    yield pickle.loads(pickle.dumps(net))
    yield net.double().float()


def test_a_network_finds_its_frozen_parameters_while_it_computes():
    net, x = Asks(), torch.randn(5, 2, 3)
    right, frozen = net(x), 1 + 4 * 4 * (3 + 4 + 2)
    assert frozen_size(net) == 0
    hold_frozen(net)
    for one in copies(net):
        assert torch.equal(one(x), right)
        assert list(one.state_dict()) == ["head.weight", "head.bias"]
        assert [name for name, _ in one.named_parameters()] == ["head.weight", "head.bias"]
        assert frozen_size(one) == sum(v.numel() for v in constants(one).values()) == frozen
        with as_given(one):
            assert sum(p.numel() for p in one.parameters()) == frozen + 10


def test_copies_are_compared_without_reading_them_until_one_is_written_to(monkeypatch):
    """The transpose of a matrix lies where it does, and is another matrix."""
    value = torch.tensor([[1.0, torch.nan], [2.0, 3.0]])
    one, other, turned = lazy_copy(value), lazy_copy(value), lazy_copy(value.T)
    with monkeypatch.context() as patch:
        patch.setattr(frozen, "equal", None)
        assert equal_copies(one, other)
    assert not equal_copies(one, turned)
    assert not equal_copies(one, lazy_copy(value[:1]))
    assert not equal_copies(one, lazy_copy(value.view(torch.int32)))
    other[0, 0] = 5
    assert not equal_copies(one, other)
    other[0, 0] = 1
    assert equal_copies(one, other)


def test_a_copy_has_the_memory_of_frozen_parameters_until_one_of_them_is_written_to():
    net = Asks()
    hold_frozen(net)
    weight = net.encoder.weight_ih_l0
    copied = duplicate(net)
    x = torch.randn(5, 2, 3)
    places = [torch._C._data_address(one.encoder.weight_ih_l0) for one in (net, copied)]
    assert places[0] == places[1]
    assert torch.equal(copied(x), net(x))
    before = weight.clone()
    with torch.no_grad():
        copied.encoder.weight_ih_l0.add_(1)
    assert torch.equal(weight, before)
    assert torch.equal(copied.encoder._flat_weights[0], before + 1)
    assert not torch.equal(copied(x), net(x))


def test_they_are_constants_again_after_an_error():
    net = Asks()
    hold_frozen(net)
    with pytest.raises(RuntimeError):
        net(torch.zeros(5, 2, 7))
    assert len(constants(net)) == 5


def test_one_frozen_tensor_under_two_names_stays_one():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1))
    net[1].weight = net[0].weight
    net[0].requires_grad_(False)
    hold_frozen(net)
    assert net[0].weight is net[1].weight
    assert set(net.state_dict()) == {"1.bias", "2.weight", "2.bias"}


def test_a_tensor_is_frozen_under_all_its_names_or_under_none():
    """Otherwise it would be frozen where nobody asked for it, without a word."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    with pytest.raises(ValueError, match=parts("'0.weight' ~ frozen ~ '1.weight' ~ one tensor")):
        hold_constant(net, ["0.weight", "0.bias"])
    assert len(net.state_dict()) == 4
    assert net[0].weight.requires_grad
    net.requires_grad_(False)
    with pytest.raises(ValueError, match=parts("'1.weight' ~ frozen ~ '0.weight' ~ one tensor")):
        FedAvg(net, stays=["0.weight"])


@pytest.mark.parametrize("method", [Ditto, FedProx, partial(MRMTL, aggregate="delta")])
def test_copies_that_a_method_makes_have_the_memory_of_what_is_frozen(method):
    net = mlp()
    net.backbone.requires_grad_(False)
    held = [v for n, v in constants(method(net)).items() if n.endswith("backbone.0.weight")]
    assert len(held) > 1
    assert len({torch._C._data_address(value) for value in held}) == 1


def test_statistics_are_constant_if_the_norm_stays_in_eval_mode():
    class Still(nn.BatchNorm1d):
        def train(self, mode=True):
            return super().train(False)

    net = nn.Sequential(Still(3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    net[:2].requires_grad_(False)
    hold_frozen(net)
    assert set(constants(net)) == {
        *(f"0.{n}" for n in ("weight", "bias", "running_mean", "running_var")),
        *("0.num_batches_tracked", "1.weight", "1.bias"),
    }


def test_what_the_client_keeps_by_name_is_no_constant():
    net = mlp()
    net.backbone.requires_grad_(False)
    module = FedAvg(net, stays=["backbone.0.weight"])
    assert module.kept_names() == ("net.backbone.0.weight",)
    assert set(constants(module)) == {"net.backbone.0.bias"}


def test_every_network_of_a_method_is_looked_at():
    def frozen():
        net = mlp()
        net.backbone.requires_grad_(False)
        return net

    for module in (
        FedAvg(PerClient([frozen(), frozen()])),
        FML(mlp(), private=frozen()),
        FedSimSup(mlp(), frozen()),
    ):
        held = sum("backbone" in name for name in constants(module))
        assert held == 2
        kept = FML(mlp(), private=frozen(), travel_frozen=True).kept_names()
    assert any("backbone" in name for name in kept)


def test_a_method_may_switch_its_own_parts_off():
    module = FedAvg(mlp())
    module.net.head.requires_grad_(False)
    assert "net.head.weight" in module.shared_names()


def test_a_constant_is_switched_off():
    net = nn.Linear(2, 1)
    hold_constant(net, ["weight"])
    net(torch.zeros(1, 2)).sum().backward()
    assert net.weight.grad is None


@pytest.mark.parametrize("method", [FedAvg, Ditto])
def test_a_pruned_network_is_copied_and_trained_within_its_mask(method):
    """What pruning leaves in the module was computed, and has no copies until it is detached."""
    net = mlp()
    first = next(part for part in net.modules() if isinstance(part, nn.Linear))
    prune.l1_unstructured(first, "weight", amount=0.5)
    mask, before = first.weight_mask.clone(), first.weight_orig.detach().clone()
    run = fit(method(net), contradicting(), rounds=1)
    found = {name.rpartition(".")[2]: value for name, value in run.server.shared.items()}
    assert torch.equal(found["weight_mask"], mask)
    moved = found["weight_orig"] != before
    assert moved[mask == 1].any()
    assert not moved[mask == 0].any()
