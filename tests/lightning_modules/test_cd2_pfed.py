"""CD2-pFed: the invariants in docs/methods, with hand-worked numbers."""

import pytest
import torch
from torch import nn
from torch.autograd import grad

from lightning_modules.cd2_pfed import CD2PFed, CD2Server
from lightning_modules.nets import CNN2, ResNet18, SplitNet
from lightning_modules.nets.channels import ChannelDivision, divisions
from pfl.core.state import clone, select
from pfl.core.types import Batch, ClientInfo, Upload
from tests.helpers.draws import normal
from tests.helpers.federation import Federation, equal, own, sgd
from tests.helpers.messages import parts
from tests.helpers.toy import mlp, normed


def make(net, **options):
    return CD2PFed(net, **{"ramp_rounds": 0, **options})


def cd2(net=None, **options):
    return CD2PFed(mlp() if net is None else net, optimizer=sgd(), **options)


def test_divisions():
    """Rows of a layer with its bias and normalisation, columns of the classifier by channel."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2)
    )
    found = divisions(net)
    rows = ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"]
    assert all(found[name] == ChannelDivision(0, 4, 1) for name in rows)
    assert found["4.weight"] == ChannelDivision(1, 4, 9)
    assert found["4.bias"] == ChannelDivision(0, 1, 2)
    assert set(found) == set(net.state_dict()) - {"1.num_batches_tracked"}
    assert [found["0.weight"].private(p) for p in (0, 0.24, 0.25, 0.7, 1)] == [0, 0, 1, 2, 4]
    assert found["4.weight"].private(0.5) == 18
    assert [found["4.bias"].private(p) for p in (0.99, 1)] == [0, 2]


def test_what_cannot_be_divided_is_refused():
    with pytest.raises(ValueError, match="no linear layer"):
        divisions(nn.Sequential(nn.Conv2d(3, 4, 3)))
    with pytest.raises(ValueError, match=parts("'1' ~ 10 ~ 4 channels")):
        divisions(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(10, 2)))


@pytest.mark.parametrize(
    ("net", "share"),
    [*((normed, share) for share in (0.0, 0.5, 1.0)), *((n, 0.3) for n in (CNN2, ResNet18))],
)
def test_shared_and_private_make_the_whole(net, share):
    """Invariant 2: sizes add up to |w|, whatever the network."""
    built = net() if net is normed else net(10)
    module = cd2(built, private_share=share, ramp_rounds=0)
    shared = clone(select(module.state_dict(), ("net.*",)))
    shared = {name: shared[name] for name in module.shared_names()}
    server = module.server()
    state = server.init(shared, [ClientInfo(0, 4, torch.ones(3), 1, 10)])
    broadcast = server.broadcast(state, 0, 1)
    with torch.no_grad():
        module.receive(broadcast, ClientInfo(0, 4, torch.ones(3), 1, 10))
    private = sum(
        mask.expand_as(shared[f"net.{name}"]).sum().item() for name, mask in module._masks().items()
    )
    sent = sum(value.numel() for value in broadcast.shared.values())
    assert sent + private == sum(value.numel() for value in shared.values())
    upload = module.upload(ClientInfo(0, 4, torch.ones(3)))
    assert {n: v.shape for n, v in upload.shared.items()} == {
        n: v.shape for n, v in broadcast.shared.items()
    }


def divided(net=None, private=3):
    """Return a module whose last ``private`` of six hidden units are private."""
    module = cd2(net)
    federation = Federation(module)
    federation.server.ramp_rounds = 0
    federation.start(0)
    assert module.private.tolist()[:2] == [private, private]
    return module


def test_distillation_is_symmetric_and_zero_for_equal_predictions():
    """Invariant 3; by hand in test_anchors."""
    module = divided(SplitNet(nn.Linear(5, 6), nn.Linear(6, 3)))
    x = normal(4, 5).float()
    batch = Batch(x, torch.arange(4) % 3)
    assert module.losses(batch)["cd"].item() > 0
    with torch.no_grad():
        for value in module.net.parameters():
            value.zero_()
    assert module.losses(batch)["cd"].item() == 0


def silenced(module, x, silent):
    """Return the network's logits with hidden units at zero and their columns left out."""
    z = module.net.backbone(x).clone()
    z[:, silent] = 0
    return z @ module.net.head.weight.T


@pytest.mark.parametrize("net", [mlp, normed])
def test_sub_networks_are_the_network_with_silent_channels(net):
    """Invariant 5: units 3 to 5 are private; the shared bias belongs to the shared part only."""
    module = divided(net()).eval()
    x = normal(4, 5).float()
    shared, private = module.parts(x)
    expected = silenced(module, x, slice(3, 6)) + module.net.head.bias
    torch.testing.assert_close(shared, expected)
    torch.testing.assert_close(private, silenced(module, x, slice(0, 3)))


@pytest.mark.parametrize("net", [mlp, normed])
def test_sub_networks_do_not_depend_on_each_others_weights(net):
    """Invariant 5: the gradient is zero at every entry that belongs to the other."""
    module = divided(net()).train()
    parameters = dict(module.net.named_parameters())
    masks = module._masks()
    for logits, theirs in zip(module.parts(normal(6, 5).float()), (True, False), strict=True):
        slopes = grad(logits.square().sum(), parameters.values())
        for name, slope in zip(parameters, slopes, strict=True):
            assert not slope[(masks[name] == theirs).expand_as(slope)].any()
        assert any(slope.any() for slope in slopes)


