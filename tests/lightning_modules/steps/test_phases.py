"""Phases over one part of a network."""

from __future__ import annotations

import pytest
import torch

from lightning_modules.fedavg import FedAvg
from lightning_modules.steps.phases import part_phase
from pfl.core.state import clone
from pfl.training.client_round import run_plan
from pfl.training.phases import Tally
from tests.helpers.federation import context, job
from tests.helpers.toy import blobs, normed

BODY, HEAD = {"net.backbone.0", "net.backbone.1"}, {"net.head"}
STATISTICS = {f"net.backbone.1.{name}" for name in ("running_mean", "running_var")}


def changed(part, **options):
    """Return the names of the entries that a phase changes, counters aside."""
    module, data = FedAvg(normed()), blobs()
    before = clone(module.state_dict())
    plan = [part_phase(module, part, 1, **options)]
    run_plan(context(module, data), job(data), plan, Tally())
    after = module.state_dict()
    names = {name for name, value in before.items() if not torch.equal(after[name], value)}
    return {name for name in names if not name.endswith("num_batches_tracked")}


@pytest.mark.parametrize(("part", "moving"), [("all", BODY | HEAD), ("head", HEAD), ("body", BODY)])
def test_only_the_part_moves(part, moving):
    assert {name.rpartition(".")[0] for name in changed(part)} == moving


def test_statistics_of_a_trained_part_rest_where_it_is_asked_for():
    assert not STATISTICS & changed("all", evals=("net.backbone.1",))


def test_the_head_alone_is_trained_on_features_computed_once():
    module = FedAvg(normed())
    assert part_phase(module, "head", 1).inputs is not None
    assert part_phase(module, "head", 1, objective=module.losses).inputs is None
    assert part_phase(module, "body", 1).inputs is None
