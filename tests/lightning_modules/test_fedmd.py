"""FedMD: the invariants in docs/methods."""

import pytest
import torch

from lightning_modules.fedmd import FedMD
from lightning_modules.local import Local
from lightning_modules.nets import PerClient, SplitNet
from pfl.core.types import Batch
from tests.helpers.federation import SGD, Federation, fit
from tests.helpers.toy import blobs, mlp

SIZES = (6, 5, 4)


def make(net, **options):
    few = {"public_samples": 12, "public_epochs": 1, "private_epochs": 1, "epochs": 1}
    return FedMD(net, **{**few, **options})


def federation(**options):
    return Federation(make(mlp(), optimizer=SGD, public_samples=6, **options), blobs(SIZES))


def test_without_a_digest_it_is_local():
    """Invariant 1, after the first trainings."""
    options = {"public_epochs": 0, "private_epochs": 1, "digest_epochs": 0}
    # The phases have other names, and so other orders of samples: full batches have none.
    one = fit(make(mlp(), optimizer=SGD, **options), blobs(SIZES, batch_size=9))
    alone = fit(Local(mlp(), optimizer=SGD), blobs(SIZES, batch_size=9))
    for client, kept in alone.kept.items():
        for name, value in kept.items():
            torch.testing.assert_close(one.kept[client][name], value)


def test_the_consensus_is_the_plain_mean_of_the_logits():
    """Invariant 3, of the models as their revisits left them; a message has |A| C numbers."""
    fed = federation()
    uploads = [fed.train(client).upload for client in range(3)]
    state = fed.server.aggregate(fed.state, uploads)
    rows = torch.stack([one.shared["consensus"] for one in uploads])
    torch.testing.assert_close(state.shared["consensus"], rows.mean(0))
    assert all(set(one.shared) == {"consensus"} and not one.extra for one in uploads)
    assert uploads[0].shared["consensus"].shape == (6, 3)
    fed.round(0, 1, 2)
    fed.module.load_state_dict(fed.module.state_dict() | fed.kept[1])
    public = fed.data.public_split()
    with torch.no_grad():
        expected = fed.module.eval()(public.batch(torch.arange(6)).x)
    torch.testing.assert_close(uploads[1].shared["consensus"], expected)


@pytest.mark.parametrize(
    ("loss", "expected"), [("mae", 0.75), ("mse", 1.25), ("kl", 0.0)], ids=["mae", "mse", "kl"]
)
def test_the_distance_by_hand(loss, expected):
    """Logits (0, 0), consensus (0, 1) and (0, -2) of samples 2 and 0; a third one is padding."""
    net = SplitNet(torch.nn.Identity(), torch.nn.Linear(1, 2))
    module = FedMD(net, public_samples=3, digest_loss=loss)
    with torch.no_grad():
        net.head.weight.zero_()
        net.head.bias.zero_()
        values = [[0.0, -2.0], [9.0, 9.0], [0.0, 1.0]]
        if loss == "kl":
            values = [[4.0, 4.0], [9.0, 0.0], [1.0, 1.0]]
        module.consensus.copy_(torch.tensor(values))
    weight, index = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([2, 0, 1])
    batch = Batch(torch.zeros(3, 1), torch.zeros(3).long(), weight, None, index)
    assert module._digest(batch)[loss].item() == pytest.approx(expected)


def test_a_client_alone_digests_nothing():
    """Invariant 2, to rounding: the consensus is its own, so only the revisit moves it."""
    data = blobs((6,), pooled=False)
    more = {"public_samples": 6, "public_epochs": 0, "digest_loss": "mse", "optimizer": SGD}
    one, other = (fit(make(mlp(), digest_epochs=n, **more), data, 2).kept[0] for n in (0, 3))
    for name in ("net.head.weight", "net.backbone.0.weight"):
        torch.testing.assert_close(one[name], other[name], atol=1e-6, rtol=0)


def test_networks_may_differ():
    deep = SplitNet(torch.nn.Linear(5, 9), torch.nn.Linear(9, 3))
    run = fit(make(PerClient([mlp(), deep]), optimizer=SGD), blobs(SIZES), 2)
    assert run.kept[0]["net.head.weight"].shape == (3, 6)
    assert run.kept[1]["net.head.weight"].shape == (3, 9)


def test_a_late_client_trains_first_and_then_digests():
    fed = federation()
    fed.round(0, 1)
    losses = fed.train(2).train
    assert {name.split("/")[0] for name in losses} == {"public", "private", "digest", "revisit"}
    assert {name.split("/")[0] for name in fed.train(0).train} == {"digest", "revisit"}
