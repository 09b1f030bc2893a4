"""Clients that are held out of training, and join afterwards."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from lightning_modules import (
    APFL,
    IFCA,
    Ditto,
    FedAS,
    FedAvg,
    FedAvgP,
    FedBN,
    FedPer,
    FedSimSup,
    Local,
    PFedBayes,
    PFedVEM,
)
from pfl.cli.reading import read
from pfl.cli.runs import fit as main_fit
from pfl.cli.trained import predict
from pfl.cli.trained import test as run_test
from pfl.core.data import info_of
from pfl.core.server import Server, ServerState
from pfl.core.state import assign, named
from pfl.core.task import Classification, Regression
from pfl.core.types import Broadcast, ClientInfo, Phase
from pfl.engines import op_threads
from pfl.engines.processes import ProcessesEngine
from pfl.extras.newcomers.joining import hurt, welcome
from pfl.extras.newcomers.newcomers import Newcomers
from pfl.federation import checkpoint
from pfl.federation.resume import FILE
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop
from pfl.results.compare import compare
from pfl.results.compare_sheets import sheets
from pfl.results.pictures import draw
from pfl.results.report import report
from pfl.results.runs import RunFolder
from pfl.results.settings import group
from pfl.testing.compare import difference
from pfl.testing.contract import check_method
from pfl.testing.federation import ToyFederation, fit
from pfl.testing.toy import blobs, mlp, normed
from pfl.training import client_round
from pfl.training.declaration import MethodError
from pfl.training.uplink import UplinkStep
from tests.helpers.messages import parts
from tests.helpers.tables import csv_rows

SGD = partial(torch.optim.SGD, lr=0.1)
SIZES = (9, 6, 4, 8, 7)


def held(*unseen, validation=(), sizes=SIZES, **options):
    data = blobs(sizes, **options)
    data.apart = {"unseen": unseen, "validation": validation}
    return data


def joined(method, data=None, **options):
    """Return the last row of a run of two rounds, and its unseen clients' rows."""
    options = {"join_rounds": 2, "tune_epochs": 2, **options}
    data = held(3, 4) if data is None else data
    run = fit(method, data, 2, evaluations=[Newcomers(**options)])
    return run.history[-1], [row for row in run.latest.clients if row.get("unseen")]


def test_without_local_rounds_fedavg_scores_as_its_global_model_and_local_as_the_initial_one():
    data = held(3, 4)
    row, rows = joined(FedAvg(mlp(), optimizer=SGD), data, join_rounds=0)
    data.apart = {}
    run = fit(FedAvg(mlp(), optimizer=SGD), held(3, 4), 2)
    federation = ToyFederation(FedAvg(mlp(), optimizer=SGD), data)
    federation.state = run.server
    expected = [accuracy_of(federation, client, "global") for client in (3, 4)]
    assert [one["test/unseen_joined/acc"] for one in rows] == expected
    assert row["test/unseen/acc"] == row["test/unseen_joined/acc"] == sum(expected) / 2
    _, rows = joined(Local(mlp(), optimizer=SGD), join_rounds=0)
    initial = ToyFederation(Local(mlp(), optimizer=SGD), data)
    expected = [accuracy_of(initial, client, "personal") for client in (3, 4)]
    assert [one["test/unseen_joined/acc"] for one in rows] == expected


def accuracy_of(federation, client, model):
    job = replace(federation.job(client, 1), splits=("test",), model=model)
    return client_round.test(federation.context, job)["test"]["acc"]


def test_an_unseen_client_with_a_seen_ones_data_scores_the_same_where_nothing_is_kept():
    data = held(3)
    for split in data.splits.values():
        split[3] = split[1]
    run = fit(FedAvg(mlp(), optimizer=SGD), data, 2, evaluations=[Newcomers(join_rounds=3)])
    scores = {int(row["client"]): row for row in run.latest.clients}
    for k in ("unseen", "unseen_joined_1", "unseen_joined_2", "unseen_joined"):
        assert scores[3][f"test/{k}/acc"] == scores[1]["test/personal/acc"]


def test_a_newcomer_of_local_trains_as_a_client_of_local_does():
    """After k local rounds it is what k rounds of training make of it; an epoch is one batch."""
    late = fit(
        Local(mlp(), optimizer=SGD),
        held(3, batch_size=9),
        2,
        evaluations=[Newcomers(join_rounds=2)],
    )
    found = late.personal(3).module.state_dict()
    data = blobs(SIZES, batch_size=9)
    member = fit(Local(mlp(), optimizer=SGD), data, 2, sampler=UniformSampler()).kept[3]
    torch.testing.assert_close({name: found[name] for name in member}, member)


