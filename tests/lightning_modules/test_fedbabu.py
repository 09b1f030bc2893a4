"""FedBABU: the invariants in docs/methods."""

from dataclasses import replace

import pytest
import torch

from lightning_modules.fedbabu import FedBABU
from pfl.core.types import Broadcast
from pfl.training import client_round
from tests.helpers import facts
from tests.helpers.federation import HEAVY, context, job
from tests.helpers.toy import blobs, mlp

FACTS = {
    FedBABU: facts.Facts(
        travels=("net.backbone.",),
        floats=facts.BODY,
        fewer={"ft_epochs": 2},
        needs_parts=True,
    ),
}


def copy_of_client_0(**options):
    """Return the states of client 0's copy before and after its test."""
    module, data = FedBABU(mlp(), optimizer=HEAVY, **options), blobs()
    before = {n: v.clone() for n, v in module.state_dict().items()}
    shared = {n: v for n, v in before.items() if "backbone" in n}
    test = replace(job(data, broadcast=Broadcast(shared)), splits=("test",))
    client_round.test(context(module, data), test)
    return before, module.state_dict()


@pytest.mark.parametrize(
    ("part", "changes"),
    [("all", ("backbone", "head")), ("head", ("head",)), ("body", ("backbone",))],
)
def test_only_the_chosen_part_is_tuned(part, changes):
    """Invariant 4."""
    before, after = copy_of_client_0(ft_part=part)
    for name, value in before.items():
        assert torch.equal(value, after[name]) is not any(word in name for word in changes)


def test_default_is_five_epochs_on_everything():
    (phase,) = FedBABU(mlp()).adapt()
    assert (phase.epochs, phase.trains) == (5, ("net.*",))


def test_orthogonal_heads_are_shared_with_freeze():
    weight = FedBABU(mlp(), head_init="orthogonal").net.head.weight
    assert torch.allclose(weight @ weight.mT, torch.eye(3), atol=1e-5)
