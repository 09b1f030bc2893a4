"""FedSimSup's serial variant; the mixing is tested with FedSimSup's server."""

from examples.fedsimsup_serial import FedSimSupSerial
from lightning_modules.fedrep import FedRep
from pfl.core.state import select
from pfl.testing import check_method
from tests.helpers.federation import Federation, equal, sgd
from tests.helpers.toy import mlp


def make(net, **options):
    return FedSimSupSerial(net, **{"head_epochs": 2, **options})


def test_it_keeps_the_promises():
    check_method(FedSimSupSerial, make)


def test_the_first_round_is_fedreps():
    """Head, then body, from the same values; what arrives is the same in the first round."""
    ours = Federation(make(mlp(), optimizer=sgd(), epochs=3))
    theirs = Federation(FedRep(mlp(), head_epochs=2, body_epochs=3, optimizer=sgd()))
    for client in range(3):
        own, other = ours.train(client), theirs.train(client)
        assert equal(own.upload.shared, other.upload.shared)
        assert equal(own.kept, other.kept)


def test_with_everybody_in_every_round_nobody_meets():
    """Nothing is mixed: each client's backbone goes on from what it sent."""
    together, alone = (Federation(make(mlp(), optimizer=sgd())) for _ in range(2))
    for _ in range(3):
        together.round(0, 1, 2)
    for _ in range(3):
        alone.round(1)
    own = {name: value[1] for name, value in together.state.shared.items()}
    assert equal(own, {name: value[1] for name, value in alone.state.shared.items()})
    assert equal(select(together.kept[1], ("net.head.*",)), alone.kept[1])


def test_an_absent_backbone_moves_towards_those_that_came_alike():
    """Clients 0 and 1 share labels with client 2 in the toy data, whose backbone is mixed."""
    federation = Federation(make(mlp(), optimizer=sgd()))
    before = {name: value[2].clone() for name, value in federation.state.shared.items()}
    federation.round(0, 1)
    after = {name: value[2] for name, value in federation.state.shared.items()}
    assert not equal(before, after)
    still = Federation(make(mlp(), optimizer=sgd(), absent_rule="none"))
    still.round(0, 1)
    assert equal(before, {name: value[2] for name, value in still.state.shared.items()})