@pytest.mark.parametrize(
    ("task", "score", "sign"), [(Classification(), "acc", 1), (Regression(), "loss", -1)]
)
def test_gaps_are_positive_where_unseen_data_do_worse(task, score, sign):
    """Of samples: the members' scores on training less test data, of the one model of FedAvg."""
    data = held(3, 4, task=task)
    run = fit(
        FedAvg(mlp(), optimizer=SGD, task=task), data, 2, evaluations=[Newcomers(join_rounds=1)]
    )
    row = run.history[-1]
    federation = ToyFederation(FedAvg(mlp(), optimizer=SGD, task=task), data)
    federation.state = run.server
    apart = []
    for client in (0, 1, 2):
        job = replace(federation.job(client), splits=("train", "test"), model="global")
        scores = client_round.test(federation.context, job)
        apart.append(scores["train"][score] - scores["test"][score])
    assert row["gap/sample"] == pytest.approx(sign * sum(apart) / 3)
    assert row["gap/sample"] != 0
    apart = row[f"test/personal/{score}"] - row[f"test/unseen_joined/{score}"]
    assert row["gap/participation"] == sign * apart


def test_nothing_is_trained_before_the_zero_shot_test():
    """FedAvg-P tunes before its test: a newcomer's first model is the global one nevertheless."""
    (one,) = joined(FedAvgP(mlp(), optimizer=SGD), held(3))[1]
    (plain,) = joined(FedAvg(mlp(), optimizer=SGD), held(3))[1]
    assert one["test/unseen/loss"] == plain["test/unseen/loss"]
    assert one["test/unseen_joined/loss"] != plain["test/unseen_joined/loss"]


def test_epochs_of_tuning_are_chosen_by_validation_clients_alone():
    """Their data decide, and a reported client's data do not; a tie takes the fewest epochs."""
    row, _ = joined(Local(mlp(), optimizer=SGD), held(3, validation=(4,)), tune_epochs=4)
    poisoned = held(3, validation=(4,))
    x, y = poisoned.splits["test"][3]
    poisoned.splits["test"][3] = (x, (y + 1) % 3)
    other, _ = joined(Local(mlp(), optimizer=SGD), poisoned, tune_epochs=4)
    assert row["unseen/tuned_epochs"] == other["unseen/tuned_epochs"] > 0
    constant = held(3, validation=(4,))
    x, y = constant.splits["train"][4]
    constant.splits["train"][4] = (torch.zeros_like(x), y)
    x, y = constant.splits["test"][4]
    constant.splits["test"][4] = (torch.full_like(x, torch.nan), y)
    assert joined(Local(mlp(), optimizer=SGD), constant)[0]["unseen/tuned_epochs"] == 0


def test_validation_clients_are_not_reported_and_nobody_held_out_trains():
    run = fit(FedPer(mlp(), optimizer=SGD), held(3, validation=(4,)), 3)
    assert set(run.kept) <= {0, 1, 2}
    assert {int(row["client"]) for row in run.latest.clients} == {0, 1, 2, 3}
    assert [row["client"] for row in run.latest.clients if row.get("unseen")] == [3]


def test_a_newcomer_without_test_samples_has_no_scores():
    data = held(2, 3, 4)
    empty = [(x[:0], y[:0]) for x, y in data.splits["test"]]
    data.splits["test"][3] = empty[3]
    with pytest.warns(UserWarning, match=parts("client 3 ~ without test samples")):
        row, rows = joined(FedAvgP(mlp(), optimizer=SGD), data)
    assert [one["client"] for one in rows] == [2, 4]
    assert row["test/unseen/acc"] == pytest.approx(
        np.mean([one["test/unseen/acc"] for one in rows])
    )
    data.splits["test"][2:] = empty[2:]
    with pytest.warns(UserWarning, match=parts("clients 2, 3, 4 ~ without test samples")):
        row, rows = joined(FedAvgP(mlp(), optimizer=SGD), data)
    assert rows == []
    assert not any("unseen" in name for name in row)


