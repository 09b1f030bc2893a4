import json
import weakref
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lightning_modules.fedavg import FedAvg
from lightning_modules.fedper import FedPer
from lightning_modules.local import Local
from pfl.callbacks.early_stopping import EarlyStopping
from pfl.core.seeds import derive, scoped
from pfl.core.state import clone
from pfl.core.types import Cohort, Result
from pfl.federation.checkpoint import CheckpointError, load, save
from pfl.federation.rows import over_clients
from pfl.federation.run import Callback
from pfl.federation.sampling import BernoulliSampler, Sampler, UniformSampler
from pfl.federation.summary import summarise
from pfl.loop import FederatedLoop
from tests.helpers.federation import equal
from tests.helpers.messages import parts
from tests.helpers.tables import csv_rows
from tests.helpers.toy import blobs, mlp

SGD = partial(torch.optim.SGD, lr=0.1)


def loop(rounds=3, **options):
    return FederatedLoop(rounds=rounds, progress=False, **options)


def test_what_is_no_method_and_no_data_is_refused():
    """Both in the wrong order, a class, a network, and a loader in the place of clients."""
    method, data = FedAvg(mlp()), blobs()
    for module, told in ((data, "a ToyData"), (FedAvg, "the class FedAvg"), (mlp(), "a ToyNet")):
        with pytest.raises(TypeError, match=f"method must be a ClientModule, got {told}"):
            loop().fit(module, method)
    for wrong, told in ((DataLoader([1, 2]), "a DataLoader"), ("digits", "a str")):
        with pytest.raises(TypeError, match=parts(f"data ~ which client ~ got {told}")):
            loop().fit(method, wrong)


def test_a_function_makes_the_method_from_data_and_seed():
    """As ``pfl fit`` does: initial weights follow from the seed, and so does all else."""

    def method(data):
        return FedAvg(nn.Linear(5, data.num_classes), optimizer=SGD)

    with scoped(derive(7, "init")):
        made = method(blobs())
    runs = [loop(2, seed=7).fit(one, blobs()).fingerprint for one in (method, method, made)]
    assert len({*runs}) == 1
    assert loop(2, seed=8).fit(method, blobs()).fingerprint != runs[0]


class Turns(Sampler):
    """Round r has the r-th client."""

    def __call__(self, clients, rng, round):
        return Cohort((clients[round - 1],), (clients[round - 1],))


def test_an_outer_loop_sees_the_run_and_gives_the_same_numbers():
    federation = loop(2, sampler=Turns())
    seen = []
    for run, result in federation.rounds_of(FedPer(mlp(), optimizer=SGD), blobs()):
        assert (run.round, run.server.round) == (result.round, result.round)
        assert run.callbacks == federation.called
        seen.append((result.cohort.trains, sorted(run.kept)))
    assert seen == [((0,), [0]), ((1,), [0, 1])]
    whole = loop(2, sampler=Turns()).fit(FedPer(mlp(), optimizer=SGD), blobs())
    assert run.fingerprint == whole.fingerprint


def test_a_client_that_sits_out_keeps_its_state():
    rounds = loop(2, sampler=Turns()).rounds_of(FedPer(mlp(), optimizer=SGD), blobs())
    assert equal(*(clone(run.kept[0]) for run, _ in rounds))


def test_what_an_outer_loop_changes_is_in_the_checkpoint_and_begins_the_next_round(tmp_path):
    """Weights of zero at a rate of zero: the next round cannot change them."""
    still = partial(torch.optim.SGD, lr=0.0)
    options = {"default_root_dir": str(tmp_path), "checkpoint_every": 1}
    rounds = loop(3, **options).rounds_of(FedAvg(mlp(), optimizer=still), blobs())
    run, _ = next(rounds)
    nothing = {name: torch.zeros_like(value) for name, value in run.server.shared.items()}
    run.server = replace(run.server, shared=nothing)
    next(rounds)
    found = load(run.folder / "checkpoints" / "last.ckpt")
    assert found["round"] == 1
    for shared in (found["server"]["shared"], run.server.shared):
        assert not any(value.any() for value in shared.values())
    rounds.close()


def test_a_loop_that_is_left_early_is_resumed(tmp_path):
    def federation():
        return loop(3, default_root_dir=str(tmp_path), sampler=UniformSampler(0.7))

    for run, result in federation().rounds_of(FedPer(mlp(), optimizer=SGD), blobs()):
        folder = run.folder
        if result.round == 2:
            break
    assert [row["round"] for row in csv_rows(folder / "metrics.csv")] == ["1", "2"]
    whole = loop(3, sampler=UniformSampler(0.7)).fit(FedPer(mlp(), optimizer=SGD), blobs())
    rest = federation().rounds_of(FedPer(mlp(), optimizer=SGD), blobs(), ckpt_path="last")
    resumed, result = next(rest)
    assert result.round == 3
    assert resumed.fingerprint == whole.fingerprint


