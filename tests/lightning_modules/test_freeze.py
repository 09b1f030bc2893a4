"""Freeze: the invariants in docs/methods."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lightning_modules.freeze import Freeze
from lightning_modules.nets.initial import orthogonalise
from tests.helpers import facts
from tests.helpers.federation import HEAVY, SGD, equal, fit
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp

FACTS = {
    Freeze: facts.Facts(
        travels=("net.backbone.",),
        floats=facts.BODY,
        needs_parts=True,
    ),
}


def head(module):
    return {n: v.clone() for n, v in module.state_dict().items() if n.startswith("net.head")}


def test_the_head_is_bitwise_constant_under_momentum_and_weight_decay():
    """Invariant 1."""
    module = Freeze(mlp(), optimizer=HEAVY, epochs=2)
    start = head(module)
    run = fit(module, blobs(), 4)
    assert equal(head(module), start)
    assert not any("head" in name for name in run.server.shared)
    assert all(not any("head" in name for name in kept) for kept in run.kept.values())


@pytest.mark.parametrize(("rows", "columns"), [(3, 6), (5, 5)])
def test_an_orthogonal_head_has_orthonormal_rows(rows, columns):
    """Invariant 4."""
    layer = nn.Linear(columns, rows)
    orthogonalise(layer.weight)
    assert torch.allclose(layer.weight @ layer.weight.mT, torch.eye(rows), atol=1e-5)


def test_more_classes_than_features_make_orthonormal_columns_and_a_warning():
    """Invariant 4."""
    with pytest.warns(UserWarning, match=parts("7 outputs ~ 6 features")):
        module = Freeze(mlp(num_classes=7), head_init="orthogonal")
    weight = module.net.head.weight
    assert torch.allclose(weight.mT @ weight, torch.eye(6), atol=1e-5)


def test_the_nearest_orthogonal_weights_by_hand():
    """diag(2, 3) has singular values 2 and 3 along the axes; both become 1."""
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[2.0, 0.0], [0.0, -3.0]]))
    orthogonalise(layer.weight)
    assert torch.allclose(layer.weight, torch.tensor([[1.0, 0.0], [0.0, -1.0]]), atol=1e-6)


def test_no_bias_stays_no_bias():
    module = Freeze(mlp(), optimizer=SGD, head_init="orthogonal", head_bias=False)
    fit(module, blobs())
    assert torch.equal(module.net.head.bias, torch.zeros(3))


def test_the_global_model_is_the_body_under_the_common_head():
    module, data = Freeze(mlp(), optimizer=SGD), blobs()
    run = fit(module, data, 2)
    net, pooled = mlp(), data.pooled_test()
    net.load_state_dict(
        {n.removeprefix("net."): v for n, v in run.server.shared.items()}, strict=False
    )
    loss = cross_entropy(net(pooled.x), pooled.targets).item()
    assert run.history[-1]["test/pooled/loss"] == pytest.approx(loss)