def test_who_is_hurt_is_strictly_worse_after_tuning():
    pairs = [(0.5, 0.5), (0.6, 0.5), (0.5, 0.6), (0.9, 0.1)]
    rows = [{"test/unseen/acc": a, "test/unseen_tuned/acc": b} for a, b in pairs]
    assert hurt(rows, "acc", more=True) == 0.5
    assert hurt(rows, "acc", more=False) == 0.25
    assert hurt(rows[:1], "acc", more=True) == 0


def test_they_join_when_asked_and_after_the_last_round():
    run = fit(FedAvg(mlp(), optimizer=SGD), held(3), 5, evaluations=[Newcomers(2, 1)])
    assert [row["round"] for row in run.history if "test/unseen/acc" in row] == [2, 4, 5]


def test_joining_leaves_every_state_of_the_checkpoint(tmp_path):
    found = []
    for every in (1, None):
        folder = str(tmp_path / str(every))
        loop = {"evaluations": [Newcomers(every, 1)], "default_root_dir": folder}
        run = fit(FedPer(mlp(), optimizer=SGD), held(3), 3, **loop)
        found.append(checkpoint.load(run.folder / FILE))
    states = ("server", "kept", "template", "round", "failures", "partition")
    one, other = ({name: content[name] for name in states} for content in found)
    assert difference(named(one), named(other)) is None
    # Joining anew, by a test, does not touch the file.
    bytes_before = (run.folder / FILE).read_bytes()
    loop = FederatedLoop(
        3, evaluations=[Newcomers(join_rounds=1)], progress=False, accelerator="cpu"
    )
    row = loop.test(FedPer(mlp(), optimizer=SGD), held(3), str(run.folder))
    assert (run.folder / FILE).read_bytes() == bytes_before
    assert row["test/unseen_joined/acc"] == run.history[-1]["test/unseen_joined/acc"]
    last = [row for row in csv_rows(run.folder / "clients.csv") if row["unseen"]]
    assert [row["client"] for row in last] == ["3"]


# What servers give newcomers.


def welcomed(method, data=None, rounds=2):
    """Return a federation after some rounds, and what a newcomer with the last data gets."""
    data = blobs((9, 6, 4)) if data is None else data
    federation = ToyFederation(method, data)
    for _ in range(rounds):
        federation.round(0, 1)
    info = replace(info_of(data, 2, 10), round=rounds)
    sent, kept = federation.server.welcome(federation.state, info, federation.infos)
    return federation, sent, kept


class Rows(Server):
    """A server with a row for each member, which the row's number fills when it uploads."""

    per_client = True
    reports: ClassVar = {"row": "number of the row"}

    def init(self, shared, clients):
        self.known = [(one.client, one.samples) for one in clients]
        return ServerState({name: v.expand(len(clients), *v.shape) for name, v in shared.items()})

    def broadcast(self, state, client, round):
        return Broadcast({name: models[client] for name, models in state.shared.items()})

    def finish(self, state, folded):
        shared = {name: models.clone() for name, models in state.shared.items()}
        for models in shared.values():
            for upload in folded.uploads:
                models[upload.client] = upload.client
        rows = {upload.client: float(upload.client) for upload in folded.uploads}
        return replace(state, shared=shared, client_report={"row": rows})


class WelcomingRows(Rows):
    def welcome(self, state, info, members):
        assert info.client >= len(members) == 3
        return Broadcast({name: models.mean(0) for name, models in state.shared.items()}), {}


class InRows(FedAvg):
    rows = WelcomingRows
    global_model = False

    def server(self):
        return self.rows()


def test_the_server_numbers_members_from_zero():
    """Of clients 0 to 4 the members are 1, 2 and 4; their reports have their own numbers."""
    data = held(0, 3)
    federation = ToyFederation(InRows(mlp(), optimizer=SGD), data)
    assert federation.server.known == [(0, 6), (1, 4), (2, 7)]
    federation.round(1, 4)
    head = federation.state.shared["net.head.bias"]
    assert head[:, 0].tolist() == [0, pytest.approx(mlp().head.bias[0].item()), 2]
    assert federation.coordinator.reported(federation.state) == {"row": {1: 0.0, 4: 2.0}}
    assert federation.job(4).broadcast.shared["net.head.bias"].tolist() == [2, 2, 2]
    sent, _ = welcome(federation.coordinator, federation.state, federation.infos[0])
    assert torch.equal(sent.shared["net.head.bias"], head.mean(0))


def test_reports_are_rows_of_the_clients_own_numbers():
    run = fit(InRows(mlp(), optimizer=SGD), held(0, 3), 1, sampler=UniformSampler())
    found = {row["client"]: row["row"] for row in run.latest.clients if "row" in row}
    assert found == {1: 0.0, 2: 1.0, 4: 2.0}


