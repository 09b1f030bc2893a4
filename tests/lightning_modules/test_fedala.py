"""FedALA: the invariants in docs/methods, with hand-worked numbers."""

import pytest
import torch
from torch import nn

from lightning_modules.fedala import FedALA, UnitIntervalSGD
from lightning_modules.local import Local
from pfl.core.state import clone, fingerprint, select
from pfl.core.types import Batch
from pfl.training import batching, client_round
from pfl.training.batching import Length
from tests.helpers.draws import normal
from tests.helpers.federation import Federation, equal, own, sgd
from tests.helpers.toy import mlp, normed

ROUNDS = ((0, 1, 2), (0, 2), (1, 2), (0, 1))


def ala(net=None, **options):
    return FedALA(mlp() if net is None else net, optimizer=sgd(), **options)


def test_weights_of_zero_on_all_layers_are_local():
    """Invariant 2, bitwise."""
    module = ala(top="all", mix_lr=0.0)
    with torch.no_grad():
        for weight in module.mix.values():
            weight.zero_()
    ours, theirs = Federation(module), Federation(Local(mlp(), optimizer=sgd()))
    for clients in ROUNDS:
        # A first round starts from what is received; here all of them begin together.
        ours.round(*clients)
        theirs.round(*clients)
    for client in range(3):
        assert equal(own(ours, client), theirs.kept[client])


def test_mixing_sees_its_last_batch_though_training_drops_it():
    """Client 0 has nine samples: seven for mixing in batches of 4 and 3; 4 and 4 for training."""
    federation = Federation(ala(mix_percent=80))
    federation.data.drop_last = True
    learn, _, train, _ = federation.context.plan
    for part, sizes in ((learn, [4, 3]), (train, [4, 4])):
        steps = batching.steps(federation.context, federation.job(0), part, Length(1), 9)
        assert [len(step.positions) for step in steps] == sizes


def mixed(federation, client):
    """Return the client's state after mixing, before training; and as it was received."""
    module = federation.start(client)
    received = clone(module.state_dict())
    training = module.plan()[:-2]
    client_round.run_plan(
        federation.context, federation.job(client), training, client_round.Tally()
    )
    return clone(module.state_dict()), received


@pytest.mark.parametrize("top", [1, "all"])
def test_the_mix_lies_between(top):
    """Invariants 3 and 5: W in [0, 1], the mix between own and global, the rest as received."""
    federation = Federation(ala(normed(), top=top, mix_lr=20.0, epochs=3))
    federation.round()
    after, received = mixed(federation, 0)
    top_names = {f"net.{name}" for name in federation.module.top}
    moved = 0
    for name, value in after.items():
        if name.startswith("mix."):
            assert ((value >= 0) & (value <= 1)).all()
            moved += int((value < 1).sum())
        elif name in top_names:
            ends = torch.stack([received[name], received[name.replace("net.", "own.module.")]])
            assert (value >= ends.amin(0)).all()
            assert (value <= ends.amax(0)).all()
        else:
            assert torch.equal(value, received[name])
    assert moved > 0


def test_equal_models_leave_the_weights():
    """Invariant 4: w_i = w^t gives W the gradient 0."""
    federation = Federation(ala())
    federation.round(0)
    after, _ = mixed(federation, 0)
    assert all((value == 1).all() for name, value in after.items() if name.startswith("mix."))


def test_gradient_of_the_weights():
    """Invariant 6: dL/dW = dL/dw^ (w^t - w_i), for L = sum of logits and one output.

    Top layer 2 x + 3, own 1 x + 5, W = 1/2: w^ = 1.5, b^ = 4. At x = 2 and loss w^ x + b^ the
    slopes are 2 (2 - 1) = 2 and 3 - 5 = -2; a step at rate 0.1 gives 0.3 and 0.7.
    """
    net = nn.Sequential(nn.Linear(1, 1))
    module = FedALA(net, mix_lr=0.1)
    assert module.top == ["0.weight", "0.bias"]
    with torch.no_grad():
        net[0].weight.fill_(2.0)
        net[0].bias.fill_(3.0)
        module.own.module[0].weight.fill_(1.0)
        module.own.module[0].bias.fill_(5.0)
        for weight in module.mix.values():
            weight.fill_(0.5)
    top = module._mixed_top()
    assert {name: value.item() for name, value in top.items()} == {"0.weight": 1.5, "0.bias": 4.0}
    (top["0.weight"] * 2 + top["0.bias"]).sum().backward()
    weights = [module.mix["0/weight"], module.mix["0/bias"]]
    assert [weight.grad.item() for weight in weights] == [2.0, -2.0]
    UnitIntervalSGD(weights, lr=0.1).step()
    assert [weight.item() for weight in weights] == pytest.approx([0.3, 0.7])
    UnitIntervalSGD(weights, lr=10.0).step()
    assert [weight.item() for weight in weights] == [0.0, 1.0]


def steps(federation, client):
    """Count the steps of learning W and of training; client 0 has three batches an epoch."""
    return federation.train(client).steps


def test_lengths_of_the_learning():
    """Never, then until the losses settle (at least 11 epochs), then one epoch.

    80 % of nine samples are seven, two batches; training takes three.
    """
    federation = Federation(ala(threshold=100.0))
    assert steps(federation, 0) == 3
    federation.round(0)
    assert steps(federation, 0) == 11 * 2 + 3
    federation.round(0)
    assert steps(federation, 0) == 2 + 3
    capped = Federation(ala(threshold=0.0, max_init_epochs=13))
    capped.round()
    assert steps(capped, 0) == 13 * 2 + 3


def test_when_losses_have_settled():
    """More than 10 of them, and the last 10 with a standard deviation (over n) below 0.1."""
    module = ala()
    flat = [1.0] * 10
    assert not module._settled(flat)
    assert module._settled([9.0, *flat])
    assert not module._settled([*flat, 1.4])  # mean 1.04, deviation 0.12
    assert module._settled([*flat, 1.3])  # deviation 0.09


def test_weights_go_on_from_where_they_were():
    federation = Federation(ala(mix_lr=20.0, epochs=3))
    for _ in range(2):
        federation.round()
    left = select(federation.kept[0], ("mix.*",))
    federation.round(1, 2)
    assert equal(select(federation.kept[0], ("mix.*",)), left)
    assert equal(select(clone(federation.start(0).state_dict()), ("mix.*",)), left)
    assert int(federation.kept[0]["visits"]) == 2


def test_a_test_mixes_a_copy():
    """The top is mixed; nothing kept or sent changes; a newcomer has the global model."""
    federation = Federation(ala(mix_lr=20.0, epochs=3))
    federation.round(0, 1)
    before = fingerprint([federation.state.shared, *federation.kept.values()])
    tested = federation.personal(0)
    assert not torch.equal(tested["head.weight"], federation.state.shared["net.head.weight"])
    assert equal(
        select(tested, ("backbone.*",)),
        {
            name.removeprefix("net."): value
            for name, value in federation.state.shared.items()
            if name.startswith("net.backbone.")
        },
    )
    newcomer = federation.personal(2)
    assert all(torch.equal(newcomer[n[4:]], v) for n, v in federation.state.shared.items())
    assert fingerprint([federation.state.shared, *federation.kept.values()]) == before


def test_a_mix_does_not_touch_running_statistics():
    """Invariant 5."""
    module = ala(normed(), top="all").train()
    before = clone(dict(module.net.named_buffers()))
    module._mixing(Batch(normal(6, 5).float(), torch.arange(6) % 3))
    assert equal(clone(dict(module.net.named_buffers())), before)
