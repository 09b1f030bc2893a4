"""A run is run again: the same bits, equal to rounding, or different, and where."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from pfl.__main__ import main
from pfl.cli.explain import UsageError
from tests.helpers.messages import says


@pytest.fixture
def run(own_folder, monkeypatch, capsys):
    """The folder of a finished run of two rounds."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert main(["fit", "--config", "quickstart", "--loop.rounds=2", "--loop.progress=false"]) == 0
    capsys.readouterr()
    (folder,) = Path("runs", "quickstart").iterdir()
    return folder


def reproduce(run, capsys):
    """Return the exit code, and the lines after those of the run."""
    try:
        code = main(["reproduce", str(run), "--out", "again"])
    except SystemExit as end:
        code = end.code
    return code, capsys.readouterr().out.splitlines()[3:]


def edit(file, **keys):
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def perturb(run, name, by):
    """Change a number of the last round, and the fingerprint."""
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows[-1][name] = repr(float(rows[-1][name]) + by)
    with (run / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    edit(run / "summary.json", fingerprint="another")


def test_the_same_bits(run, capsys):
    assert reproduce(run, capsys) == (0, ["same bits", "  the environment is the same"])
    assert list(Path("again", "again").iterdir())
    assert len(list(run.parent.iterdir())) == 1


def test_rounding_and_what_differs_in_the_environment(run, capsys):
    """As if the run had been made elsewhere."""
    perturb(run, "train/local/ce", 1e-6)
    then = json.loads((run / "environment.json").read_text())
    packages = then["packages"] | {"torch": "1.0"}
    edit(run / "environment.json", packages=packages, op_threads=64, processor="Z80")
    code, said = reproduce(run, capsys)
    assert code == 0
    assert said[0] == "equal to rounding (largest difference 1e-06: train/local/ce after round 2)"
    assert f"  torch: 1.0 then, {then['packages']['torch']} now" in said
    assert f"  op threads: 64 then, {then['op_threads']} now" in said
    assert f"  processor: Z80 then, {then['processor']} now" in said


def test_a_larger_difference_is_different(run, capsys):
    perturb(run, "test/personal/acc", 0.01)
    code, said = reproduce(run, capsys)
    assert code == 1
    assert said[0] == "different (largest difference 0.01: test/personal/acc after round 2)"


def test_another_seed_is_different(run, capsys):
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("seed: 42", "seed: 43"))
    code, said = reproduce(run, capsys)
    assert code == 1
    assert said[0].startswith("different (largest difference ")


def test_another_number_of_rounds_is_different(run, capsys):
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("rounds: 2", "rounds: 1"))
    code, said = reproduce(run, capsys)
    assert (code, said[0]) == (1, "different: 2 rounds then, 1 now")


def test_a_run_with_pretrained_weights_is_repeated_with_them(run, monkeypatch, capsys):
    def fit(words):
        raise UsageError(words[-1])

    monkeypatch.setattr("pfl.cli.runs.fit", fit)
    assert main(["reproduce", str(run), "--download_weights"]) == 2
    assert "error: --download_weights\n" in capsys.readouterr().err


def test_what_cannot_be_repeated_is_refused_at_once(run, capsys):
    (run / "summary.json").unlink()
    for path, said in ((run, f"{run.name} ~ not finished"), (Path("no"), "no folder no")):
        assert main(["reproduce", str(path)]) == 2
        assert says(capsys.readouterr().err, said)
    (run / "config.yaml").unlink()
    assert main(["reproduce", str(run)]) == 2
    assert says(capsys.readouterr().err, "from Python")
