"""FedSimSup with supervisors of several kinds: who has which, what stays, and scores by kind."""

from __future__ import annotations

import json
import warnings
from itertools import pairwise

import pytest
import torch

from lightning_modules.fedsimsup import FedSimSup
from lightning_modules.nets import MLP
from pfl.core.state import nbytes
from pfl.core.types import Batch, ClientInfo
from pfl.engines.auto import AutoEngine
from pfl.engines.threads import ThreadsEngine
from pfl.engines.vectorised import VectorisedEngine
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop
from pfl.testing import check_method
from tests.helpers.federation import equal, follow
from tests.helpers.messages import parts
from tests.helpers.tables import csv_rows
from tests.helpers.toy import blobs, mlp

SIZES = (6, 4, 9, 5, 3, 7, 4)
SHORT = {"sup_epochs": 1, "epochs": 1}


def wide(seed=5):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MLP(3, (1, 1, 5), hidden=4)


def make(kinds=2, net_seed=1, **options):
    supervisors = [mlp(hidden=2, seed=7), wide(), mlp(hidden=3, seed=8)]
    return FedSimSup(mlp(seed=net_seed), supervisors[:kinds], **{**SHORT, **options})


def info(client):
    return ClientInfo(client, 9, torch.tensor([3, 3, 3]), 1, 10)


def kinds(module, clients=60):
    return [module.group(info(client)) for client in range(clients)]


def fit(module, rounds=3, fraction=0.5, **loop):
    options = {"accelerator": "cpu", "progress": False, **loop}
    return FederatedLoop(rounds=rounds, sampler=UniformSampler(fraction), **options).fit(
        module, blobs(sizes=SIZES)
    )


# Who has which kind.


def test_a_list_of_one_is_the_network_itself():
    alone = fit(FedSimSup(mlp(), mlp(hidden=2, seed=7), **SHORT))
    listed = fit(FedSimSup(mlp(), [mlp(hidden=2, seed=7)], **SHORT))
    assert listed.fingerprint == alone.fingerprint
    assert listed.summary == alone.summary
    assert not any("@" in name for name in listed.history[-1])


@pytest.mark.parametrize("draw", ["random", "balanced"])
def test_kinds_follow_the_initial_values_and_stay(draw):
    first = kinds(make(3, supervisor_draw=draw))
    assert set(first) == {0, 1, 2}
    assert kinds(make(3, supervisor_draw=draw)) == first
    assert kinds(make(3, supervisor_draw=draw, net_seed=2)) != first


def test_balanced_kinds_are_as_even_as_they_can_be():
    """Each of 20 blocks of three clients has all three kinds, not always in the same order."""
    found = kinds(make(3, supervisor_draw="balanced"))
    blocks = [tuple(found[start : start + 3]) for start in range(0, 60, 3)]
    assert all(sorted(block) == [0, 1, 2] for block in blocks)
    assert len(set(blocks)) > 1


def test_random_kinds_are_not_balanced():
    found = kinds(make(3))
    assert any(len(set(found[start : start + 3])) < 3 for start in range(0, 60, 3))
    assert all(10 <= found.count(kind) <= 30 for kind in range(3))


def test_kinds_are_called_after_their_classes():
    net = mlp(hidden=2)
    assert FedSimSup(net, [wide(), mlp()]).groups == ("MLP", "ToyNet")
    assert FedSimSup(net, [mlp(), wide(), mlp()]).groups == ("ToyNet-1", "MLP", "ToyNet-2")


def test_no_supervisor_is_refused():
    with pytest.raises(ValueError, match=parts("supervisor ~ one network ~ empty")):
        FedSimSup(mlp(), [])


# What each client trains, predicts with and keeps.


def test_a_client_trains_and_keeps_its_own_kind_only():
    run, snapshots = follow(make(3), blobs(sizes=SIZES), rounds=6, sampler=UniformSampler(0.5))
    module = make(3)
    assert len(run.kept) > 4
    for client, kept in run.kept.items():
        kind = module.group(info(client))
        own = f"supervisor.{kind}."
        names = {name for name in module.state_dict() if name.startswith(own)}
        assert kept.keys() == {*names, "participated"}
        size = sum(p.numel() * p.element_size() for p in module.supervisor[kind].parameters())
        assert nbytes(kept) == size + 1
    for before, after in pairwise(snapshots):
        for client in set(after.trained) & before.kept.keys():
            assert not equal(after.kept[client], before.kept[client])


def test_only_the_phase_of_a_clients_kind_takes_steps():
    """Every row of losses by kind is of clients of that kind: with a single participant one kind
    shows in the round's row."""
    run = fit(make(2), rounds=8, fraction=1 / len(SIZES), evaluate_every=8)
    shown = [[name for name in row if name.startswith("train/supervisor@")] for row in run.history]
    assert {len(names) for names in shown} == {1}
    assert {name for names in shown for name in names} == {
        "train/supervisor@ToyNet/ce",
        "train/supervisor@MLP/ce",
    }