def test_a_server_with_models_for_members_only_says_what_newcomers_get():
    class Silent(InRows):
        rows = Rows

    fit(Silent(mlp(), optimizer=SGD), held(), 1)
    with pytest.raises(MethodError, match=parts("Rows ~ per_client ~ override welcome()")):
        fit(Silent(mlp(), optimizer=SGD), held(0, 3), 1)


class Introduces(FedAvg):
    """FedAvg whose newcomers train one epoch, and get their own answer back."""

    def introduce(self):
        return [Phase(name="introduction", objective=self.losses)]

    def server(self):
        return Answers()


class Answers(Server):
    def welcome(self, state, info, members, upload=None):
        if upload is None:
            return super().welcome(state, info, members)
        assert (upload.client, upload.samples) == (info.client, info.samples)
        return Broadcast(upload.shared), {}


def test_a_newcomer_starts_with_the_answer_to_its_introduction():
    """The answer is one step on all of its data from the broadcast; the run is FedAvg's."""
    data = held(3, batch_size=9)
    run = fit(Introduces(mlp(), optimizer=SGD), data, 2, evaluations=[Newcomers(join_rounds=0)])
    assert run.fingerprint == fit(FedAvg(mlp(), optimizer=SGD), data, 2).fingerprint
    expected, own = FedAvg(mlp(), optimizer=SGD), data.split(3, "train")
    assign(expected, run.server.shared)
    cross_entropy(expected(own.x), own.targets).backward()
    expected.configure_optimizers().step()
    found = run.personal(3).module.state_dict()
    assert all(torch.allclose(found[name], v) for name, v in expected.state_dict().items())


class Seen(Introduces):
    """Notes the threads and processes in which newcomers train."""

    def __init__(self, net, places, **options):
        super().__init__(net, buffers="local", **options)
        self.places = places

    def objective(self, model, batch):
        note = f"{os.getpid()} {threading.current_thread().name}\n"
        with open(self.places, "a") as file:
            file.write(note)
        return super().objective(model, batch)


def drawing_net():
    """Return a network with batch norms, whose statistics a newcomer measures, and dropout."""
    net = normed()
    net.backbone.append(torch.nn.Dropout(0.2))
    return net


@pytest.mark.parametrize("engine", ["threads", "processes", "vectorised"])
def test_introductions_and_tuning_are_jobs_of_the_engine_with_the_same_bits(engine, tmp_path):
    """Each newcomer measures its batch norms, introduces itself, is tuned, and trains."""

    def told(name, engine, workers):
        file, data = tmp_path / name, held(3, 4, validation=(1,))
        loop = {"engine": engine, "workers": workers, "evaluations": [Newcomers(None, 1, 3)]}
        with op_threads.using(1):
            run = fit(Seen(drawing_net(), str(file), optimizer=SGD), data, 1, **loop)
        rows = [row for row in run.latest.clients if row.get("unseen")]
        return rows, {*file.read_text().splitlines()}

    expected, here = told("sequential", "sequential", None)
    assert {f"{os.getpid()} MainThread"} == here
    found, places = told(engine, engine, None if engine == "vectorised" else 2)
    if engine == "vectorised":  # A stack's rounds have other last bits.
        for row, right in zip(found, expected, strict=True):
            assert row == pytest.approx(right, rel=1e-4)
    else:
        assert found == expected
        assert not places & here
        assert len(places) == 2


def test_newcomers_introduced_in_workers_have_the_answer_too():
    data, loop = held(3, batch_size=9), {"evaluations": [Newcomers(join_rounds=0)]}
    alone, away = (
        fit(Introduces(mlp(), optimizer=SGD), data, 2, engine=engine, **loop).latest.clients
        for engine in ("sequential", ProcessesEngine(2))
    )
    assert alone == away


def test_introductions_keep_all_promises():
    check_method(Introduces)


def test_what_would_pass_by_the_uplink_is_not_sent():
    """With a step of the uplink, newcomers have what the server sends to everybody."""
    data, loop = held(3), {"uplink": [UplinkStep()], "evaluations": [Newcomers(join_rounds=0)]}
    run = fit(Introduces(mlp(), optimizer=SGD), data, 1, **loop)
    found = run.personal(3).module.state_dict()
    assert all(torch.equal(found[name], value) for name, value in run.server.shared.items())


