"""Callbacks that look into models: Fisher information, replaced parameters, singular values."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_modules.fedas import FedAS
from lightning_modules.fedavg import FedAvg
from lightning_modules.fedper import FedPer
from lightning_modules.pfedvem import PFedVEM
from pfl.callbacks.early_stopping import EarlyStopping
from pfl.extras.papers import analyses
from pfl.extras.papers.fisher import FisherTraces, ReplacedParameters, fisher_information
from pfl.extras.papers.model_numbers import ModelNumbers
from pfl.extras.papers.spectrum import ClassifierSpectrum
from pfl.federation.sampling import FixedStragglers, UniformSampler
from pfl.loop import FederatedLoop
from pfl.results.files import read_table
from pfl.results.pictures import draw
from pfl.results.runs import RunFolder
from pfl.results.settings import group
from tests.helpers.federation import SGD, fit
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp
from tests.results.folders import write_run

HALF = UniformSampler(0.5)


def run(tmp_path, module, *callbacks, rounds=3, **loop):
    return fit(
        module, blobs(), rounds, callbacks=[*callbacks], default_root_dir=str(tmp_path), **loop
    )


def rows(folder, file):
    return read_table(folder / file).to_dict("records")


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_traces_are_those_that_participants_send(tmp_path, precision):
    module = FedAS(mlp(), optimizer=SGD)
    found = run(tmp_path, module, FisherTraces(), sampler=HALF, precision=precision)
    sent = {(r["round"], r["client"]): r for r in rows(found.folder, "clients.csv")}
    traces = rows(found.folder, "fisher.csv")
    assert [(row["round"], row["client"]) for row in traces] == [*sent]
    for row in traces:
        told = sent[row["round"], row["client"]]
        assert row["trained"] == told["trained"]
        if row["trained"]:
            assert row["trace"] == pytest.approx(told["trace"], rel=1e-5)


def test_an_absent_clients_trace_is_that_of_its_last_participation(tmp_path):
    """Its own model is what it left; only a method whose broadcast changes the model moves it."""
    found = run(tmp_path, FedAS(mlp(), optimizer=SGD), FisherTraces(), sampler=HALF)
    last = {}
    for row in rows(found.folder, "fisher.csv"):
        if not row["trained"] and row["client"] in last:
            assert row["trace"] == last[row["client"]]
        last[row["client"]] = row["trace"]
    moved = run(tmp_path, FedPer(mlp(), optimizer=SGD), FisherTraces(), sampler=HALF)
    of_one = [r["trace"] for r in rows(moved.folder, "fisher.csv") if r["client"] == 0]
    assert len(set(of_one)) == len(of_one)


@pytest.mark.parametrize("engine", ["sequential", "threads", "vectorised"])
def test_an_analysis_changes_no_number_on_any_engine(tmp_path, engine):
    plain, watched = (
        run(tmp_path / str(len(own)), FedAS(mlp(), optimizer=SGD), *own, engine=engine)
        for own in ((), (FisherTraces(), ReplacedParameters([0.5]), ClassifierSpectrum()))
    )
    assert watched.fingerprint == plain.fingerprint
    assert watched.summary == plain.summary


def test_replacing_nothing_and_everything(tmp_path):
    """No part: the model's own score; the whole: that of the initial model."""
    module = FedPer(mlp(), optimizer=SGD)
    replaced = ReplacedParameters([0.0, 0.2, 1.0], draws=2)
    found = run(tmp_path, module, replaced, evaluate_at=["post_broadcast"])
    final = {r["client"]: r for r in rows(found.folder, "clients.csv") if r["round"] == 3}
    start = fit(FedPer(mlp(), epochs=0, optimizer=SGD), blobs(), 1).latest.clients
    for row in rows(found.folder, "replaced.csv"):
        client = int(row["client"])
        assert row["round"] == 3
        if row["share"] == 0:
            assert row["score"] == pytest.approx(final[client]["test/personal/acc"])
        if row["share"] == 1:
            assert row["score"] == pytest.approx(start[client]["test/personal/acc"])