def test_bytes_by_hand():
    """5 * 6 + 6 = 36 floats of backbone; two of three clients: 288 bytes each way a round."""
    run = loop(2, sampler=UniformSampler(0.7)).fit(FedPer(mlp(), optimizer=SGD), blobs())
    assert run.history[0]["comm/bytes_up"] == run.history[0]["comm/bytes_down"] == 2 * 36 * 4
    assert run.history[1]["comm/bytes_total"] == 4 * 2 * 36 * 4


def test_trains_and_uploads_differ():
    """All train, few upload: heads of all clients are kept, the average is of the uploads."""
    sampler = BernoulliSampler(0.4, minimum=1)
    run = loop(1, sampler=sampler).fit(FedPer(mlp(), optimizer=SGD), blobs())
    assert sorted(run.kept) == [0, 1, 2]
    assert run.history[0]["comm/bytes_up"] < run.history[0]["comm/bytes_down"]


class Uploads(Callback):
    """Counts the uploads of earlier rounds that are alive whenever a client has trained."""

    def __init__(self):
        self.seen, self.alive = [], []

    def on_result(self, run, result):
        self.alive.append(
            sum(number <= run.round and ref() is not None for number, ref in self.seen)
        )
        self.seen.append((run.round + 1, weakref.ref(result.upload)))


def test_a_mean_over_clients_leaves_out_what_weighs_nothing():
    """Empty Poisson batches give a loss of no sample."""
    none, some = (Result(0, None, {}, {"ce": 2.0}, steps=1, samples=n) for n in (0, 3))
    assert over_clients({0: none}, "train", lambda result: result.train) == {}
    found = over_clients({0: none, 1: some}, "train", lambda result: result.train)
    assert found == {"train/ce": 2.0}


def test_nothing_of_a_round_is_held_while_the_next_one_trains():
    uploads = Uploads()
    options = {"callbacks": [uploads], "sampler": UniformSampler(), "engine": "sequential"}
    loop(3, **options).fit(FedAvg(mlp()), blobs())
    assert len(uploads.alive) == 9
    assert not any(uploads.alive)


def test_without_training_data_there_is_no_federation():
    with pytest.raises(ValueError, match="no client has training data"):
        loop().fit(FedAvg(mlp(), optimizer=SGD), blobs(sizes=(0, 0)))


def test_both_points():
    run = loop(1, sampler=UniformSampler(0.4), evaluate_at=["post_local", "post_broadcast"]).fit(
        FedAvg(mlp(), optimizer=SGD), blobs()
    )
    row = run.history[-1]
    assert row["test/personal/loss"] != row["test/personal_post_broadcast/loss"]
    assert row["test/personal_post_broadcast/loss"] == pytest.approx(row["test/global/loss"])


def test_a_network_without_the_parts_that_a_method_needs_is_refused_with_the_way_to_add_them():
    with pytest.raises(TypeError, match=parts("FedPer ~ Linear ~ SplitNet ~ personal_layers")):
        loop().fit(FedPer(torch.nn.Linear(5, 3)), blobs())


def test_a_pattern_that_matches_nothing_is_refused_by_name():
    with pytest.raises(ValueError, match=parts("FedAvg.stays ~ 'net.decoder.*' ~ net.weight")):
        loop().fit(FedAvg(torch.nn.Linear(5, 3), stays=["decoder.*"]), blobs())


# Records.


def test_records(tmp_path):
    run = loop(3, default_root_dir=str(tmp_path), evaluate_every=2, name="x").fit(
        FedAvg(mlp(), optimizer=SGD), blobs(), config="seed: 42\n"
    )
    assert run.folder.parent == tmp_path / "x"
    assert [row["round"] for row in csv_rows(run.folder / "metrics.csv")] == ["1", "2", "3"]
    clients = csv_rows(run.folder / "clients.csv")
    assert [(row["round"], row["client"]) for row in clients] == [
        (r, c) for r in "23" for c in "012"
    ]
    assert (run.folder / "config.yaml").read_text() == "seed: 42\n"
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["fingerprint"] == run.fingerprint
    assert json.loads((run.folder / "environment.json").read_text())["packages"]["torch"]


def test_two_runs_never_share_a_folder(tmp_path):
    folders = {
        loop(1, default_root_dir=str(tmp_path)).fit(Local(mlp()), blobs()).folder for _ in range(3)
    }
    assert len(folders) == 3


def test_a_run_that_was_stopped_early_stays_so(tmp_path):
    def fit(ckpt_path=None):
        stop = EarlyStopping("val/personal/loss", patience=2, mode="min", min_delta=10.0)
        made = loop(9, callbacks=[stop], default_root_dir=str(tmp_path))
        return made.fit(FedAvg(mlp(), optimizer=SGD), blobs(), ckpt_path=ckpt_path)

    run, again = fit(), fit("last")
    assert (again.round, again.fingerprint) == (3, run.fingerprint)


