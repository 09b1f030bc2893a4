"""Settings side by side, with numbers worked out by hand."""

from __future__ import annotations

import csv
import io

import pytest

from pfl.core.sheet import Sheet
from pfl.results.compare import compare
from pfl.results.compare_sheets import sheets
from pfl.results.files import RunError
from pfl.results.runs import RunFolder
from pfl.results.settings import group
from pfl.results.sheets import comma_separated, latex, markdown
from tests.helpers.messages import parts
from tests.results.folders import write_run

CONFIG = {"data": {"init_args": {"alpha": 0.1}}}


@pytest.fixture
def settings(tmp_path):
    """Two methods with two seeds each, and a third with one, on two clients."""
    table = {
        ("FedAvg", 1): [0.2, 0.4],
        ("FedAvg", 2): [0.4, 0.8],
        ("FedAS", 1): [0.5, 0.6],
        ("FedAS", 2): [0.6, 0.7],
        ("Local", 2): [0.1, 0.9],
    }
    runs = [
        write_run(
            tmp_path / f"{method}{seed}",
            [[0.0, 0.0], row],
            method=method,
            seed=seed,
            config={"model": {"class_path": method}, **CONFIG},
        )
        for (method, seed), row in table.items()
    ]
    return group([RunFolder.read(run) for run in runs])[0]


def test_scores_and_costs(settings):
    """FedAvg: means of its runs 0.3 and 0.6, so 0.45 with the error 0.15; worst clients 0.2, 0.4.

    Two rounds of 500 bytes and 2.5 seconds.
    """
    row, _, alone = compare(settings).records
    assert row["test/personal/acc"] == pytest.approx(0.45)
    assert row["test/personal/acc/stderr"] == pytest.approx(0.15)
    assert row["test/personal/acc_worst10"] == pytest.approx(0.3)
    assert [row[key] for key in ("bytes", "seconds", "rounds", "runs")] == [1000, 5, 2, 2]
    assert alone["test/personal/acc/stderr"] is None


def test_pairs_are_of_the_same_clients_and_seeds(settings):
    """FedAS - FedAvg: over clients (0.55, 0.65) - (0.3, 0.6) = (0.25, 0.05).

    Over seeds (0.55, 0.65) - (0.3, 0.6), which is the same by chance. Local has seed 2 only and is
    compared with FedAvg's seed 2: (0.1, 0.9) - (0.4, 0.8).
    """
    tests = compare(settings).tests
    clients, seeds = tests["clients"], tests["replicates"]
    assert clients["FedAS"].difference == pytest.approx(0.15)
    assert (clients["FedAS"].pairs, seeds["FedAS"].pairs) == (2, 2)
    assert seeds["FedAS"].difference == pytest.approx(0.15)
    assert clients["Local"].difference == pytest.approx(-0.1)
    assert (clients["Local"].positive, clients["Local"].negative) == (1, 1)
    assert "Local" not in seeds


def test_without_a_clients_score_there_is_no_test_of_the_others(tmp_path):
    """The third client of FedAS has none after seed 2; its other tests and Local's stay."""
    nan = float("nan")
    table = {
        ("FedAvg", 1): [0.2, 0.4, 0.6],
        ("FedAvg", 2): [0.4, 0.8, 0.6],
        ("FedAS", 1): [0.5, 0.6, 0.7],
        ("FedAS", 2): [0.6, 0.7, nan],
        ("Local", 1): [0.1, 0.9, 0.6],
        ("Local", 2): [0.1, 0.8, 0.6],
    }
    runs = [
        write_run(
            tmp_path / f"{method}{seed}",
            [row],
            method=method,
            seed=seed,
            config={"model": {"class_path": method}},
        )
        for (method, seed), row in table.items()
    ]
    comparison = compare(group([RunFolder.read(run) for run in runs])[0])
    assert [[*tests] for tests in comparison.tests.values()] == [["Local"]] * 2
    scores, clients, replicates = sheets(comparison)
    assert scores.rows[1][:4] == ["FedAS", "2", "1", "-"]
    assert [[row[0] for row in one.rows] for one in (clients, replicates)] == [["Local"]] * 2