@pytest.mark.parametrize("turn", [0, 1])
def test_parameters_are_replaced_where_a_run_ends(turn, tmp_path):
    """Whoever ends it, and in whichever order: a run of nine rounds in its third or fourth."""
    for patience in (2, 3):
        callbacks = [EarlyStopping("round", patience, mode="min")]
        callbacks.insert(turn, ReplacedParameters([0.0]))
        loop = FederatedLoop(9, callbacks=callbacks, default_root_dir=str(tmp_path))
        path = None if patience == 2 else "last"
        run = loop.fit(FedAvg(mlp()), blobs(), ckpt_path=path)
        assert run.round == patience + 1
        assert {*read_table(run.folder / "replaced.csv")["round"]} == {run.round}


@pytest.mark.parametrize("by", ["zero", "other"])
def test_what_is_replaced_is_what_the_information_is_most_of(tmp_path, monkeypatch, by):
    """A tenth of the parameters: no other has more information than the least of them."""
    replaced, seen = ReplacedParameters([0.1], by=by, draws=1), []

    def score(context, client, names, values):
        if len(seen) < 1:
            told = fisher_information(context, client)
            own, flat = (
                torch.cat([state[n].flatten() for n in names]) for state in (context.entries, told)
            )
            seen.append((flat, own, values.clone()))
        return 0.0

    monkeypatch.setattr(replaced, "_score", score)
    run(tmp_path, FedPer(mlp(), optimizer=SGD), replaced)
    ((information, own, values),) = seen
    changed = own != values
    assert 0 < changed.sum() <= math.ceil(0.1 * len(own))
    top = information.argsort(descending=True)[: math.ceil(0.1 * len(own))]
    assert set(changed.nonzero().flatten().tolist()) <= set(top.tolist())
    assert by != "zero" or (values[top] == 0).all()


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ValueError, match="shares"):
        ReplacedParameters([1.5])
    with pytest.raises(ValueError, match="draws"):
        ReplacedParameters(draws=0)
    with pytest.raises(ValueError, match="by must be one of initial, zero, other"):
        ReplacedParameters(by="zeros")


def test_singular_values_are_of_each_participant_and_of_the_server(tmp_path):
    found = run(tmp_path, FedAvg(mlp(), optimizer=SGD), ClassifierSpectrum(), sampler=HALF)
    table = rows(found.folder, "spectrum.csv")
    trained = {(r["round"], r["client"]) for r in rows(found.folder, "clients.csv") if r["trained"]}
    servers = {(float(number), -1.0) for number in (1, 2, 3)}
    assert {(r["round"], r["client"]) for r in table} == trained | servers
    weight = found.server.shared["net.head.weight"]
    values = torch.linalg.svdvals(weight.double())
    own = [r["value"] for r in table if (r["round"], r["client"]) == (3, -1)]
    assert own == pytest.approx((values / values[0]).tolist())


def test_what_a_method_tells_of_every_client(tmp_path):
    """A pFedVEM head of 3 classes and 6 features has d = 21 weights and biases; tau = d / sums."""
    found = run(tmp_path, PFedVEM(mlp(), optimizer=SGD), ModelNumbers(), sampler=HALF)
    table = rows(found.folder, "numbers.csv")
    assert [(row["round"], row["client"]) for row in table] == [
        (number, client) for number in (1, 2, 3) for client in range(3)
    ]
    for row in table:
        assert row["confidence"] == pytest.approx(21 / (row["uncertainty"] + row["deviation"]))
    with pytest.raises(ValueError, match=parts("ModelNumbers: FedAvg ~ describe()")):
        run(tmp_path, FedAvg(mlp(), optimizer=SGD), ModelNumbers())


def test_pictures_are_drawn_of_what_analyses_wrote(tmp_path):
    fedas = FedAS(mlp(), optimizer=SGD)
    watchers = (FisherTraces(), ReplacedParameters([0.0, 0.5]), ClassifierSpectrum())
    one = run(tmp_path, fedas, *watchers, sampler=FixedStragglers(0.4, 0.0))
    two = run(tmp_path, PFedVEM(mlp(), optimizer=SGD), ModelNumbers())
    settings, _ = group([RunFolder.read(made.folder) for made in (one, two)])
    names = ["fisher", "stragglers", "replacement", "spectrum", "numbers"]
    assert {picture.name: picture.refusal for picture in draw(settings, names)} == dict.fromkeys(
        names, ""
    )
    nothing, _ = group([RunFolder.read(two.folder)])
    (lacking,) = draw(nothing, ["spectrum"])
    assert "ClassifierSpectrum" in lacking.refusal