@pytest.mark.parametrize(
    ("method", "kept_as", "sent_as"),
    [
        (FedPer, "none.", "none."),
        (Ditto, "personal.", "net."),
        (APFL, "personal.", "net."),
        (FedAS, "previous.module.", "net.backbone."),
        (PFedBayes, "personal.module.", "net."),
    ],
)
def test_what_a_newcomer_keeps_starts_as_what_it_receives(method, kept_as, sent_as):
    """FedPer's keeps its initial values."""
    federation, sent, kept = welcomed(method(mlp(), optimizer=SGD))
    assert sent.shared is federation.state.shared
    names = {name.replace(sent_as, kept_as, 1) for name in sent.shared if name.startswith(sent_as)}
    assert kept.keys() == names
    for name, value in kept.items():
        assert torch.equal(value, sent.shared[name.replace(kept_as, sent_as, 1)])


def test_pfedvem_starts_from_the_servers_head_with_the_mean_confidence():
    """A posterior that is its prior has the confidence 1 / variance."""
    federation, sent, kept = welcomed(PFedVEM(mlp(), optimizer=SGD))
    taus = federation.state.client_report["confidence"].values()
    tau = sum(taus) / len(taus)
    raw = kept["net.head.raw_std_weight"]
    variance = torch.nn.functional.softplus(raw).square()
    torch.testing.assert_close(variance, torch.full_like(raw, 1 / tau))
    assert kept["net.head.mean_bias"] is sent.shared["server_head_bias"]
    context = federation.context
    context.load(kept)
    context.module.receive(sent, federation.infos[2])
    assert float(context.module.confidence) == pytest.approx(tau, rel=1e-5)


def test_fedsimsup_mixes_by_label_similarity():
    """Similarities 0.6 and 0.8 to the members' classes give shares of 3/7 and 4/7."""
    method = FedSimSup(mlp(), supervisor=mlp(hidden=2), optimizer=SGD)
    server = method.server()
    counts = [torch.tensor(c) for c in ((5, 0, 0), (0, 5, 0), (0, 0, 0), (3, 4, 0), (0, 0, 7))]
    infos = [ClientInfo(n, int(c.sum()), c, 2, 10) for n, c in enumerate(counts)]
    state = server.init({"net.w": torch.zeros(1)}, infos[:3])
    state = type(state)(
        **{**vars(state), "shared": {"net.w": torch.tensor([[1.0], [8.0], [100.0]])}}
    )
    sent, kept = server.welcome(state, infos[3], infos[:3])
    assert kept == {}
    torch.testing.assert_close(sent.shared["net.w"], torch.tensor([(3 * 1 + 4 * 8) / 7.0]))
    # Similar to nobody: the mean by samples, 5 and 5.
    alone, _ = server.welcome(state, infos[4], infos[:3])
    torch.testing.assert_close(alone.shared["net.w"], torch.tensor([4.5]))


def test_ifca_chooses_the_network_of_least_training_loss_before_it_trains():
    data = held(3)
    run = fit(IFCA(mlp(), optimizer=SGD), data, 2)
    module = IFCA(mlp())
    assign(module, run.server.shared)
    (train, y), (test, to) = data.splits["train"][3], data.splits["test"][3]
    (_, chosen), (_, other) = sorted(
        (float(cross_entropy(net(train), y)), float(cross_entropy(net(test), to)))
        for net in module.clusters
    )
    assert chosen != pytest.approx(other)
    assert run.history[-1]["test/unseen/loss"] == pytest.approx(chosen)


def test_batch_norms_that_stay_are_measured_in_one_pass():
    """By hand: with one batch, the statistics are those of what the first layer gives."""
    data = held(3, batch_size=8)
    run = fit(FedBN(normed(), optimizer=SGD), data, 2, evaluations=[Newcomers(join_rounds=0)])
    context = run.personal(3)
    layer, norm = context.module.net.backbone[0], context.module.net.backbone[1]
    with torch.no_grad():
        features = layer(data.split(3, "train").x)
    torch.testing.assert_close(norm.running_mean, features.mean(0))
    torch.testing.assert_close(norm.running_var, features.var(0))
    assert norm.momentum == 0.1