def test_of_the_common_test_set_seeds_are_compared_and_no_clients(settings):
    for run in (run for setting in settings for run in setting.runs):
        for table in (run.metrics, run.filled):
            table["test/pooled/acc"] = table["test/personal/acc"] / 2
    tests = compare(settings, metric="test/pooled/acc").tests
    assert tests["clients"] == {}
    assert tests["replicates"]["FedAS"].difference == pytest.approx(0.075)


def test_another_reference(settings):
    found = compare(settings, reference="Local")
    assert [*found.tests["clients"]] == ["FedAvg", "FedAS"]
    with pytest.raises(RunError, match=parts("'local' ~ FedAvg, FedAS, Local")):
        compare(settings, reference="local")


def test_clients_of_another_partition_are_no_pairs(tmp_path):
    runs = [
        write_run(tmp_path / split, [[0.2, 0.3]], method=split, split=split) for split in ("a", "b")
    ]
    settings, _ = group([RunFolder.read(run) for run in runs])
    assert compare(settings).tests["clients"] == {}
    assert len(sheets(compare(settings))) == 1


def test_an_unfinished_run_is_not_compared(tmp_path):
    run = RunFolder.read(write_run(tmp_path / "a", [[0.5]], planned=7))
    with pytest.raises(RunError, match=parts("not finished (round 1 of 7)")):
        compare(group([run])[0])


def test_of_another_main_score_its_own_worst_tenth_and_spread_are_shown(tmp_path):
    """Losses 0.02, 0.04 and 0.0166, 0.0362: less is better, and more digits are shown.

    Differences -0.0034 and -0.0038: mean -0.0036, standard error 0.0002, and t(0.975, 1) = 12.7062
    gives the interval -0.0036 -+ 0.00254.
    """
    for name, losses in (("a", [0.02, 0.04]), ("b", [0.0166, 0.0362])):
        write_run(tmp_path / name, [losses], name, score="loss")
    runs = [RunFolder.read(tmp_path / name) for name in "ab"]
    for run in runs:
        for table in (run.metrics, run.filled):
            table["test/personal/loss_std"] = table["test/personal/loss"] / 3
            table["test/personal/acc_worst10"] = table["test/personal/loss"]
            del table["test/personal/ece"]
    scores, clients = sheets(compare(group(runs)[0]))
    assert scores.columns[3:6] == ["test loss", "worst tenth", "spread"]
    assert scores.rows[0][3:6] == ["0.0300", "0.0400", "0.0100"]
    (note,) = scores.notes
    assert "Worst tenth: mean over the tenth of the clients with the worst scores" in note
    assert "ECE" not in note
    assert clients.rows[0][:4] == ["b", "0/2/0", "-0.0036", "-0.0061 to -0.0011"]
    assert all(text.startswith("Less is better. ") for text in (note, *clients.notes))
    record = scores.records[1]
    assert (record["clients/positive"], record["clients/negative"]) == (0, 2)