def test_what_a_killed_process_left_of_a_round_is_not_drawn(tmp_path):
    found = run(tmp_path, FedAvg(mlp(), optimizer=SGD), FisherTraces())
    file = found.folder / "fisher.csv"
    *_, last = file.read_text().splitlines()
    with file.open("a") as stream:
        stream.write(last.replace("3", "4", 1) + "\n")
    (picture,) = draw(group([RunFolder.read(found.folder)])[0], ["fisher"])
    assert picture.figure.axes[0].lines[0].get_xdata().tolist() == [1, 2, 3]


def table_of(text):
    """Return the columns of a table whose names and numbers are separated by spaces."""
    header, *cells = (line.split() for line in text.strip().splitlines())
    return {"a": pd.DataFrame(np.array(cells, float), columns=header)}


def test_shares_of_stragglers_by_hand():
    """Client 2 misses round 2; the others have 3 of 4 in round 1, and 2 of 4 in round 2."""
    figure = analyses.stragglers(
        table_of(
            """
            round client trained trace
            1     0      1       1
            1     1      1       2
            1     2      1       1
            2     0      1       1
            2     1      1       1
            2     2      0       2
            """
        )
    )
    bars, curves = figure.axes
    heights = {c.get_label(): [bar.get_height() for bar in c] for c in bars.containers[1::2]}
    assert heights == {"in every round": [0.25, 0.375], "stragglers": [0.375]}
    assert [line.get_ydata().tolist() for line in curves.lines] == [[0.375, 0.25], [0.25, 0.5]]


def test_scores_after_replacement_by_hand():
    """Clients with 1 and 3 samples: (0.2 + 3 * 0.6) / 4 and (0.4 + 3 * 0.8) / 4."""
    figure = analyses.replaced(
        table_of(
            """
            share highest test_samples score
            0.5   1       1            0.2
            0.5   1       3            0.6
            0.5   0       1            0.4
            0.5   0       3            0.8
            """
        )
    )
    means = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    assert means == {"highest information": pytest.approx([0.5]), "random": pytest.approx([0.7])}


def test_a_server_without_a_classifier_has_no_spectrum():
    """The median of (1, 1/2) and (1, 1/4) has shares of 8/11 and 3/11: exp(0.586) is 1.8."""
    figure = analyses.spectrum(
        table_of(
            """
            round client index value
            1     0      0     1
            1     0      1     0.5
            1     1      0     1
            1     1      1     0.25
            """
        )
    )
    server, clients = (axes.lines[0].get_ydata().tolist() for axes in figure.axes)
    assert (server, clients) == ([], [1, 0.375])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a (1.8)"]


def test_an_analysis_needs_a_folder():
    with pytest.raises(ValueError, match=parts("FisherTraces ~ default_root_dir")):
        fit(FedAvg(mlp(), optimizer=SGD), blobs(), 1, callbacks=[FisherTraces()])


def test_differences_are_from_the_mean_of_the_settings(tmp_path):
    """0.5 and 0.7 lie 0.1 below and above their mean, and are written beside their bars."""
    runs = [
        write_run(tmp_path / str(n), [[value, value]], method=f"M{n}")
        for n, value in enumerate((0.5, 0.7, float("nan")))
    ]
    settings, _ = group([RunFolder.read(run) for run in runs])
    (panel,) = analyses.differences(settings[:2], "test/personal/acc", "last").axes
    assert [bar.get_height() for bar in panel.patches] == pytest.approx([-0.1, 0.1])
    assert [text.get_text() for text in panel.texts] == ["50.00", "70.00"]
    (picture,) = draw(settings, ["differences"], "test/personal/acc")
    assert picture.refusal == "test/personal/acc of M2 is not a number: there is no mean of all"
