"""FedRep: the invariants in docs/methods."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from lightning_modules.fedrep import FedRep
from pfl.core.types import Broadcast
from pfl.training import client_round
from tests.helpers import facts
from tests.helpers.federation import HEAVY, SGD, close, context, differing, fit, job
from tests.helpers.toy import blobs, mlp, normed

FACTS = {
    FedRep: facts.Facts(
        travels=("net.backbone.",),
        stays=("net.head.",),
        floats=facts.BODY,
        fewer={"head_epochs": 2},
        needs_parts=True,
    ),
}


def trained(net, data=None, **options):
    """Return the states of client 0 before and after its round."""
    module, data = FedRep(net, **{"optimizer": HEAVY, **options}), data or blobs()
    before = {n: v.clone() for n, v in module.state_dict().items()}
    client_round.train(context(module, data), job(data))
    return before, {n: v.clone() for n, v in module.state_dict().items()}


@pytest.mark.parametrize("net", [mlp, normed])
def test_the_head_phase_leaves_the_body_bitwise(net):
    """Invariant 1. Parameters and statistics, with momentum and weight decay."""
    found = differing(*trained(net(), head_epochs=3, body_epochs=0))
    assert found == {"net.head.weight", "net.head.bias"}


def test_one_round_by_hand():
    """Two steps of the head, then one of the body through the new head; full batches."""
    data, net = blobs(sizes=(9,), batch_size=99), mlp()
    split = data.split(0, "train")
    for part, steps in ((net.head, 2), (net.backbone, 1)):
        optimizer = HEAVY(part.parameters())
        for _ in range(steps):
            net.zero_grad()
            cross_entropy(net(split.x), split.targets).backward()
            optimizer.step()
    run = fit(FedRep(mlp(), optimizer=HEAVY, head_epochs=2, body_epochs=1), data, 1)
    found = {**run.server.shared, **run.kept[0]}
    assert close(found, {f"net.{name}": p.data for name, p in net.named_parameters()})


def test_the_epochs_of_the_head_can_be_what_is_left():
    module = FedRep(mlp(), epochs=5, head_epochs=None, body_epochs=1)
    assert [phase.epochs for phase in module.plan()] == [4, 1]
    assert [phase.epochs for phase in FedRep(mlp()).plan()] == [10, 1]


def test_the_final_head_reaches_clients_that_never_took_part():
    data, module = blobs(), FedRep(mlp(), optimizer=SGD, final_head_epochs=2)
    shared = {n: v.clone() for n, v in module.state_dict().items() if "backbone" in n}
    before = module.net.head.weight.clone()
    client_round.test(context(module, data), job(data, broadcast=Broadcast(shared)))
    assert not torch.equal(module.net.head.weight, before)
