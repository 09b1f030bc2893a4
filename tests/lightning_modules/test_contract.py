"""Every method, found and not listed, keeps every promise of :mod:`pfl.testing`.

That a method builds from its YAML is promised by ``tests/test_configs.py``.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
from torch import nn

from lightning_modules import (
    FedAS,
    FedAvg,
)
from pfl.core.task import Classification, MultiLabel, Regression
from pfl.testing import PROMISES
from pfl.testing.federation import ToyFederation
from pfl.testing.promise import SGD
from pfl.testing.toy import blobs, mlp
from pfl.training.declaration import MethodError
from tests.helpers.discovery import build, facts, methods, subject
from tests.helpers.messages import parts


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.__name__)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
def test_a_method_keeps_a_promise(method, promise):
    promise.hold(subject(method))


VARIANT_PROMISES = ("padding_does_not_count", "stacked_agrees")


@pytest.mark.parametrize(
    ("method", "options"),
    [(method, options) for method in methods() for options in facts(method).stacks],
)
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


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.__name__)
def test_a_method_serves_other_tasks_or_refuses_them(method):
    for task, names in TASK_PROMISES.items():
        asked = replace(subject(method), task=task)
        if facts(method).needs_classes:
            with pytest.raises(TypeError, match=parts(f"{method.__name__} ~ classes")):
                ToyFederation(asked.module())
            continue
        for promise in PROMISES:
            if promise.name in names:
                promise.hold(asked)


@pytest.mark.slow
@pytest.mark.parametrize("method", methods(), ids=lambda method: method.__name__)
@pytest.mark.parametrize("task", TASK_PROMISES, ids=lambda task: type(task).__name__)
def test_a_method_keeps_every_promise_under_other_tasks(method, task):
    if facts(method).needs_classes:
        pytest.skip("it works with classes")
    for promise in PROMISES:
        promise.hold(replace(subject(method), task=task))


def test_a_task_that_is_not_the_datas_is_refused_by_name():
    with pytest.raises(MethodError, match=parts("Classification() ~ Regression()")):
        ToyFederation(FedAvg(mlp(), task=Classification()), blobs(task=Regression()))


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.__name__)
@pytest.mark.filterwarnings("ignore:Sequential has no batch norm")
def test_a_method_takes_a_network_without_parts_or_asks_for_them(method):
    net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    refused = pytest.raises((TypeError, ValueError), match="SplitNet")
    with refused if facts(method).needs_parts else nullcontext():
        ToyFederation(build(method, net, optimizer=SGD)).round()


def test_alignment_of_each_sample_needs_no_classes():
    method = FedAS(mlp(), align_target="per_sample", optimizer=SGD, task=Regression())
    ToyFederation(method).round()
