"""Run folders with wrong contents: the commands that read runs end, and name file and fault."""

from __future__ import annotations

import json

import pytest

from pfl.__main__ import main
from tests.helpers.messages import says
from tests.results.folders import write_run


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = {"model": {"class_path": "FedAvg"}}
    return write_run(tmp_path / "run", [[0.3, 0.5], [0.2, 0.8]], config=config, labels=[[1], [2]])


def refused(capsys):
    """The line in which a report of the run is refused, as every other command refuses it."""
    assert main(["report", "run"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line.partition("error: ")[2]


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("clients.csv", "\n2,1,", "\n2,1000000000,", "client must be a whole number of at most"),
        ("clients.csv", "\n2,1,", "\n2,-1,", "clients.csv: there is no client -1, there are 2"),
        ("clients.csv", "\n2,1,", "\n2,nan,", "client must be a whole number"),
        ("metrics.csv", "\n2,", "\n1e300,", "round must be a whole number of at most"),
        ("metrics.csv", "\n2,", "\n1,", "metrics.csv: the rounds must ascend from 1 or more"),
        ("metrics.csv", "\n2,", "\nx,", "metrics.csv is not a table of numbers"),
        ("metrics.csv", ",300,", ",1e300,", "expected numbers up to 1e+100, got 1e+300"),
        ("metrics.csv", ",300,", ",inf,", "metrics.csv: comm/bytes_down is larger than 1e+18"),
    ],
)
def test_tables(file, old, new, said, run, capsys):
    text = (run / file).read_text()
    assert old in text
    (run / file).write_text(text.replace(old, new))
    assert says(refused(capsys), said)


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("environment.json", {"header": None}, "environment.json lacks header.method"),
        ("environment.json", {"header": [1]}, "header: ~ keys and values ~ [1]"),
        ("environment.json", {"seed": "x"}, "seed: ~ a whole number ~ 'x'"),
        ("environment.json", {"scores": {"acc": 3}}, "scores.acc: ~ true or false ~ 3"),
        ("environment.json", {"seed": 2**80}, "seed: ~ a whole number ~ 12089"),
        ("partition.json", {"num_clients": 10**9}, "label_counts ~ 2 ~ 1000000000"),
        ("partition.json", {"label_counts": [[1], [2, 3]]}, "one number for each class"),
        ("partition.json", {"label_counts": 1}, "label_counts: ~ a list ~ 1"),
        ("summary.json", {"summary": []}, "summary: ~ keys and values ~ []"),
        ("summary.json", {"rounds": 1e300}, "rounds: ~ a whole number ~ 1e+300"),
    ],
)
def test_json_with_values_of_other_kinds(file, change, said, run, capsys):
    content = json.loads((run / file).read_text())
    (run / file).write_text(json.dumps(content | change))
    assert says(refused(capsys), said)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("summary.json", "[]", "run/summary.json ~ keys and values ~ list"),
        ("partition.json", "[" * 200_000, "run/partition.json ~ 50 levels"),
        ("config.yaml", "a: &a [*a]", "run/config.yaml:1: ~ 50 levels"),
        ("config.yaml", "seed: [1]", "run/config.yaml: seed: ~ a whole number ~ [1]"),
    ],
)
def test_files_that_hold_something_else(file, content, said, run, capsys):
    (run / file).write_text(content)
    assert says(refused(capsys), said)


@pytest.mark.parametrize("kind", [MemoryError, RuntimeError])
def test_memory_that_does_not_suffice_is_told_in_a_line(kind, run, capsys, monkeypatch):
    def full(found):
        raise kind("can't allocate memory: 7 EiB\nas torch says it")

    monkeypatch.setattr("pfl.results.report.report", full)
    assert main(["report", "run"]) == 2
    said = "pfl report: error: out of memory: can't allocate memory: 7 EiB\n"
    assert capsys.readouterr().err == said


def test_a_folder_whose_name_would_steer_the_terminal_is_not_read(run, capsys):
    run.rename("r\x1b[2Jn")
    assert main(["report", "r\x1b[2Jn"]) == 2
    said = capsys.readouterr()
    assert "control characters" in said.err
    assert "\x1b" not in said.err + said.out


def test_a_configuration_of_odd_values_is_another_setting(run):
    """What it says is compared, and never called."""
    odd = "model: {class_path: [1], init_args: [2]}\nloop: {callbacks: 3}\n"
    (run / "config.yaml").write_text(odd)
    assert main(["report", "run"]) == 0
