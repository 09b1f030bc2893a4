"""CD2-pFed with FedAS's alignment; the alignment's arithmetic is in test_fedas."""

from dataclasses import replace

import torch

from examples.cd2_pfed_aligned import CD2PFedAligned
from lightning_modules.cd2_pfed import CD2PFed
from pfl.core.state import clone, select
from pfl.testing import check_method
from tests.helpers.federation import Federation, equal, sgd
from tests.helpers.toy import mlp


def make(net, **options):
    return CD2PFedAligned(net, **{"ramp_rounds": 0, **options})


def test_it_keeps_the_promises():
    check_method(CD2PFedAligned, make)


def test_without_an_epoch_of_alignment_it_is_cd2_pfed():
    """The last backbone is kept all the same."""
    ours = Federation(make(mlp(), optimizer=sgd(), align_epochs=0))
    theirs = Federation(CD2PFed(mlp(), optimizer=sgd(), ramp_rounds=0))
    for _ in range(2):
        ours.round(0, 1)
        theirs.round(0, 1)
    assert equal(ours.state.shared, theirs.state.shared)


def test_the_target_is_the_whole_last_model():
    """The remembered model has the client's trained private and shared channels."""
    federation = Federation(make(mlp(), optimizer=sgd()))
    result = federation.train(0)
    backbone = clone(federation.module.net.backbone.state_dict())
    kept = {
        name.removeprefix("previous.module."): value
        for name, value in result.kept.items()
        if name.startswith("previous.")
    }
    assert equal(kept, backbone)
    assert torch.equal(kept["0.bias"][:3], result.upload.shared["net.backbone.0.bias"])
    assert torch.equal(kept["0.bias"][3:], result.kept["own.module.backbone.0.bias"][3:])


def test_a_newcomers_last_backbone_is_the_servers():
    """Whole: a channel has the value that it had when it was last shared."""
    federation = Federation(CD2PFedAligned(mlp(), optimizer=sgd(), ramp_rounds=2))
    federation.round(0, 1)
    federation.round(0, 1)
    info = replace(federation.infos[0], round=2)
    sent, kept = federation.server.welcome(federation.state, info, federation.infos)
    assert sent.shared["net.backbone.0.bias"].shape == (3,)
    whole = select(federation.state.shared, ("net.backbone.*",))
    assert kept["previous.module.0.bias"].shape == (6,)
    assert equal(kept, {n.replace("net.backbone", "previous.module"): v for n, v in whole.items()})
    federation.kept[2] = kept
    assert federation.train(2).finite


def test_own_features_are_no_target_to_move_to():
    """A client alone, in its second round, receives what it left, and per-sample targets agree.

    With b = 1 the assembled backbone is the last one, so the alignment's loss is zero.
    """
    plain = {"average_max": 1.0, "average_ramp": 0.0, "align_target": "per_sample"}
    federation = Federation(make(mlp(), optimizer=sgd(), **plain))
    federation.round(0)
    (result,) = federation.round(0)
    assert result.train["align/mse"] == 0
