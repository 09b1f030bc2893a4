"""CD2-pFed: the invariants in docs/methods, with hand-worked numbers."""

import pytest
import torch
from torch import nn

from lightning_modules.cd2_pfed import CD2PFed, CD2Server
from lightning_modules.nets.channels import ChannelDivision, divisions
from tests.helpers import by_hand, facts
from tests.helpers.draws import normal
from tests.helpers.federation import Federation, sgd
from tests.helpers.messages import parts
from tests.helpers.toy import mlp, normed

FACTS = {
    CD2PFed: facts.Facts(
        travels=("net.",),
        stays=("own.",),
        floats=3 * 6 + 9 + 3,
        needs_classes=True,
    ),
}


def make(net, **options):
    """Return the method as the contract and the recorded numbers have it."""
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


def divided(net=None, private=3):
    """Return a module whose last ``private`` of six hidden units are private."""
    module = cd2(net)
    federation = Federation(module)
    federation.server.ramp_rounds = 0
    federation.start(0)
    assert module.private.tolist()[:2] == [private, private]
    return module


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


@pytest.mark.parametrize(
    "options", [{}, {"average_ramp": 1.0, "distillation": 0.5, "weighting": "uniform"}]
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    """One channel of six is private in the first of three rounds, then three are."""
    fed, shared = by_hand.federation(CD2PFed, ramp_rounds=2, **options), by_hand.initial()
    last, strength = [by_hand.initial() for _ in range(4)], options.get("distillation", 1.0)

    def private(count):
        """Return masks of the private entries, which are the last channels of each layer."""
        channels = torch.arange(6) >= 6 - count
        masks = {n: channels[:, None] if v.dim() == 2 else channels for n, v in shared.items()}
        return masks | {"head.weight": channels, "head.bias": torch.tensor(False)}

    def mixed(masks, own, common):
        return {n: torch.where(masks[n], own[n], v) for n, v in common.items()}

    for number, clients in enumerate(cohorts, 1):
        masks, sent = private(1 if number == 1 else 3), []
        share = 0.9 * (number / 3 if "average_ramp" in options else 1)

        def loss(w, x, y, masks=masks):
            def alone(private):
                kept = {n: torch.where(masks[n] == private, w[n], 0.0) for n in by_hand.trained(w)}
                still = {n: v.clone() for n, v in w.items() if n not in kept}
                return by_hand.outputs({**kept, **still}, x, True).log_softmax(1)

            p, q = alone(False), alone(True)
            apart = ((p.exp() - q.exp()) * (p - q)).sum(1).mean() / 2
            return by_hand.cross_entropy_of(w, x, y) + strength * apart

        for c in clients:
            w = last[c] = mixed(masks, last[c], shared)
            for epoch in (1, 2):
                steps = by_hand.batches(fed, c, 1, f"local{epoch}")
                w = by_hand.descended(w, loss, steps)
                mean = by_hand.averaged([w, last[c]], [share, 1 - share])
                w, last[c] = mixed(masks, mean, w), mixed(masks, mean, last[c])
            sent.append(w)
        sizes = [1 if "weighting" in options else by_hand.SIZES[c] for c in clients]
        shared = mixed(masks, shared, by_hand.averaged(sent, sizes))
        fed.round(*clients)
        for c, entries in enumerate(last):
            by_hand.compare_tested(fed, c, mixed(masks, entries, shared))