def test_each_of_two_early_stoppings_has_its_own_state(tmp_path):
    """The first waits for 4 rounds, of which 2 lie before the resume; the second never stops."""

    def fit(rounds, ckpt_path=None):
        stops = [
            EarlyStopping("val/personal/loss", patience, mode="min", min_delta=delta)
            for patience, delta in ((4, 10.0), (9, 0.0))
        ]
        made = loop(rounds, callbacks=stops, default_root_dir=str(tmp_path))
        return made.fit(FedAvg(mlp(), optimizer=SGD), blobs(), ckpt_path=ckpt_path)

    content = load(fit(3).folder / "checkpoints" / "last.ckpt")
    assert [content["callbacks"][f"EarlyStopping{n}"]["waited"] for n in ("", "-2")] == [2, 0]
    assert fit(9, "last").round == 5


def test_a_loop_runs_a_second_time_as_the_first(tmp_path):
    stop = EarlyStopping("val/personal/loss", patience=2, mode="min", min_delta=10.0)
    made = loop(9, callbacks=[stop], default_root_dir=str(tmp_path))
    runs = [made.fit(FedAvg(mlp(), optimizer=SGD), blobs()) for _ in range(2)]
    assert [run.round for run in runs] == [3, 3]
    for run in runs:
        assert load(run.folder / "checkpoints" / "last.ckpt")["round"] == 3


# Checkpoints.


def test_checkpoint_errors(tmp_path):
    module = FedAvg(mlp(), optimizer=SGD)
    cases = {"none.ckpt": "no checkpoint", "text.ckpt": "damaged"}
    (tmp_path / "text.ckpt").write_text("hello")
    save(tmp_path / "good.ckpt", {"round": 1})
    whole = (tmp_path / "good.ckpt").read_bytes()
    (tmp_path / "cut.ckpt").write_bytes(whole[: len(whole) // 2])
    torch.save({"state_dict": {}}, tmp_path / "foreign.ckpt")
    cases |= {"cut.ckpt": "damaged", "foreign.ckpt": "that torch.save wrote"}
    for name, message in cases.items():
        with pytest.raises(CheckpointError, match=f"{message}.*{name}|{name}.*{message}"):
            loop().fit(module, blobs(), ckpt_path=str(tmp_path / name))
    with pytest.raises(CheckpointError, match=parts("--ckpt_path last: ~ fedavg_toydata")):
        loop(default_root_dir=str(tmp_path)).fit(module, blobs(), ckpt_path="last")


def test_personal_model_of_a_checkpoint(tmp_path):
    data = blobs()
    run = loop(3, default_root_dir=str(tmp_path)).fit(FedPer(mlp(), optimizer=SGD), data)
    module = FedPer(mlp(seed=9), optimizer=SGD)
    loop(3).personal(module, data, str(run.folder), 2)
    state = module.state_dict()
    for name, value in {**run.server.shared, **run.kept[2]}.items():
        assert torch.equal(state[name], value)
    with pytest.raises(ValueError, match=parts("client 3 ~ 0 to 2")):
        loop(3).personal(module, data, str(run.folder), 3)


# Summary.


def test_summary_by_hand():
    """Accuracies .1 .5 .3 at rounds 1, 11, 12: the last ten rounds are 3 to 12, their mean .4."""
    history = [
        {"round": 1, "test/personal/acc": 0.1, "val/personal/acc": 0.9},
        {"round": 2, "train/local/ce": 1.0},
        {"round": 11, "test/personal/acc": 0.5, "val/personal/acc": 0.2},
        {"round": 12, "test/personal/acc": 0.3, "val/personal/acc": 0.3},
    ]
    summary = summarise(history)
    assert summary["test/personal/acc/last"] == 0.3
    assert summary["test/personal/acc/mean_last10"] == pytest.approx(0.4)
    assert summary["test/personal/acc/best_by_val"] == 0.1
    assert summary["test/personal/acc/best_on_test"] == 0.5
    assert summarise([]) == {}


def test_a_run_of_python_data_is_exported_and_its_predictions_read(tmp_path):
    federation = loop(2, default_root_dir=str(tmp_path))
    data = blobs()
    run = federation.fit(FedPer(mlp(), optimizer=SGD), data)
    federation.export(FedPer(mlp()), data, "last", client=1, file=tmp_path / "one.ckpt")
    with pytest.raises(ValueError, match=parts("last.ckpt contains no module ~ pfl export")):
        FedPer.load_from_checkpoint(run.folder / "checkpoints/last.ckpt", net=mlp())
    model = FedPer.load_from_checkpoint(tmp_path / "one.ckpt", net=mlp(seed=9)).eval()
    split = data.split(1, "test")
    rows = {row["client"]: row for row in run.latest.clients}
    found = {c: pair for c, *pair in federation.predict(FedPer(mlp()), data, str(run.folder))}
    assert [*found] == [0, 1, 2]
    predicted, targets = found[1]
    assert torch.allclose(predicted, model(split.x).softmax(1))
    assert torch.equal(targets, split.targets)
    right = (predicted.argmax(1) == targets).double().mean()
    assert rows[1]["test/personal/acc"] == pytest.approx(float(right))
