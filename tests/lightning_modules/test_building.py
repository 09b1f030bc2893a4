"""What happens when methods are built: ranges, initial values, and options of the server."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lightning_modules import (
    APFL,
    APPLE,
    CFL,
    FML,
    GPFL,
    IFCA,
    LPFT,
    MOON,
    PFAKD,
    SCAFFOLD,
    CD2PFed,
    Ditto,
    FedALA,
    FedAMP,
    FedAS,
    FedAvgP,
    FedCAC,
    FedCP,
    FedDBE,
    FedDyn,
    FedEM,
    FedFomo,
    FedGH,
    FedMD,
    FedPAC,
    FedPer,
    FedPHP,
    FedProto,
    FedProx,
    FedRep,
    FedROD,
    FedSimSup,
    FedTGP,
    KNNPer,
    LGFedAvg,
    PerFedAvg,
    PFedBayes,
    PFedFDA,
    PFedHN,
    PFedMe,
    PFedSim,
    PFedVEM,
    UniVarFL,
)
from tests.helpers.discovery import build, facts, methods
from tests.helpers.federation import SGD
from tests.helpers.messages import parts, refuses
from tests.helpers.toy import mlp

RANGES = {
    APFL: {"[0, 1]": {"alpha": (-0.1, 1.5)}},
    CD2PFed: {
        "[0, 1]": {"private_share": 1.5, "average_max": -0.1},
        "negative": {"ramp_rounds": -1, "distillation": -1},
    },
    CFL: {"negative": {"eps1": -1, "eps2": -1, "start_round": -1, "gamma_max": -0.1}},
    Ditto: {"negative": {"proximity": -1}},
    FedALA: {
        "(0, 100]": {"mix_percent": (0, 101)},
        "negative": {"mix_lr": -1},
        "at least 1": {"window": 0},
        "all ~ at least 1": {"top": ("al", 0)},
    },
    FedAMP: {
        "positive": {"alpha": 0},
        "negative": {"proximity": -1, "sigma": -1},
        "[0, 1]": {"own_share": (-0.1, 1.1)},
    },
    FedAS: {
        "positive": {"align_lr": 0},
        "negative": {"align_epochs": -1},
        "at least 1": {"align_batch": 0},
    },
    APPLE: {
        "at least 1": {"num_clients": 0, "downloads": 0},
        "negative": {"share_lr": -1, "pull": -1, "pull_rounds": -1, "sharpness": -1},
    },
    FedFomo: {
        "at least 1": {"candidates": 0},
        "[0, 1]": {"explore": 1.5},
        "negative": {"explore_decay": -1},
    },
    FedMD: {
        "at least 1": {"public_samples": 0, "digest_batch_size": 0},
        "[1, 12]": {"align_samples": (0, 13)},
        "negative": {"public_epochs": -1, "private_epochs": -1, "digest_epochs": -1},
    },
    PFedHN: {
        "at least 1": {"steps": 0, "embedding": 0, "hidden": 0},
        "negative": {
            **{"hidden_layers": -1, "server_lr": -1},
            **{"server_momentum": -1, "server_weight_decay": -1},
        },
    },
    FedAvgP: {"negative": {"ft_epochs": -1, "ft_lr": -1}},
    FedCAC: {"[0, 1]": {"tau": (-0.1, 1.1)}, "at least 1": {"beta": 0}},
    FedCP: {"negative": {"discrepancy_weight": -1}, "at least 1": {"gumbel_batch": 0}},
    FedDBE: {"negative": {"kappa": -1}, "(0, 1]": {"beta": (0, 1.1)}},
    FedDyn: {"positive": {"alpha": (0.0, -1.0)}},
    FedEM: {"at least 1": {"components": 0}},
    FedGH: {
        "negative": {"server_lr": -1, "server_epochs": -1},
        "at least 1": {"server_batch": 0},
    },
    FedPAC: {
        "negative": {"alignment": -1, "head_lr": -1, "head_epochs": -1},
        "[0, 1)": {"min_share": 1.0},
    },
    FedProto: {"negative": {"prototype_weight": -1}},
    FedProx: {"negative": {"mu": -0.1}},
    FedRep: {"negative": {"head_epochs": -1}},
    FedROD: {"negative": {"gamma": -1}},
    FedSimSup: {"negative": {"lr_sup": -1.0, "lr_inter": -1.0, "sup_epochs": -1, "mix_C": -1.0}},
    FedTGP: {
        "negative": {"prototype_weight": -1, "margin": -1, "server_lr": -1, "server_epochs": -1},
        "at least 1": {"server_batch": 0},
    },
    FedPHP: {
        "[0, 1]": {"inherit_weight": (-0.1, 1.1), "momentum": 1.1},
        "(0, 1]": {"participation": 0.0},
    },
    FML: {"[0, 1]": {"alpha": (-0.1, 1.1), "beta": (-0.1, 1.1)}},
    GPFL: {"negative": {"magnitude_weight": -1, "guide_decay": -0.1}},
    IFCA: {"at least 1": {"k": 0}},
    KNNPer: {
        "at least 1": {"neighbours": 0, "capacity": 0},
        "[0, 1]": {"share": 1.5},
        "positive": {"scale": 0.0},
    },
    LGFedAvg: {"negative": {"warm_start_rounds": -1}},
    LPFT: {"negative": {"lp_epochs": -1, "lp_lr": -1, "ft_epochs": -1, "ft_lr": -1}},
    MOON: {"negative": {"mu": -1.0}, "positive": {"tau": 0.0}},
    PerFedAvg: {
        "negative": {"inner_lr": -1, "adapt_epochs": -2},
        "positive": {"delta": 0},
        "at least 1": {"part_size": 0},
    },
    PFAKD: {"negative": {"distill_weight": -1}},
    PFedBayes: {
        "negative": {"kl_weight": -1, "init_mean_std": -1},
        "at least 1": {"inner_steps": 0, "mc_samples": 0, "local_steps": (0, -3)},
    },
    PFedFDA: {"(0, 1)": {"eps": 0}},
    PFedMe: {
        "negative": {"proximity": -1, "server_step": -1},
        "at least 1": {"inner_steps": 0, "local_steps": (0, -3)},
        "positive": {"inner_lr": 0},
    },
    PFedSim: {"negative": {"warmup": -1}},
    PFedVEM: {
        "negative": {"head_epochs": -1, "lr_head": -1.0, "lr_base": -1.0},
        "positive": {"init_std": 0.0},
        "[0, 1)": {"server_momentum": 1.0},
        "at least 1": {"mc_samples": 0},
    },
    SCAFFOLD: {"positive": {"eta_g": 0}},
    UniVarFL: {"negative": {"w_cv": -1.0, "w_he": -0.5}, "positive": {"eps": 0.0}},
}


@pytest.mark.parametrize("method", RANGES, ids=lambda method: method.__name__)
def test_numbers_out_of_range_are_refused(method):
    for right, wrong in RANGES[method].items():
        refuses(partial(build, method, mlp()), right, **wrong)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (FedALA, {"top": 3}, "2 layers ~ 3"),
        (FedPer, {"personal_layers": 3}, "2 layers ~ 3"),
        (
            FedRep,
            {"epochs": 1, "head_epochs": None, "body_epochs": 2},
            "epochs is 1, of which body_epochs takes 2",
        ),
        (LGFedAvg, {"num_global_layers": 3}, "2 layers ~ 3"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(method, options, message):
    with pytest.raises(ValueError, match=parts(message)):
        method(mlp(), **options)


@pytest.mark.parametrize(
    ("method", "option", "message"),
    [
        (Ditto, "proximity", "lambda ~ 1"),
        (FedDyn, "alpha", "alpha ~ 1: ~ diverges"),
        (FedProx, "mu", "mu ~ 1: ~ diverges"),
    ],
)
def test_a_pull_that_overshoots_is_warned_of(method, option, message):
    """At a rate of 0.1 the factor is 1."""
    with pytest.warns(UserWarning, match=parts(message)):
        method(mlp(), optimizer=SGD, **{option: 10.0})


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.__name__)
@pytest.mark.filterwarnings("ignore:.*has no batch norm")
def test_initial_values_follow_the_network(method):
    """Equal networks give equal methods, and nothing is drawn from torch's default stream."""
    nets = [mlp(), mlp(), mlp(seed=2)]
    stream = torch.get_rng_state()
    one, same, other = (build(method, net).state_dict() for net in nets)
    assert torch.equal(torch.get_rng_state(), stream)
    for name, value in one.items():
        torch.testing.assert_close(value, same[name], rtol=0, atol=0, equal_nan=True)
    if name := facts(method).draws:
        assert not torch.equal(one[name], other[name])


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.__name__)
@pytest.mark.filterwarnings("ignore:.*has no batch norm")
def test_the_server_gets_its_options(method):
    serves = facts(method).serves
    options = {option: value for option, (_, value) in serves.items()}
    for weighting in ("samples", "uniform"):
        server = build(method, mlp(), weighting=weighting, **options).server()
        assert server.weighting == weighting
        for attribute, value in serves.values():
            assert getattr(server, attribute) == value
