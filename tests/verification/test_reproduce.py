"""A run is run again: the same bits, equal to rounding, or different, and where."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import yaml

from pfl.__main__ import main
from pfl.verification import portable
from tests.helpers.extras import needs
from tests.helpers.messages import says

FIT = ["--config", "quickstart", "--loop.rounds=2", "--loop.progress=false"]


@pytest.fixture(autouse=True)
def _logged_nowhere(monkeypatch):
    """A repetition says so itself, for its whole process."""
    monkeypatch.setenv("WANDB_MODE", "disabled")


def reproduce(run, capsys, *words):
    """Return the exit code, and the lines after those of the run."""
    try:
        code = main(["reproduce", str(run), "--out", "again", *words])
    except SystemExit as end:
        code = end.code
    return code, capsys.readouterr().out.splitlines()[1:]


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
    code, said = reproduce(run, capsys)
    assert (code, said[0], len(said)) == (0, "same bits", 2)
    assert said[1].startswith("  then and now: ")
    assert list(Path("again", "again").iterdir())
    assert len(list(run.parent.iterdir())) == 1


@pytest.mark.parametrize("made", [True, False])
def test_a_portable_run_is_repeated_as_one(made, run, monkeypatch, capsys):
    edit(run / "environment.json", portable=made)
    entered = []
    monkeypatch.setattr(portable, "enter", lambda: entered.append(True))
    assert reproduce(run, capsys)[0] == 0
    assert entered == [True] * made


def test_rounding_and_what_differs_in_the_environment(run, capsys):
    """As if the run had been made elsewhere."""
    perturb(run, "train/local/ce", 2e-6)
    then = json.loads((run / "environment.json").read_text())
    packages = then["packages"] | {"torch": "1.0"}
    edit(run / "environment.json", packages=packages, op_threads=64, processor="Z80")
    code, said = reproduce(run, capsys)
    assert code == 0
    assert says(said[0], "agrees: off by ~ (train/local/ce after round 2), no radius")
    assert f"  torch: 1.0 then, {then['packages']['torch']} now" in said
    assert f"  op threads: 64 then, {then['op_threads']} now" in said
    assert f"  processor: Z80 then, {then['processor']} now" in said


def test_a_larger_difference_is_different(run, capsys):
    perturb(run, "test/personal/acc", 0.01)
    code, said = reproduce(run, capsys)
    assert code == 1
    assert says(said[0], "different: off by 0.01 (test/personal/acc after round 2), no radius")


@pytest.mark.long
def test_the_radius_is_measured_stored_and_used_the_next_time(run, capsys):
    perturb(run, "train/local/ce", 2e-6)
    code, said = reproduce(run, capsys, "--radius")
    radius = json.loads((run / "rounding.json").read_text())["radius"]
    assert 0 < radius < 1e-3
    assert (code, f"rounding alone makes {radius:.2g}" in said[0]) == (int(3 * radius < 2e-6), True)
    (run / "rounding.json").write_text('{"radius": "much"}')
    assert main(["reproduce", str(run)]) == 2
    assert says(capsys.readouterr().err, "rounding.json: radius: expected a number")
    (run / "rounding.json").write_text('{"radius": 0.0009}')
    code, said = reproduce(run, capsys)
    assert (code, said[0].endswith("rounding alone makes 0.0009")) == (0, True)


def configure(run, section, **options):
    """Change options of the loop, or of the data or the model."""
    file = run / "config.yaml"
    content = yaml.safe_load(file.read_text())
    part = content[section]
    (part if section == "loop" else part["init_args"]).update(options)
    file.write_text(yaml.safe_dump(content, sort_keys=False))


@needs("tables")
def test_data_are_read_where_the_user_says_alone(run, capsys, tmp_path):
    table = Path("t.csv")
    table.write_text(
        "a,y,who\n" + "".join(f"{n},{'no' if n % 2 else 'yes'},{n % 2}\n" for n in range(40))
    )
    words = ["--model=FedAvg", "--model.net=MLP", "--loop.rounds=1", "--loop.progress=false"]
    words += ["--loop.name=t"]
    data = [
        "--data=TabularData",
        "--data.path=t.csv",
        "--data.target=y",
        "--data.client_column=who",
    ]
    assert main(["fit", *words, *data]) == 0
    (run,) = Path("runs", "t").iterdir()
    capsys.readouterr()
    for place in ((), ("--set", "data.path=gone.csv")):
        assert main(["reproduce", str(run), *place]) == 3
        assert "cannot compare without the data: " in capsys.readouterr().err
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    table.rename(moved / "t.csv")
    code, said = reproduce(run, capsys, "--set", f"data.path={moved / 't.csv'}")
    assert (code, said[0]) == (0, "same bits")


def test_what_the_file_says_of_engines_and_places_is_replaced_and_said(run, capsys):
    ray = {"class_path": "pfl.engines.ray.RayEngine", "init_args": {"address": "127.0.0.1:9"}}
    configure(
        run,
        "loop",
        engine=ray,
        loggers=[{"class_path": "CSVLogger", "init_args": {"save_dir": "/"}}],
    )
    # The quickstart's own engine gives the same numbers, but for rounding.
    try:
        code = main(["reproduce", str(run)])
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    assert code == 0
    assert says(
        said.err,
        "config.yaml is not trusted: loop.loggers becomes null, loop.engine becomes auto",
    )


STRANGE = {
    "rounds": (
        "loop",
        {"rounds": 10**9},
        "1,000,000,000 rounds: the limit for untrusted files",
    ),
    "epochs": ("model", {"epochs": 10**9}, "model.epochs: 1,000,000,000: the limit for"),
    "class": ("model", {"net": {"class_path": "evil.Net"}}, "names evil.Net ~ --trust the file"),
    "metric": ("data", {"metrics": ["evil.Net"]}, "metrics.0: names evil.Net"),
    "download": ("data", {"metrics": [{"download": True}]}, "may not download anything"),
    "dotted": ("model", {"net.class_path": "evil.Net"}, "may not have dotted keys"),
    "engine": ("loop", {"engine": {"class_path": "evil.Net"}}, "names evil.Net"),
    "weights": (
        "model",
        {"net": {"class_path": "torchvision.models.resnet18", "init_args": {"weights": "DEFAULT"}}},
        "only with --download_weights",
    ),
}


@pytest.mark.parametrize("case", STRANGE)
def test_a_run_of_somebody_else_runs_nothing_but_the_projects_classes(case, run, capsys):
    section, options, message = STRANGE[case]
    configure(run, section, **options)
    Path("evil.py").write_text("open('ran', 'w')\n")
    assert main(["reproduce", str(run)]) == 2
    assert says(capsys.readouterr().err, message)
    assert not Path("ran").exists()


@pytest.mark.parametrize("key", ["print_config: ''", "ckpt_path: last", "download_weights: true"])
def test_a_run_of_somebody_else_gives_no_flags(key, run, capsys):
    with (run / "config.yaml").open("a") as file:
        file.write(f"{key}\n")
    assert main(["reproduce", str(run)]) == 2
    assert key.partition(":")[0] in capsys.readouterr().err


def test_a_flag_that_runs_nothing_is_refused(run, capsys):
    assert main(["reproduce", str(run), "--set", "print_config="]) == 2
    assert says(capsys.readouterr().err, "--set: only keys of a configuration")


def test_a_network_of_ones_own_is_run_if_the_file_is_trusted(run, capsys):
    Path("own_net.py").write_text("from lightning_modules import MLP\nclass Own(MLP):\n    pass\n")
    words = ["--config=quickstart", "--loop.rounds=1", "--loop.progress=false", "--loop.name=own"]
    assert main(["fit", *words, "--model.net=own_net.Own"]) == 0
    (run,) = Path("runs", "own").iterdir()
    capsys.readouterr()
    assert main(["reproduce", str(run)]) == 2
    assert "names own_net.Own" in capsys.readouterr().err
    code, said = reproduce(run, capsys, "--trust")
    assert (code, said[0]) == (0, "same bits")


def test_what_cannot_be_repeated_is_refused_at_once(run, capsys):
    (run / "summary.json").unlink()
    for path, said in ((run, f"{run.name} ~ not finished"), (Path("no"), "no folder no")):
        assert main(["reproduce", str(path)]) == 2
        assert says(capsys.readouterr().err, said)
    (run / "config.yaml").unlink()
    assert main(["reproduce", str(run)]) == 2
    assert says(capsys.readouterr().err, "from Python")