def test_csv_holds_every_number_in_one_table(settings):
    rows = list(csv.DictReader(io.StringIO(comma_separated(sheets(compare(settings))))))
    assert [row["setting"] for row in rows] == ["FedAvg", "FedAS", "Local"]
    assert float(rows[0]["test/personal/acc/stderr"]) == pytest.approx(0.15)
    assert rows[0]["clients/p"] == ""
    assert float(rows[1]["clients/difference"]) == pytest.approx(0.15)
    assert rows[2]["replicates/p"] == ""
    assert rows[1]["tested"] == "post_broadcast"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"content": "c2", "split": "s2"}, "were run on different data"),
        ({"split": "s2"}, "were run on different partitions"),
        ({"split": "s2", "split_seed": 2}, "were run on different partitions"),
        # A released partition is the same for all seeds.
        ({"split_seed": 2}, None),
        ({"evaluated": "post_local"}, "tested at different points (post_local, post_broadcast)"),
        ({"evaluated": "post_broadcast, post_local"}, None),
    ],
)
def test_runs_that_are_hard_to_compare_are_named(tmp_path, options, told, capsys):
    write_run(tmp_path / "a", [[0.5, 0.6]], "FedAvg")
    write_run(tmp_path / "b", [[0.5, 0.7]], "FedAS", **options)
    runs = [RunFolder.read(tmp_path / name) for name in "ab"]
    comparison = compare(group(runs)[0])
    notes = markdown(sheets(comparison))
    if told is None:
        assert "Warning" not in notes
    else:
        assert f"Warning: FedAS and FedAvg {'were ' * (told[0] == 't')}{told}" in notes


def configured(epochs=2, hidden=8, lr=0.1):
    """Return a configuration's part about the method."""
    net = {"class_path": "nets.MLP", "init_args": {"hidden": hidden, "batch_norm": False}}
    optimizer = {"class_path": "torch.optim.SGD", "init_args": {"lr": lr, "momentum": 0.0}}
    return {"model": {"init_args": {"epochs": epochs, "net": net, "optimizer": optimizer}}}


@pytest.mark.parametrize(
    ("method", "options", "told"),
    [
        ("FedAS", {"config": configured(epochs=5)}, "epochs 5 instead of 2"),
        ("FedAS", {"config": configured(lr=1.0)}, "optimizer SGD(lr=1.0) instead of SGD(lr=0.1)"),
        ("FedAS", {"seed": 7}, "seeds 7 instead of 1"),
        # A round of the made-up runs processes 100 samples.
        ("FedAS", {"more": True}, "rounds 2 instead of 1; samples processed about 200"),
        ("FedAS", {}, None),
        # Its label tells the epochs.
        ("FedAvg", {"config": configured(epochs=5), "seed": 7}, "seeds 7 instead of 1"),
    ],
)
def test_another_budget_network_optimiser_or_seed_is_told(tmp_path, method, options, told):
    tested = [[0.5, 0.7]] * (2 if options.pop("more", False) else 1)
    write_run(tmp_path / "a", [[0.5, 0.6]], "FedAvg", config=configured())
    options = {"config": configured(), **options}
    options["config"]["model"]["class_path"] = method
    write_run(tmp_path / "b", tested, method, **options)
    settings = group([RunFolder.read(tmp_path / name) for name in "ab"])[0]
    (line,) = compare(settings).warnings or [None]
    other, base = settings[1].label, settings[0].label
    begins = told and f"{other} has other settings than {base}: {told}"
    assert line is None if told is None else line.startswith(begins)


def test_further_points_are_compared_at_their_own(tmp_path):
    """``test/personal_post_local`` says its point itself, whatever came first in the runs."""
    for name, points in (("a", "post_broadcast, post_local"), ("b", "post_local")):
        write_run(tmp_path / name, [[0.5, 0.6]], name, evaluated=points)
    runs = [RunFolder.read(tmp_path / name) for name in "ab"]
    assert runs[0].tested_at("test/personal_post_local/acc") == "post_local"
    assert runs[0].tested_at("test/personal/acc_worst10") == "post_broadcast"
    assert runs[1].tested_at("test/personal/acc") == "post_local"
    assert runs[0].tested_at("test/pooled/acc") is None


SHEET = Sheet("A_B", ("a|b", "c (%)"), [("x & y", "1.00 ± 0.10"), ("z", "<0.001")], ("Note 5%.",))


def test_latex():
    text = latex([SHEET])
    assert r"\caption{A\_B. Note 5\%.}" in text
    assert r"x \& y & 1.00 $\pm$ 0.10 \\" in text
    assert r"z & $<$0.001 \\" in text
    assert r"\begin{tabular}{lr}" in text
