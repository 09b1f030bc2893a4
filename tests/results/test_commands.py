"""The commands that read runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pfl.__main__ import main
from pfl.results.cited import bibliography
from pfl.results.report import report
from pfl.results.runs import RunFolder
from pfl.results.settings import group
from tests.helpers.messages import parts, says
from tests.results.folders import write_run


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for method in ("FedAvg", "FedAS"):
        for seed in (1, 2):
            write_run(
                tmp_path / "runs" / f"{method}{seed}",
                [[0.3, 0.5], [0.1 * seed, 0.8]],
                method=method,
                seed=seed,
                config={"model": {"class_path": method}},
            )
    return tmp_path / "runs"


def test_plot_writes_beside_a_run_or_where_it_is_told(runs, capsys):
    assert main(["plot", "runs/FedAvg1", "--only", "curves", "--format", "png"]) == 0
    assert (runs / "FedAvg1" / "plots" / "curves.png").stat().st_size > 1000
    assert main(["plot", "runs", "--format", "svg", "--out", "pictures"]) == 0
    files = {path.name for path in (runs.parent / "pictures").iterdir()}
    assert files == {"curves.svg", "clients.svg", "data_size.svg"}


@pytest.mark.parametrize("place", ["tables", "sweeps/quickstart"])
def test_runs_of_tables_and_sweeps_are_not_mixed_with_others(place, runs, capsys):
    write_run(runs / place / "fedavg" / "1", [[0.3], [0.9]], method="Apart")
    given = sorted(map(str, runs.iterdir()))
    assert main(["compare", *given]) == 0
    assert main(["plot", *given, "--only", "curves"]) == 0
    assert main(["report", "runs"]) == 0
    assert "Apart" not in capsys.readouterr().out


def test_plot_of_what_is_not_there_is_an_error_only_if_asked_for(runs, capsys):
    assert main(["plot", "runs", "--only", "trace"]) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(parts("pfl plot: error: trace: ~ 'trace' ~ clients\n"), said)


def test_compare_prints_and_writes(runs, capsys):
    assert main(["compare", "runs", "--at", "mean_last10", "--out", "a.md", "b/c.csv"]) == 0
    out = capsys.readouterr().out
    assert "Paired over seeds, against FedAS" in out
    assert "mean of the last ten rounds" in (runs.parent / "a.md").read_text(encoding="utf-8")
    assert (runs.parent / "b" / "c.csv").read_text().startswith("setting,at,")


def test_compare_says_which_runs_it_left_out(runs, capsys):
    write_run(runs / "FedAS3", [[0.5, 0.5]], "FedAS", config={"model": {"class_path": "FedAS"}})
    assert main(["compare", "runs"]) == 0
    assert says(capsys.readouterr().out, "runs/FedAS1: ~ newer run")


def test_report_of_a_folder_is_of_all_its_runs(runs, capsys):
    assert main(["report", "runs", "--out", "page.html"]) == 0
    settings, _ = group([RunFolder.read(path) for path in sorted(runs.iterdir())])
    assert Path("page.html").read_text(encoding="utf-8") == report(settings)
    assert main(["cite", "runs"]) == 0
    assert capsys.readouterr().out.rstrip().endswith(bibliography([]))


def test_slips_wait_neither_for_pictures_nor_for_statistics(runs):
    slips = (
        ["plot", "runs", "--only", "curvs"],
        ["plot", "runs", "--metric", "acc"],
        ["compare", "runs", "--metric", "acc"],
        ["compare", "runs", "--reference", "x"],
    )
    calls = "\n".join(f"assert main({words!r}) == 2" for words in slips)
    code = f"import sys\nfrom pfl.__main__ import main\n{calls}\n"
    code += "print({'torch', 'matplotlib', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plot", "nothing"], "there is no folder nothing"),
        (["plot", "runs", "--only", "curvs"], "did you mean 'curves'?"),
        (["report", "empty"], "empty is not a run folder"),
        (["report", "table.yaml"], "table.yaml is a file: give the folder of its runs"),
        (["compare", "runs", "--reference", "x"], "there is no setting 'x' among FedAS, FedAvg"),
        (["compare", "runs", "--metric", "acc"], "has no column 'acc'"),
        (["compare", "runs", "--out", "a.doc"], "use one of .md, .tex, .csv for a table"),
        (["plot", "runs", "--at", "best_by_val", "--only", "clients"], "has no validation data"),
    ],
)
def test_errors_are_one_line(runs, words, message, capsys):
    Path("empty").mkdir()
    Path("table.yaml").touch()
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
