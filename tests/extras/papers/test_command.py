"""``pfl table`` as a user meets it: what it runs, reads, estimates and writes."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
import yaml
from rich.filesize import decimal

from pfl.results.runs import RunFolder
from tests.extras.papers.conftest import LR, RUNS, finished, snapshot, table, write
from tests.helpers.messages import says
from tests.results.folders import write_run

ROWS = {"FedPer": None, "FedAvg": {"set": {"model": "FedAvg"}}}


def records(file="t.csv"):
    with Path(file).open(newline="") as stream:
        return list(csv.DictReader(stream))


def cells(line):
    """The cells of one line of a Markdown table."""
    return [cell.strip() for cell in line.split("|")[1:-1]]


def paper(**keys):
    """A table of the paper whose numbers are FedAvg-P 27.61, 36.42, ... at beta 0.1."""
    axis = {"set": "loop.sampler.init_args.fraction", "reported": "participation"}
    return write(
        reported={"paper": "FedAS", "table": "Table 2", "param": 0.1},
        columns={"P": {**axis, "values": [0.2, 0.4]}},
        rows={"FedAvg-P": {"set": {"model": "FedAvg"}}},
        **keys,
    )


def place(name, seed, accuracy):
    """A finished run by hand, where the table looks for it."""
    return write_run(RUNS / name / "20260101-000000", [[accuracy] * 2], seed=seed, config={})


def by_hand(seeds, values, scale=1):
    """Finished runs of all cells of :func:`paper`: for each column, an accuracy for each seed."""
    from pfl.extras.papers.cells import expand
    from pfl.extras.papers.plan import plan
    from pfl.extras.papers.reader import read

    described = read(paper(seeds=seeds))
    wanted = expand(described)
    planned = plan(described, wanted, seeds, scale)
    for cell, accuracies in zip(wanted, values, strict=True):
        for seed, accuracy in zip(seeds, accuracies, strict=True):
            if accuracy is not None:
                place(planned.names[cell][seed], seed, accuracy)


# The grid.


def test_some_rows_columns_and_seeds(fits):
    write(seeds=[1, 2], rows=ROWS)
    assert table("--rows", "FedAvg", "--columns", "rate=0.2", "--seeds", "7") == 0
    assert fits == [(7, 1)]
    (folder,) = finished()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["model"]["class_path"] == "lightning_modules.FedAvg"
    assert config["model"]["init_args"]["optimizer"]["init_args"]["lr"] == 0.2


@pytest.mark.parametrize("words", [[], ["--dry-run"], ["--read"]])
def test_a_negative_seed_is_refused_before_anything_runs(words, fits, capsys):
    write(seeds=[1, -3], rows=ROWS)
    assert table(*words) == 2
    assert says(capsys.readouterr().err, "t.yaml: seeds: ~ from 0 ~ -3")
    assert not fits


# Only reading, only estimating.


def test_read_runs_nothing(fits, capsys):
    write(rows=ROWS, columns=None)
    assert table("--rows", "FedPer") == 0
    before = snapshot(".")
    fits.clear()
    capsys.readouterr()
    assert table("--read") == 0
    assert fits == []
    assert snapshot(".") == before
    said = capsys.readouterr()
    assert ["FedAvg", "-", "[1]"] in [line.split() for line in said.out.splitlines()]
    assert "[1] not run yet." in said.out
    assert said.err == ""


def test_a_dry_run_estimates_and_changes_nothing(failing, fits, capsys):
    """One run is done, one of two rounds is, one is missing: three rounds are left.

    What a round moves is told exactly. Weights of MLP(64, 7, 4), FedAvg: 64*7 + 7 + 7*4 + 4 = 487
    floats, 1948 bytes, to and from each of three clients.
    """
    write(rows={"FedAvg": {"set": {"model": "FedAvg"}}}, columns=None, seeds=[1, 2, 3])
    failing(KeyboardInterrupt(), seed=2, number=1)
    assert table() == 130
    failing(None)
    before = snapshot(".")
    capsys.readouterr()
    assert table("--dry-run") == 0
    assert snapshot(".") == before
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Toys: what is left to run"
    (done,) = [line.split() for line in lines if "seed 1" in line]
    assert done == ["FedAvg,", "seed", "1", "done", "-", "-"]
    for seed, state, rounds in ((2, "round 1 of 2", 1), (3, "missing", 2)):
        (line,) = [line for line in lines if f"seed {seed}" in line]
        assert state in line
        assert line.rstrip().endswith(f"  {decimal(rounds * 6 * 1948)}")
        assert " s  " in line
    assert RunFolder.read(finished()[0]).bytes[-1] == 2 * 6 * 1948
    (total,) = [line for line in lines if "together" in line]
    assert "1 of 3 done" in total
    assert total.rstrip().endswith(decimal(3 * 6 * 1948))
    # There was nothing but what was made before.
    assert fits == [(1, 1), (2, 1)]


def test_a_dry_run_tells_of_cells_that_cannot_be_run(capsys):
    write(columns={"rate": {"set": LR, "values": [-1.0, 0.1]}}, rows={"FedPer": None})
    assert table("--dry-run") == 0
    said = capsys.readouterr().out
    assert "missing [1]" in said
    assert f"[1] --{LR}: Invalid learning rate: -1.0\n" in said
    assert not RUNS.exists()


# A part of the whole.


def test_a_tenth_of_rounds_and_data(fits, capsys):
    """15 rounds become 2, of 200 samples 20 are left; whole rounds and samples, at least one."""
    write(columns=None, rows={"FedPer": {"set": {"loop.rounds": 15}}})
    assert table("--scale", "0.1", "--out", "t.md", "t.csv", "t.tex") == 0
    said = capsys.readouterr().out
    assert said.startswith("Toys, at scale 0.1 (%)\n")
    assert "Scale 0.1: the share of the rounds and of the data that was used." in said
    assert "reported" not in said
    assert "**Toys, at scale 0.1 (%)**" in Path("t.md").read_text()
    assert r"\caption{Toys, at scale 0.1 (\%)." in Path("t.tex").read_text()
    assert records()[0]["scale"] == "0.1"
    (folder,) = finished()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (config["loop"]["rounds"], config["data"]["init_args"]["max_samples"]) == (2, 20)
    run = RunFolder.read(folder)
    assert run.round == 2
    assert run.samples.sum() <= 20
    # It is another run than the whole one, and is found again.
    assert table("--scale", "0.1") == 0
    assert fits == [(1, 1)]
    assert table("--read") == 0
    assert "- [1]" in capsys.readouterr().out


def test_samples_that_a_configuration_asks_for_shrink_with_the_scale():
    """150 of 200 samples at scale 0.5: 75, and of 100 for training 50; its smallest client of 30
    becomes one of 15."""
    partition = {"class_path": "Dirichlet", "init_args": {"alpha": 100.0, "min_samples": 30}}
    settings = {"data.init_args.max_samples": 150, "data.init_args.partition": partition}
    settings |= {"data.init_args.max_train_samples": 100, "data.init_args.test_protocol": "global"}
    write(columns=None, rows={"FedPer": {"set": settings}}, scaling={LR: -1})
    assert table("--scale", "0.5") == 0
    config = yaml.safe_load((finished()[0] / "config.yaml").read_text())
    data = config["data"]["init_args"]
    assert (data["max_samples"], data["max_train_samples"]) == (75, 50)
    assert data["partition"]["init_args"]["min_samples"] == 15
    # Keys of the table's own: 0.05 * 0.5 ** -1.
    assert config["model"]["init_args"]["optimizer"]["init_args"]["lr"] == 0.1


def test_a_part_of_the_experiment_has_no_verdict():
    """0.25, 0.27 and 0.29 have the standard error 0.0115, and 0.41 to 0.43 half of it."""
    by_hand([1, 2, 3], [[0.25, 0.27, 0.29], [0.41, 0.42, 0.43]], scale=0.5)
    assert table("--read", "--scale", "0.5", "--out", "t.md", "t.csv") == 0
    text = Path("t.md").read_text(encoding="utf-8")
    told = ["FedAvg-P", "27.00 ± 1.15 (27.61, -0.61)", "42.00 ± 0.58 (36.42, +5.58)"]
    assert cells(text.splitlines()[4]) == told
    assert "interval" not in text
    assert [row["verdict"] for row in records()] == ["", ""]


# Cells.


def test_our_number_beside_the_reported_one(capsys):
    """Worked by hand, with t(0.975, 2 degrees of freedom) = 4.3027.

    P=0.2: 0.270, 0.271, 0.272 have mean 0.271 and standard deviation 0.001, so standard error 0.001
    / sqrt(3) = 0.000577 and the interval 0.271 +- 0.002484. The paper's single run may spread as
    ours do, so the difference has 4.3027 * 0.001 * sqrt(1 + 1/3) = 0.004968: all of -0.51 +- 0.50
    points is within two. P=0.4: 0.51, 0.52, 0.53 have mean 0.52 and standard deviation 0.01, so the
    difference has 0.049683; 15.58 points less 4.97 are more than two.
    """
    by_hand([1, 2, 3], [[0.27, 0.271, 0.272], [0.51, 0.52, 0.53]])
    assert table("--read", "--out", "t.md", "t.csv", "t.tex") == 0
    first = "27.10 ± 0.06 (27.61, -0.51, equal)"
    second = "52.00 ± 0.58 (36.42, +15.58, different)"
    lines = Path("t.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "**Toys (%)**"
    assert cells(lines[2]) == ["", "P 0.2", "P 0.4"]
    assert set(lines[3]) <= set("|-: ")
    assert cells(lines[4]) == ["FedAvg-P", first, second]
    assert "(1, 2, 3)" in lines[6]
    assert "if its whole 95 % interval is within two points (Student's t;" in lines[6]
    tex = Path("t.tex").read_text(encoding="utf-8")
    assert r"    FedAvg-P & 27.10 $\pm$ 0.06 (27.61, -0.51, equal) & " in tex
    assert r"95 \% interval" in tex
    low, high = records()
    assert (low["row"], low["P"]) == ("FedAvg-P", "0.2")
    assert (low["verdict"], high["verdict"]) == ("equal", "different")
    for name, value in {
        "ours": 0.271,
        "ours/stderr": 0.001 / math.sqrt(3),
        "ours/low": 0.271 - 0.002484,
        "ours/high": 0.271 + 0.002484,
        "reported": 0.2761,
        "difference": -0.0051,
    }.items():
        assert float(low[name]) == pytest.approx(value, abs=1e-6), name
    assert low["reported/spread"] == low["trouble"] == ""
    assert first in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("values", "first", "notes"),
    [
        ([[0.25], [None]], "25.00 (27.61, -2.61, undecided)", ["[1] not run yet."]),
        (
            [[0.25, math.nan], [0.42, 0.42]],
            "- (27.61, -, undecided) [1]",
            ["[1] test/personal/acc of seed 2 is not a number."],
        ),
        # 0.25 and 0.29: mean 0.27, standard deviation 0.0282843, standard error 0.02.
        (
            [[0.25, None, 0.29], [0.4, 0.4, 0.4]],
            "27.00 ± 2.00 (27.61, -0.61, undecided) [1]",
            ["[1] not run yet."],
        ),
    ],
    ids=["one seed", "no number", "a lacking seed"],
)
def test_what_seeds_lack_leaves_it_undecided(values, first, notes):
    by_hand([*range(1, len(values[0]) + 1)], values)
    assert table("--read", "--out", "t.md", "t.csv") == 0
    lines = Path("t.md").read_text(encoding="utf-8").splitlines()
    assert cells(lines[4])[1] == first
    assert [line for line in lines if line.startswith("[")] == notes
    assert records()[0]["verdict"] == "undecided"


# Layout.


def test_many_columns_are_divided_by_the_first_axis():
    first = {"values": {"one": None, "2": None}}
    write(
        columns={"data": first, "rate": {"set": LR, "values": [0.1, 0.2, 0.3]}},
        rows={"FedPer": None, "left out": {"skip": "it is lost"}},
        notes=["A note."],
    )
    assert table("--read", "--out", "t.md") == 0
    text = Path("t.md").read_text(encoding="utf-8")
    titles = [line for line in text.splitlines() if line.startswith("**")]
    assert titles == ["**Toys; one (%)**", "**Toys; data 2 (%)**"]
    # Notes stand once, below the last one.
    assert text.endswith("\n\nA note.\n\n[1] not run yet.\n\n[2] it is lost.\n")
    assert text.count("A note.") == 1


def test_cells_that_are_left_out_are_never_run(fits):
    write(columns=None, rows={"a": None, "b": {"skip": "nobody knows how"}})
    assert table("--out", "t.csv") == 0
    assert len(fits) == 1
    assert records()[1]["trouble"] == "nobody knows how"


def test_another_metric_and_other_rounds():
    """The best of 0.5 and 0.3 by the test data, the mean of both, and a metric that is not there.

    The two clients have equal accuracies.
    """
    write(
        columns=None,
        rows={
            "best": {"metric": "test/personal/acc/best_on_test"},
            "mean": {"metric": "test/personal/acc/mean_last10"},
            "last": None,
            "none": {"metric": "test/pooled/acc/last"},
        },
    )
    assert table() == 0
    (folder,) = finished()
    name = folder.parent.name
    for file in sorted(folder.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    folder.rmdir()
    write_run(RUNS / name / "20260101-000000", [[0.5, 0.5], [0.3, 0.3]], config={})
    assert table("--read", "--out", "t.csv") == 0
    found = records()
    assert [row["ours"] for row in found] == ["0.5", "0.4", "0.3", ""]
    assert "has no column 'test/pooled/acc'" in found[3]["trouble"]


# Pictures.


def test_pictures_of_each_column(capsys):
    write(pictures=["curves"], rows=ROWS)
    assert table("--out", "out/t.md", "--pictures", "clients", "trace") == 0
    said = capsys.readouterr().out
    for rate in ("0.1", "0.2"):
        for ending in ("png", "svg"):
            file = Path("out", "t", f"rate_{rate}", f"clients.{ending}")
            assert file.stat().st_size > 3000
            assert f"wrote {file}\n" in said
    assert "FedPer" in Path("out/t/rate_0.1/clients.svg").read_text()
    assert "no picture trace: no run reported 'trace' for its clients\n" in said
    # The table's own ones, if nothing is said; of one column without a folder of its own.
    assert table("--columns", "0.1") == 0
    assert Path("runs/tables/t/curves.png").stat().st_size > 3000
    assert table("--columns", "0.1", "--pictures", "--out", "none/t.md") == 0
    assert not Path("none", "t").exists()


def test_a_picture_is_of_rows_with_one_metric():
    """A row about the global model is not drawn beside rows about personal ones."""
    model = {"set": {"model": "FedAvg"}}
    rows = {"personal": model, "global": {**model, "metric": "test/global/acc/last"}}
    write(columns=None, rows=rows)
    assert table("--out", "out/t.md", "--pictures", "clients") == 0
    files = sorted(Path("out", "t").rglob("clients.svg"))
    assert [file.parent.name for file in files] == [
        "test-global-acc_last",
        "test-personal-acc_last",
    ]
    for file, own in zip(files, ("global", "personal"), strict=True):
        drawn = file.read_text(encoding="utf-8")
        assert [name for name in rows if f"<!-- {name} -->" in drawn] == [own]