# What is written, drawn and reported.


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """A run on five hospitals, one of which joins later, with its configuration."""
    rng = np.random.default_rng(0)
    names = np.repeat(["Basel", "Bern", "Geneva", "Lausanne", "Zug"], 12)
    y = np.arange(60) % 2
    x = (rng.normal(size=(60, 3)) + y[:, None]).astype(np.float32)
    file = tmp_path_factory.mktemp("hospitals") / "hospitals.npz"
    np.savez(file, x=x, y=y, client=names)
    argv = [
        *("--model=FedPer", "--model.net=MLP", "--model.net.hidden=4", "--data=TensorData"),
        *(f"--data.source={file}", "--data.num_clients=5", "--data.partition=ByDomain"),
        *("--data.unseen.clients=[Zug]", f"--loop.default_root_dir={file.parent / 'runs'}"),
        *("--loop.rounds=2", "--loop.evaluations=[Newcomers]"),
        *("--loop.evaluations.join_rounds=2", "--loop.evaluations.tune_epochs=2"),
        "--loop.progress=false",
    ]
    return main_fit(read("fit", argv)).folder


def test_names_stay_in_tables_predictions_and_the_report(hospitals, capsys):
    folder = RunFolder.read(hospitals)
    assert folder.client_names == ["Basel", "Bern", "Geneva", "Lausanne", "Zug"]
    last = [row for row in csv_rows(hospitals / "clients.csv") if row["round"] == "2"]
    assert [row["name"] for row in last if row["unseen"]] == ["Zug"]
    assert folder.clients.index.unique("client").max() == 4
    source = ["--config", str(hospitals / "config.yaml"), "--ckpt_path", str(hospitals), "--trust"]
    predict(read("predict", source))
    rows = csv_rows(hospitals / "predictions" / "test" / "client_4.csv")
    assert {row["name"] for row in rows} == {"Zug"}
    # Its rows of the file are the last twelve, every second of which is of class 1.
    assert all(48 <= int(row["row"]) < 60 for row in rows)
    assert all(int(row["row"]) % 2 == int(row["target"]) for row in rows)
    assert "Zug" in report(group([folder])[0])


def test_each_model_is_tested_on_every_clients_data(hospitals):
    source = ["--config", str(hospitals / "config.yaml"), "--ckpt_path", str(hospitals), "--trust"]
    run_test(read("test", [*source, "--cross"]))
    rows = csv_rows(hospitals / "cross.csv")
    assert len(rows) == 25
    at_home = {int(r["client"]): float(r["score"]) for r in rows if r["model"] == r["client"]}
    folder = RunFolder.read(hospitals)
    rounds = folder.evaluated()[-1:]
    personal = folder.by_client("test/personal/acc", rounds)
    joined = folder.by_client("test/unseen_joined/acc", rounds)
    assert [at_home[client] for client in range(4)] == personal[:4].tolist()
    assert at_home[4] == joined[4]
    drawn = {p.name: p.figure for p in draw(group([folder])[0])}
    assert drawn["cross"] is not None
    assert drawn["newcomers"] is not None
    told = drawn["similarity"].axes[0].get_yticklabels()
    assert {label.get_text() for label in told} == {*folder.client_names}
    line = drawn["newcomers"].axes[0].lines[0].get_ydata()
    columns = ["unseen", "unseen_joined_1", "unseen_joined"]
    assert line.tolist() == [folder.column(f"test/{name}/acc")[-1] for name in columns]


def test_comparisons_have_a_table_of_clients_that_join(hospitals):
    settings = group([RunFolder.read(hospitals)])[0]
    tables = {sheet.title: sheet for sheet in sheets(compare(settings))}
    sheet = tables["Clients that join later (%)"]
    last = 100 * RunFolder.read(hospitals).metrics.iloc[-1]
    expected = {
        "zero-shot": last["test/unseen/acc"],
        "after 1": last["test/unseen_joined_1/acc"],
        "joined": last["test/unseen_joined/acc"],
        "tuned": last["test/unseen_tuned/acc"],
        "gap of samples": last["gap/sample"],
        "gap of participation": last["gap/participation"],
        "share that tuning hurts": last["unseen/hurt"],
    }
    assert dict(zip(sheet.columns[1:], map(float, sheet.rows[0][1:]), strict=True)) == {
        name: round(value, 2) for name, value in expected.items()
    }


def test_the_report_has_the_gaps_and_leaves_the_stages_to_the_picture(hospitals):
    folder = RunFolder.read(hospitals)
    assert folder.environment["header"]["unseen"].startswith("1 clients join later; those that")
    page = report(group([folder])[0])
    assert "gap of participation: personal less joined score" in page
    assert "unseen clients, joined" in page
    assert "unseen clients after" not in page