def test_running_statistics_see_the_whole_network_only():
    module = divided(normed()).train()
    other = divided(normed()).train()
    x = normal(6, 5).float()
    module.losses(Batch(x, torch.arange(6) % 3))
    other.net(x)
    assert equal(dict(module.net.named_buffers()), dict(other.net.named_buffers()))


def test_the_private_set_grows():
    """Invariant 6: p = 0.5 over T = 10 rounds, floor(6 * 0.05 t) of six units."""
    server = CD2Server("samples", {}, 0.5, None)
    counts = [ChannelDivision(0, 6, 1).private(server.share(t, 10)) for t in range(1, 12)]
    assert counts == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    assert CD2Server("samples", {}, 0.5, 4).share(2, 10) == 0.25
    assert CD2Server("samples", {}, 0.5, 0).share(1, 10) == 0.5


def test_the_distillation_waits_for_private_channels():
    """The first of six units turns private in round 4 of 10."""
    federation = Federation(cd2())
    seen = [federation.round()[0].train["local1/cd"] > 0 for _ in range(5)]
    assert seen == [False, False, False, True, True]


def test_a_channel_turning_private_starts_from_what_was_received():
    """Unit 5 turns private in round 4; client 2 was away since round 2."""
    federation = Federation(cd2())
    federation.round()
    received = clone(federation.state.shared)
    federation.round(2)
    federation.round(0, 1)
    start = clone(federation.start(2).state_dict())
    assert federation.module.private.tolist() == [1, 1, 1, 0]
    now = federation.state.shared
    for name in ("net.backbone.0.weight", "net.backbone.0.bias"):
        assert torch.equal(start[name][:5], now[name][:5])
        assert torch.equal(start[name][5], received[name][5])
    assert torch.equal(start["net.head.weight"][:, :5], now["net.head.weight"][:, :5])
    assert torch.equal(start["net.head.weight"][:, 5], received["net.head.weight"][:, 5])
    assert torch.equal(start["net.head.bias"], now["net.head.bias"])


def test_private_channels_stay_with_the_client():
    federation = Federation(make(mlp(), optimizer=sgd()))
    results = federation.round()
    weight = "net.backbone.0.weight"
    assert results[0].upload.shared[weight].shape == (3, 5)
    mean = sum(n * r.upload.shared[weight] for n, r in zip((9, 6, 4), results, strict=True)) / 19
    torch.testing.assert_close(federation.state.shared[weight][:3], mean)
    left = own(federation, 2)[weight]
    federation.round(0, 1)
    tested = federation.personal(2)["backbone.0.weight"]
    assert torch.equal(tested[3:], left[3:])
    assert torch.equal(tested[:3], federation.state.shared[weight][:3])


def test_who_never_took_part_has_initial_private_channels():
    federation = Federation(make(mlp(), optimizer=sgd()))
    initial = clone(mlp().state_dict())["backbone.0.weight"]
    federation.round(0)
    tested = federation.personal(2)["backbone.0.weight"]
    assert torch.equal(tested[3:], initial[3:])
    assert not torch.equal(tested[:3], initial[:3])


def test_averaging_over_time():
    """b = 0.25: after an epoch private entries are 1/4 trained, 3/4 old; shared ones trained."""
    trained = Federation(make(mlp(), optimizer=sgd(), average_max=1.0, average_ramp=0.1))
    averaged = Federation(make(mlp(), optimizer=sgd(), average_max=0.25, average_ramp=0.1))
    start = clone(mlp().state_dict())["backbone.0.bias"]
    full = trained.round(0)[0]
    part = averaged.round(0)[0]
    assert equal(full.upload.shared, part.upload.shared)
    name = "own.module.backbone.0.bias"
    expected = 0.25 * full.kept[name] + 0.75 * start
    torch.testing.assert_close(part.kept[name][3:], expected[3:])
    # What is remembered of shared entries is what was received.
    assert torch.equal(part.kept[name][:3], start[:3])


def test_the_averages_share_grows():
    """b_max = 0.9 over half of ten rounds: 0.18, 0.36, ..., 0.9, 0.9."""
    federation = Federation(cd2(average_ramp=0.5))
    found = []
    for _ in range(6):
        found.append(float(federation.start(0).average))
        federation.round()
    assert found == pytest.approx([0.18, 0.36, 0.54, 0.72, 0.9, 0.9])


def test_the_servers_step_by_hand():
    """p = 1/2 of two rows: the first is averaged, (1 + 3 * 5) / 4 = 4, the second stays."""
    server = CD2Server("samples", {"net.w": ChannelDivision(0, 2, 1)}, 0.5, 0)
    info = ClientInfo(0, 1, torch.ones(1), rounds=4)
    state = server.init({"net.w": torch.tensor([[7.0], [8.0]])}, [info])
    assert server.broadcast(state, 0, 1).shared["net.w"].tolist() == [[7.0]]
    uploads = [
        Upload(client=c, samples=n, shared={"net.w": torch.tensor([[v]])})
        for c, n, v in ((0, 1, 1.0), (1, 3, 5.0))
    ]
    after = server.aggregate(state, uploads)
    assert after.shared["net.w"].tolist() == [[4.0], [8.0]]
    assert state.shared["net.w"].tolist() == [[7.0], [8.0]]
    assert server.aggregate(after, []).round == 2
