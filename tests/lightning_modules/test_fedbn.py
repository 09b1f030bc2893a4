"""FedBN: the invariants in docs/methods."""

from collections import OrderedDict

import pytest
from torch import nn

from lightning_modules.fedbn import FedBN
from pfl.core.seeds import scoped
from tests.helpers import by_hand, facts
from tests.helpers.federation import SGD, equal, fit
from tests.helpers.federation import job as job_of
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp, normed

FACTS = {
    FedBN: facts.Facts(
        travels=("net.backbone.0.", "net.head."),
        stays=("net.backbone.1.",),
        floats=facts.NET,
    ),
}

pytestmark = pytest.mark.filterwarnings("ignore:.*has no batch norm")
NORM = "net.backbone.1"


class Centred(nn.BatchNorm1d):
    """A batch norm under another name."""


def nested():
    """Build a network with batch norms at every depth and under any name, and look-alikes."""
    block = OrderedDict(fc=nn.Linear(5, 6), centred=Centred(6))
    stage = OrderedDict(block=nn.Sequential(block), norm=nn.BatchNorm1d(6))
    parts = OrderedDict(
        stage=nn.Sequential(stage),
        bn1=nn.BatchNorm2d(6),
        bn10=nn.Linear(6, 6),
        bn_proj=nn.Linear(6, 6, bias=False),
        groups=nn.GroupNorm(2, 6),
        layers=nn.LayerNorm(6),
        instances=nn.InstanceNorm1d(6, affine=True, track_running_stats=True),
        plain=nn.BatchNorm1d(6, affine=False),
        bare=nn.BatchNorm1d(6, affine=False, track_running_stats=False),
    )
    return nn.Sequential(parts)


def test_what_travels_is_what_no_batch_norm_owns():
    """Invariant 2.

    Found by type, subclasses too, at any depth; ``bn10`` is none because ``bn1`` is one.
    """
    module = FedBN(nested())
    upload = module.upload(job_of(blobs()).info)
    assert set(upload.shared) == {
        *("net.stage.block.fc.weight", "net.stage.block.fc.bias"),
        *("net.bn10.weight", "net.bn10.bias", "net.bn_proj.weight"),
        *("net.groups.weight", "net.groups.bias", "net.layers.weight", "net.layers.bias"),
        *("net.instances.weight", "net.instances.bias"),
        *("net.instances.running_mean", "net.instances.running_var"),
    }
    own = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    norms = ("net.stage.block.centred", "net.stage.norm", "net.bn1")
    assert set(module.kept_names()) == {
        *(f"{norm}.{name}" for norm in norms for name in own),
        *(f"net.plain.{name}" for name in own[2:]),
    }


def test_counters_count_the_batches_of_training():
    """Invariant 5.

    Three rounds, each with a test; 9 samples are two batches of 4 and one that is left out.
    """
    run = fit(FedBN(normed(), optimizer=SGD), blobs(sizes=(9, 6, 4)), 3)
    counts = [run.kept[client][f"{NORM}.num_batches_tracked"].item() for client in range(3)]
    assert counts == [3 * 2, 3 * 2, 3 * 1]


def conv():
    """Build a network with batch norm over pixels, of which one sample would have statistics."""
    with scoped(1):
        layers = (nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 2, 2), nn.BatchNorm1d(2), nn.Flatten())
        return nn.Sequential(*layers, nn.Linear(8, 3))


@pytest.mark.parametrize("net", [normed, conv])
def test_a_client_of_one_sample_takes_no_step(net):
    with pytest.warns(UserWarning, match=parts("client 1 ~ 'local' ~ one sample")):
        run = fit(FedBN(net(), optimizer=SGD), blobs(sizes=(9, 1)), 2)
    alone = fit(FedBN(net(), optimizer=SGD), blobs(sizes=(9,)), 2)
    assert equal(run.server.shared, alone.server.shared)
    assert equal(run.kept[0], alone.kept[0])
    # What it keeps is as it was at the start.
    start = FedBN(net()).state_dict()
    assert equal(run.kept[1], {name: start[name] for name in run.kept[1]})


@pytest.mark.parametrize("affine", [True, False])
def test_the_server_has_no_complete_model(affine):
    net = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3, affine=affine))
    assert not FedBN(net).has_global_model()
    with pytest.warns(UserWarning, match=parts("ToyNet ~ no batch norm ~ FedAvg")):
        assert FedBN(mlp()).has_global_model()


@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts):
    fed, w = by_hand.federation(FedBN), by_hand.initial()
    norms = [{n: w[n] for n in w if n.startswith("backbone.1.")} for _ in range(4)]
    for clients in cohorts:
        sent = []
        for c in clients:
            steps = by_hand.batches(fed, c)
            sent.append(by_hand.descended(w | norms[c], by_hand.cross_entropy_of, steps))
            norms[c] = {n: sent[-1][n] for n in norms[c]}
        w = by_hand.averaged(sent, [by_hand.SIZES[c] for c in clients])
        fed.round(*clients)
        for c in range(4):
            by_hand.compare_tested(fed, c, w | norms[c])
