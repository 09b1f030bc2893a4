"""GPFL: the invariants in docs/methods, with hand-worked numbers."""

import pytest
import torch
from torch import nn
from torch.autograd import grad

from lightning_modules.fedper import FedPer
from lightning_modules.gpfl import GPFL
from lightning_modules.nets import SplitNet
from pfl.core.state import select
from pfl.core.types import Batch
from tests.helpers.draws import normal
from tests.helpers.federation import Federation, equal, sgd
from tests.helpers.toy import blobs, mlp, normed


def gpfl(net=None, **options):
    return GPFL(mlp() if net is None else net, optimizer=sgd(), **options)


def a_batch(seed=0, samples=6):
    y = torch.arange(samples) % 3
    return Batch(normal(samples, 5, seed=seed).float(), y)


def slopes(module, term):
    parameters = dict(module.named_parameters())
    found = grad(module.losses(a_batch())[term], parameters.values(), allow_unused=True)
    return {n: s for n, s in zip(parameters, found, strict=True) if s is not None and s.any()}


def test_each_term_moves_its_own_parts():
    """Invariant 1: no gradient of the generic route to the head; embeddings move by angle only."""
    module = gpfl()
    parts = {term: {name.split(".")[0] for name in slopes(module, term)} for term in TERMS}
    assert parts == {"ce": {"net", "valve"}, "angular": PARTS, "magnitude": {"net", "valve"}}
    for term in ("angular", "magnitude"):
        assert not any(name.startswith("net.head.") for name in slopes(module, term))
    constants = {name for name, _ in module.named_buffers()}
    assert constants == {"received", "class_shares", "generic", "personal"}


TERMS = ("ce", "angular", "magnitude")
PARTS = {"net", "valve", "embeddings"}


def test_conditions_by_hand():
    """Shares 3/4 and 1/4 of embeddings (4, 0), (0, 8), none of (2, 1): u = (3, 2), g = (2, 3)."""
    module = GPFL(SplitNet(nn.Linear(2, 2), nn.Linear(2, 3)))
    data = blobs(sizes=(4,), dim=2)
    data.splits["train"] = [(torch.zeros(4, 2), torch.tensor([0, 0, 1, 0]))]
    federation = Federation(module, data)
    table = torch.tensor([[4.0, 0.0], [0.0, 8.0], [2.0, 1.0]])
    federation.state.shared["embeddings"].copy_(table)
    federation.start(0)
    assert module.personal.tolist() == [3.0, 2.0]
    assert module.generic.tolist() == [2.0, 3.0]
    assert torch.equal(module.received, table)


def test_uniform_shares_make_the_routes_equal():
    """Invariant 2; before any broadcast shares are uniform."""
    module = gpfl()
    module.class_shares.fill_(1 / 3)
    found = module._conditions()
    torch.testing.assert_close(found["personal"], found["generic"])
    z = module.net.backbone(a_batch().x)
    torch.testing.assert_close(module.valve(z, module.personal), module.valve(z, module.generic))


def test_a_single_class_is_its_own_condition():
    module = gpfl()
    module.class_shares.copy_(torch.tensor([0.0, 1.0, 0.0]))
    torch.testing.assert_close(module._conditions()["personal"], module.embeddings[1].detach())


class PersonalRoute(GPFL):
    """GPFL without the generic route, and with a valve that lets everything through."""

    def losses(self, batch):
        return {"ce": super().losses(batch)["ce"]}


class Open(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, z, condition):
        return z


@pytest.mark.parametrize("net", [mlp, normed])
def test_the_personal_route_through_an_open_valve_is_fedper(net, monkeypatch):
    """Invariant 3, bitwise over three rounds."""
    monkeypatch.setattr("lightning_modules.gpfl.ConditionalValve", Open)
    ours = Federation(PersonalRoute(net(), optimizer=sgd(), epochs=2, guide_decay=0.0))
    theirs = Federation(FedPer(net(), optimizer=sgd(), epochs=2))
    for clients in ((0, 1, 2), (0, 2), (1, 2)):
        ours.round(*clients)
        theirs.round(*clients)
        assert equal(select(ours.state.shared, ("net.*",)), theirs.state.shared)
    assert all(equal(ours.kept[client], theirs.kept[client]) for client in range(3))


def test_magnitude_by_hand():
    """f_G against E0 is measured over the batch, root of 9 + 16."""
    module = GPFL(SplitNet(nn.Identity(), nn.Linear(1, 1)))
    module.valve = Open(1)
    module.received.zero_()
    batch = Batch(torch.tensor([[3.0], [4.0]]), torch.tensor([0, 0]))
    assert module.losses(batch)["magnitude"].item() == pytest.approx(0.01 * 5.0)


def test_decay_is_of_the_guides_only():
    """mu for embeddings and valve, the optimiser's own for body and head."""
    module = GPFL(mlp(), optimizer=sgd(weight_decay=0.5), guide_decay=0.25)
    first, second = module.configure_optimizers().param_groups
    assert (first["weight_decay"], second["weight_decay"]) == (0.5, 0.25)
    assert len(first["params"]) == len(list(module.net.parameters()))
    assert len(second["params"]) == 1 + len(list(module.valve.parameters()))
