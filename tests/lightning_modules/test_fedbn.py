"""FedBN: the invariants in docs/methods."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from lightning_modules.fedavg import FedAvg
from lightning_modules.fedbn import FedBN
from lightning_modules.nets import ResNet18
from pfl.core.seeds import scoped
from tests.helpers.federation import HEAVY, SGD, close, equal, fit, follow
from tests.helpers.federation import job as job_of
from tests.helpers.messages import parts
from tests.helpers.toy import ToyData, blobs, mlp, normed

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


def test_all_twenty_of_a_resnet_are_found():
    """Invariant 2.

    Three of them are called ``downsample.1``: 5 entries each stay, convolutions and head go.
    """
    module = FedBN(ResNet18(10))
    assert len(module.kept_names()) == 5 * 20
    assert len(module.shared_names()) == 20 + 2
    assert "net.backbone.layer2.0.downsample.1.weight" in module.kept_names()


def test_the_first_round_is_fedavgs():
    """Invariant 3. All batch norms are still equal; in the second round they differ."""
    _, own = follow(FedBN(normed(), optimizer=HEAVY), blobs(), 2)
    _, common = follow(FedAvg(normed(), optimizer=HEAVY), blobs(), 2)
    for number, same in ((0, True), (1, False)):
        shared = own[number].server.shared
        expected = {name: common[number].server.shared[name] for name in shared}
        assert equal(shared, expected) is same


def test_permuting_clients_permutes_their_batch_norms():
    """Invariant 5."""
    data, order = blobs(batch_size=99, pooled=False), (2, 0, 1)
    moved = ToyData([data.splits["train"][client] for client in order], batch_size=99)
    one = fit(FedBN(normed(), optimizer=SGD), data)
    other = fit(FedBN(normed(), optimizer=SGD), moved)
    assert close(one.server.shared, other.server.shared, atol=1e-5)
    for place, client in enumerate(order):
        assert close(one.kept[client], other.kept[place], atol=1e-5)


def test_running_statistics_by_hand():
    """Invariant 6.

    Batches (9, 11) and (-9, -11): means 10 and -10, biased variance 1, n / (n - 1) = 2.

    After a step the running means are 0.1 * 10 = 1 and -1, the variances 0.9 + 0.1 * 2 = 1.1.
    Averaged, as FedAvg has them, the means are 0.
    """
    pairs = [torch.tensor([[9.0], [11.0]]), torch.tensor([[-9.0], [-11.0]])]

    def data():
        return ToyData([(x, torch.tensor([0, 1])) for x in pairs])

    def net():
        with scoped(1):
            return nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 3))

    run = fit(FedBN(net(), optimizer=SGD), data(), 1)
    for client, mean in ((0, 1.0), (1, -1.0)):
        assert run.kept[client]["net.0.running_mean"].item() == pytest.approx(mean)
        assert run.kept[client]["net.0.running_var"].item() == pytest.approx(1.1)
    averaged = fit(FedAvg(net(), optimizer=SGD), data(), 1).server.shared
    assert averaged["net.0.running_mean"].item() == pytest.approx(0.0, abs=1e-6)


def test_counters_count_the_batches_of_training():
    """Invariant 7.

    Three rounds, each with a test; 9 samples are two batches of 4 and one that is left out.
    """
    run = fit(FedBN(normed(), optimizer=SGD), blobs(sizes=(9, 6, 4)), 3)
    counts = [run.kept[client][f"{NORM}.num_batches_tracked"].item() for client in range(3)]
    assert counts == [3 * 2, 3 * 2, 3 * 1]


def test_the_scale_of_a_clients_inputs_does_not_matter():
    """Invariant 8.

    Behind a first layer without bias: only that batch norm's own statistics feel it.

    The mean is multiplied by 3, the variance, apart from what is left of the initial one, by 9.
    """
    runs = []
    for scale in (1.0, 3.0):
        net, data = normed(bias=False), blobs()
        net.backbone[1].eps = 1e-30
        x, y = data.splits["train"][0]
        data.splits["train"][0] = (scale * x, y)
        runs.append(fit(FedBN(net, optimizer=SGD), data, 4, precision="64-true"))
    plain, scaled = runs
    assert close(plain.server.shared, scaled.server.shared, atol=1e-12)
    assert all(close(plain.kept[client], scaled.kept[client], atol=1e-12) for client in (1, 2))
    losses = [[row["train/local/ce"] for row in run.history] for run in runs]
    assert losses[0] == pytest.approx(losses[1])
    before, after = plain.kept[0], scaled.kept[0]
    left = 0.9 ** before[f"{NORM}.num_batches_tracked"].item()
    mean, variance = f"{NORM}.running_mean", f"{NORM}.running_var"
    assert torch.allclose(after[mean], 3 * before[mean])
    assert torch.allclose(after[variance] - left, 9 * (before[variance] - left))
    rest = before.keys() - {mean, variance}
    assert close({n: before[n] for n in rest}, {n: after[n] for n in rest}, atol=1e-12)


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
