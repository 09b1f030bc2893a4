"""Reading a run's folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl.federation.summary import KINDS, summarise
from pfl.results.files import RunError
from pfl.results.find import find_runs
from pfl.results.runs import RunFolder
from tests.helpers.messages import parts
from tests.results.folders import write_run

ACC = "test/personal/acc"


def test_a_real_run_is_read_as_it_was(real):
    run = real["FedAS"]
    folder = RunFolder.read(run.folder)
    assert (folder.method, folder.seed, folder.round, folder.finished) == ("FedAS", 3, 3, True)
    for row, expected in zip(folder.history(), run.history, strict=True):
        assert row == pytest.approx(expected)
    labels = [run.data.split(client, "train").targets for client in range(3)]
    counts = [np.bincount(y, minlength=3).tolist() for y in labels]
    assert folder.label_counts.tolist() == counts
    assert folder.samples.tolist() == [9, 6, 4]
    assert folder.bytes[-1] == run.history[-1]["comm/bytes_total"]
    traces = folder.over_rounds("trace", folder.evaluated())
    uploads = folder.over_rounds("uploaded", folder.evaluated())
    assert (traces.isna() == (uploads == 0)).all(axis=None)


@given(
    rows=st.lists(
        st.tuples(st.integers(1, 6), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12
    ),
    at=st.sampled_from(KINDS),
)
def test_any_history_is_reported_as_the_summary_reports_it(rows, at):
    """Rounds lie 1 to 6 apart, so that the last ten hold some of the tested rounds or all."""
    rounds = np.cumsum([gap for gap, _, _ in rows])
    history = [
        {"round": int(number), ACC: test, "val/personal/acc": val}
        for number, (_, test, val) in zip(rounds, rows, strict=True)
    ]
    metrics = pd.DataFrame(history, index=rounds)
    folder = RunFolder(Path("run"), {}, {"scores": {"acc": True}}, {}, metrics, metrics.notna(), {})
    expected = summarise(history)[f"{ACC}/{at}"]
    assert folder.mean(ACC, folder.chosen(at, ACC)) == pytest.approx(expected)


def test_a_group_that_is_not_tested_in_every_round_is_summarised_where_it_is():
    """Only client 0 is tested in round 1, and all in the last: (0.6 + 0.8) / 2 = 0.7."""
    acc, other = "test/personal/acc", "test/personal/acc@b"
    history = [{"round": 1, acc: 0.6}, {"round": 2, acc: 0.8, other: 0.4}]
    found = summarise(history)
    assert found[f"{acc}/mean_last10"] == pytest.approx(0.7)
    assert found[f"{other}/mean_last10"] == 0.4


def test_rounds_without_a_test_and_clients_without_a_value(tmp_path):
    run = RunFolder.read(write_run(tmp_path / "a", [[0.5, None], [], [0.7, 0.9]]))
    assert run.evaluated().tolist() == [1, 3]
    assert run.by_client(ACC, run.evaluated()).tolist() == pytest.approx([0.6, 0.9])
    assert run.by_client(ACC, run.evaluated()[:1]).tolist() == pytest.approx(
        [0.5, np.nan], nan_ok=True
    )
    assert run.seconds.tolist() == [2.5, 5, 7.5]


def test_an_unfinished_run_and_one_that_was_resumed_and_stopped(tmp_path):
    run = RunFolder.read(write_run(tmp_path / "a", [[0.5]], planned=4))
    assert not run.finished
    resumed = write_run(tmp_path / "b", [[0.5]])
    text = (resumed / "metrics.csv").read_text()
    (resumed / "metrics.csv").write_text(text + text.splitlines()[1].replace("1", "2", 1) + "\n")
    assert not RunFolder.read(resumed).finished


def test_what_a_killed_process_left_of_a_round_is_not_read(real, tmp_path):
    """Of the third round: rows of some clients, the last one cut, and no row in metrics.csv."""
    folder = shutil.copytree(real["FedAS"].folder, tmp_path / "run")
    metrics, clients = folder / "metrics.csv", folder / "clients.csv"
    whole = RunFolder.read(folder)
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:-1]) + b"3,0.")
    lines = clients.read_bytes().splitlines(keepends=True)
    clients.write_bytes(b"".join(lines[:-1]) + lines[-1][:9])
    killed = RunFolder.read(folder)
    assert killed.round == 2
    assert {*killed.clients.index.unique("round")} == {1, 2}
    rounds = killed.evaluated(ACC)
    assert killed.values(ACC, rounds).tolist() == whole.values(ACC, rounds).tolist()


def test_a_run_that_ended_early_is_finished(tmp_path):
    run = write_run(tmp_path / "a", [[0.5]], planned=4)
    (run / "summary.json").write_text('{"rounds": 1}')
    assert RunFolder.read(run).finished


def test_what_is_no_run_is_told(tmp_path):
    run = write_run(tmp_path / "x" / "run", [[0.5]])
    with pytest.raises(RunError, match=parts("no folder ~ nothing")):
        RunFolder.read(tmp_path / "nothing")
    with pytest.raises(RunError, match=parts("not a run folder ~ environment.json ~ x/run")):
        RunFolder.read(tmp_path)
    with pytest.raises(RunError, match=parts("metrics.csv ~ 'test/personal/ac' ~ personal/acc'")):
        RunFolder.read(run).evaluated("test/personal/ac")
    with pytest.raises(RunError, match=parts("x/run ~ no validation data")):
        RunFolder.read(run).chosen("best_by_val", ACC)
    with pytest.raises(RunError, match=parts("best_on_test ~ acc ~ test/personal/ece")):
        RunFolder.read(run).chosen("best_on_test", "test/personal/ece")
    (run / "summary.json").write_text("{")
    with pytest.raises(RunError, match=parts("summary.json ~ damaged")):
        RunFolder.read(run)
    (run / "metrics.csv").write_text("round,x\n1,abc\n")
    with pytest.raises(RunError, match=parts("metrics.csv ~ numbers ~ 'abc'")):
        RunFolder.read(run)
    (run / "metrics.csv").unlink()
    with pytest.raises(RunError, match=parts("x/run ~ not finished")):
        RunFolder.read(run)


def test_a_folder_of_runs_stands_for_all_in_it_and_each_counts_once(tmp_path):
    for name in "ab":
        write_run(tmp_path / name, [[0.5]])
    found = find_runs([tmp_path, tmp_path / "b"])
    assert [run.path.name for run in found] == ["a", "b"]


def test_runs_further_below_are_found_in_the_order_of_their_starts(tmp_path):
    for name in ("x/2", "x/y/1", "3"):
        write_run(tmp_path / name, [[0.5]])
    assert [run.path.name for run in find_runs([tmp_path])] == ["1", "2", "3"]


def test_of_several_runs_those_that_are_not_finished_are_left_out_with_a_note(tmp_path, capsys):
    write_run(tmp_path / "a", [[0.5], [0.6]])
    write_run(tmp_path / "b", [[0.5], [0.6]], planned=5)
    write_run(tmp_path / "c", [[0.5]])
    (tmp_path / "c" / "metrics.csv").write_text("round\n")
    assert [run.path.name for run in find_runs([tmp_path])] == ["a"]
    said = capsys.readouterr().err.splitlines()
    assert said == [f"{tmp_path / name} is left out because it is not finished" for name in "bc"]


def test_a_run_that_is_named_alone_is_read_though_it_is_not_finished(tmp_path):
    write_run(tmp_path / "b", [[0.5], [0.6]], planned=5)
    assert [run.path.name for run in find_runs([tmp_path / "b"])] == ["b"]


def test_when_no_run_is_finished_that_is_said(tmp_path):
    for name in "ab":
        write_run(tmp_path / name, [[0.5]], planned=5)
    with pytest.raises(RunError, match=parts("none ~ finished: ~ a, ~ b")):
        find_runs([tmp_path])


def test_the_tenth_with_the_least_data(tmp_path):
    """Of 11 clients two, ceil(1.1): sizes 5, 9, 5, 5, ... give clients 0 and 2, of equals the
    first; 0.2 and 0.4 make 0.3, then 0.6 and 1 make 0.8."""
    accuracies = [[0.2, 1, 0.4] + [0.9] * 8, [0.6, 0, 1.0] + [0.9] * 8]
    run = RunFolder.read(write_run(tmp_path / "r", accuracies, samples=[5, 9, 5] + [5] * 8))
    metric = "test/personal/acc_smallest10"
    assert run.values(metric, run.evaluated(metric)).tolist() == pytest.approx([0.3, 0.8])
    assert run.mean(metric, run.chosen("last", metric)) == pytest.approx(0.8)
    assert run.mean(metric, run.chosen("best_on_test", metric)) == pytest.approx(0.8)