def test_steps_as_the_unit_count_for_the_own_kind():
    run = fit(make(2, local_unit="steps", sup_epochs=2, epochs=3), rounds=1, fraction=1.0)
    assert run.history[0]["train/steps"] == 5 * len(SIZES)


def test_a_client_predicts_with_its_own_kind():
    module = make(2, supervisor_init="common")
    of_kind = {module.group(info(client)): client for client in range(20)}
    x = torch.rand(4, 5)
    for kind, client in of_kind.items():
        module.receive(module.server().broadcast(start(module), client, 1), info(client))
        assert torch.equal(module(x), module.net(x) + module.supervisor[kind](x))


def start(module):
    shared = {name: module.state_dict()[name].clone() for name in module.shared_names()}
    return module.server().init(shared, [info(client) for client in range(20)])


def test_own_initial_values_of_the_own_kind_or_zeros():
    """Two clients of one kind differ, other kinds stay as given; or zeros in the last layer."""
    for zero in (False, True):
        module = make(2, sup_zero_init=zero)
        first, second = [c for c in range(20) if module.group(info(c)) == 1][:2]
        given = module.supervisor[0].head.weight.clone()
        drawn = []
        for client in (first, second):
            fresh = make(2, sup_zero_init=zero)
            fresh.receive(fresh.server().broadcast(start(fresh), client, 1), info(client))
            assert torch.equal(fresh.supervisor[0].head.weight, given)
            assert bool(fresh.supervisor[1].head.weight.any()) is not zero
            drawn.append(fresh.supervisor[1].backbone[1].weight.clone())
        assert not torch.equal(*drawn)


def test_a_plain_trainer_trains_the_first_kind():
    module = make(2)
    loss = module.training_step(Batch(torch.rand(4, 5), torch.arange(4) % 3), 0)["loss"]
    loss.backward()
    assert module.supervisor[0].head.weight.grad is not None
    assert module.supervisor[1].head.weight.grad is None


# Scores by kind.


def test_a_kind_that_nobody_holds_has_no_score():
    seed = next(s for s in range(99) if set(kinds(make(3, net_seed=s), len(SIZES))) == {0, 2})
    row = fit(make(3, net_seed=seed), rounds=1).history[0]
    assert "test/personal/acc@MLP" not in row
    assert "test/personal/acc@ToyNet-1" in row


def test_the_kind_is_a_column_of_the_clients_records(tmp_path):
    run = fit(make(2), rounds=2, default_root_dir=str(tmp_path))
    rows = csv_rows(run.folder / "clients.csv")
    module = make(2)
    assert [int(row["group"]) for row in rows] == 2 * kinds(module, len(SIZES))
    last = [row for row in rows if row["round"] == "2" and row["group"] == "1"]
    mean = sum(float(row["test/personal/acc"]) for row in last) / len(last)
    assert run.history[-1]["test/personal/acc@MLP"] == pytest.approx(mean, abs=1e-12)
    header = json.loads((run.folder / "environment.json").read_text())["header"]
    counts = [kinds(module, len(SIZES)).count(kind) for kind in (0, 1)]
    assert header["groups"] == f"0 ToyNet: {counts[0]}, 1 MLP: {counts[1]}"


# Engines, resuming, and all other promises.


def test_engines_agree():
    expected = fit(make(3), engine="sequential").fingerprint
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engines = (ThreadsEngine(2), VectorisedEngine(), AutoEngine())
        for engine in engines:
            run = fit(make(3), engine=engine)
            assert run.fingerprint == expected
    assert (
        "FedSimSup is not vectorizable"
        in fit(make(3), rounds=1, engine="vectorised").header["engine"]
    )


def test_a_resumed_run_keeps_the_kinds_whatever_module_resumes_it(tmp_path):
    """The initial values in the checkpoint decide, not those of the module at hand."""
    assert kinds(make(2, net_seed=9), len(SIZES)) != kinds(make(2), len(SIZES))
    whole = fit(make(2), rounds=4)
    broken = fit(make(2), rounds=4, default_root_dir=str(tmp_path), checkpoint_every=1)
    early = sorted((broken.folder / "checkpoints").iterdir())[0]
    resumed = FederatedLoop(
        rounds=4, sampler=UniformSampler(0.5), accelerator="cpu", progress=False
    ).fit(make(2, net_seed=9), blobs(sizes=SIZES), ckpt_path=str(early))
    assert resumed.fingerprint == whole.fingerprint
    assert resumed.summary == whole.summary
    assert resumed.header["groups"] == whole.header["groups"]


@pytest.mark.long
def test_every_promise_is_kept():
    """All of them at once, also those on the simulated device: some ten seconds."""

    def build(net, **options):
        return FedSimSup(net, [mlp(hidden=2, seed=7), mlp(hidden=3, seed=8)], **options)

    check_method(FedSimSup, build)
