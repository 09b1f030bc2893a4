"""Every method, found and not listed, keeps every promise of :mod:`pfl.testing`.

That a method builds from its YAML is promised by ``tests/test_configs.py``.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
from torch import nn

from lightning_modules import (
    APFL,
    APPLE,
    FML,
    PFAKD,
    SCAFFOLD,
    FedAMP,
    FedAS,
    FedASVariant,
    FedAvg,
    FedCP,
    FedPAC,
    FedPHP,
    FedProto,
    FedSimSup,
    FedTGP,
    KNNPer,
    PerFedAvg,
    PFedFDA,
    PFedVEM,
    UniVarFL,
)
from pfl.core.task import MultiLabel, Regression
from pfl.testing import PROMISES
from pfl.testing.federation import ToyFederation
from pfl.testing.promise import SGD
from pfl.testing.toy import blobs, mlp
from pfl.training.declaration import MethodError
from tests.helpers.discovery import build, methods, subject
from tests.helpers.messages import parts


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.__name__)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
def test_a_method_keeps_a_promise(method, promise):
    promise.hold(subject(method))


# Options under which a method computes in other ways, and what these could break.
VARIANTS = [
    (APPLE, {"downloads": 1, "first": "uniform"}),
    (APFL, {"alpha_update": "step", "v_grad": "plain"}),
    *(
        (FedAS, {"align_target": target, "fisher_estimator": estimator})
        for target, estimator in (("per_sample", "per_sample_mean"), ("class_mean", "full_data"))
    ),
    (FedASVariant, {"align_manner": "serial"}),
    *((FedAMP, {"shares": shares, "start": "cloud"}) for shares in ("cosine", "distance")),
    *((FedCP, options) for options in ({"anchor_mode": "train"}, {"gumbel_batch": 20})),
    (FedPAC, {"alignment": 0.0}),
    *((FedPHP, {"regulariser": kind, "first": "skip"}) for kind in ("mmd", "mmd_fixed")),
    (FedProto, {"weighting": "samples"}),
    (FedSimSup, {"local_unit": "steps"}),
    (FedTGP, {"proto_model": "received", "server_epochs": 3}),
    (FML, {"detach": False, "kl": "element"}),
    (KNNPer, {"mix": "logits", "capacity": 5, "neighbours": 2, "tune": True}),
    (PerFedAvg, {"variant": "hf", "inner_lr": 0.3}),
    (PFAKD, {"teacher_mode": "eval", "distill_reduction": "sum_dim"}),
    (PFedFDA, {"stats": "fresh_pass"}),
    (PFedVEM, {"base_loss": "mean_head", "tau_timing": "after_head"}),
    (SCAFFOLD, {"option": "I"}),
    *((UniVarFL, {"he_form": form, "cv_statistic": "std"}) for form in ("log", "chord", "rbf")),
    (UniVarFL, {"normalize_for_head": True, "cv_unbiased": True}),
]
VARIANT_PROMISES = ("padding_does_not_count", "stacked_agrees")


@pytest.mark.parametrize(("method", "options"), VARIANTS)
def test_a_variant_keeps_the_promises_of_a_stack(method, options):
    usual = subject(method)
    asked = replace(usual, build=lambda net, **more: usual.build(net, **{**options, **more}))
    for promise in PROMISES:
        if promise.name in VARIANT_PROMISES:
            promise.hold(asked)


# What another loss, and other targets, could break.
TASK_PROMISES = {
    Regression(): ("fits_without_federation", "resumes", "stacked_agrees"),
    MultiLabel(): ("padding_does_not_count",),
}
NEED_CLASSES = {
    *("CD2PFed", "CD2PFedAligned", "FedAS", "FedASVariant", "FedEM", "FedGH", "FedPAC"),
    *("FedPHP", "FedProto", "FedROD", "FedSimSup", "FedSimSupSerial", "FedTGP", "FML", "GPFL"),
    "KNNPer",
    *("PFedBayes", "PFedFDA", "PFedVEM", "UniVarFL"),
}


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.__name__)
def test_a_method_serves_other_tasks_or_refuses_them(method):
    for task, names in TASK_PROMISES.items():
        asked = replace(subject(method), task=task)
        if method.__name__ in NEED_CLASSES:
            with pytest.raises(MethodError, match=parts(f"{method.__name__} ~ classes")):
                ToyFederation(asked.module())
            continue
        for promise in PROMISES:
            if promise.name in names:
                promise.hold(asked)


@pytest.mark.slow
@pytest.mark.parametrize("method", methods(), ids=lambda method: method.__name__)
@pytest.mark.parametrize("task", TASK_PROMISES, ids=lambda task: type(task).__name__)
def test_a_method_keeps_every_promise_under_other_tasks(method, task):
    if method.__name__ in NEED_CLASSES:
        pytest.skip("it works with classes")
    for promise in PROMISES:
        promise.hold(replace(subject(method), task=task))


def test_a_task_that_is_not_the_datas_is_refused_by_name():
    with pytest.raises(MethodError, match=parts("Classification() ~ Regression()")):
        ToyFederation(FedAvg(mlp()), blobs(task=Regression()))


NEED_PARTS = {
    *(
        "CD2PFedAligned",
        "FedAS",
        "FedASVariant",
        "FedBABU",
        "FedCP",
        "FedDBE",
        "FedGH",
        "FedPAC",
        "FedPer",
    ),
    *("FedProto", "FedRep", "FedROD", "FedSimSupSerial", "FedTGP", "Freeze", "GPFL", "KNNPer"),
    *("FedMD", "LPFT", "MOON", "PFAKD", "PFedFDA", "PFedSim", "PFedVEM", "UniVarFL"),
}


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.__name__)
@pytest.mark.filterwarnings("ignore:Sequential has no batch norm")
def test_a_method_takes_a_network_without_parts_or_asks_for_them(method):
    net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    refused = pytest.raises((TypeError, ValueError), match="SplitNet")
    with refused if method.__name__ in NEED_PARTS else nullcontext():
        ToyFederation(build(method, net, optimizer=SGD)).round()


def test_alignment_of_each_sample_needs_no_classes():
    method = FedAS(mlp(), align_target="per_sample", optimizer=SGD, task=Regression())
    ToyFederation(method).round()
