"""Clients of other data join a run by what is stored with it: ``--join``."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from datamodules import TensorData
from datamodules.partition.unseen import Unseen
from lightning_modules import (
    IFCA,
    LPFT,
    MLP,
    SCAFFOLD,
    Ditto,
    FedAvg,
    FedBN,
    FedPer,
    FedProto,
    Local,
)
from pfl.__main__ import main
from pfl.cli.reading import read
from pfl.cli.runs import fit as main_fit
from pfl.core.seeds import scoped
from pfl.extras.joining.data import adopt, joining
from pfl.extras.newcomers.newcomers import Newcomers
from pfl.federation.evaluator import Evaluated
from pfl.federation.prepare import prepared
from pfl.federation.resume import FILE, Wanted
from pfl.federation.run import TRANSFORMS
from pfl.loop import FederatedLoop
from tests.helpers.extras import needs
from tests.helpers.messages import parts, says
from tests.helpers.tables import csv_rows

pytestmark = needs("tables")

SGD = partial(torch.optim.SGD, lr=0.1)
rng = np.random.default_rng(0)
Y = rng.integers(0, 3, 60)
X = (rng.normal(size=(60, 4)) + Y[:, None]).astype(np.float32)
NAMES, TIMES = np.repeat([*"abcde"], 12), np.tile(np.arange(12.0), 5)


def data(rows=slice(None), **options):
    """Return clients a to e, who are tested on their latest samples; steps take all others."""
    source = {"x": X[rows], "y": Y[rows], "client": NAMES[rows], "column.time": TIMES[rows]}
    return TensorData(source, test_protocol="future", shuffle=False, **options)


def loop(**options):
    fixed = {"progress": False, "accelerator": "cpu", "engine": "sequential", "name": "run"}
    joining = [Newcomers(join_rounds=2, tune_epochs=1)]
    return FederatedLoop(2, evaluations=joining, **fixed, **options)


@pytest.mark.parametrize(
    "kind", [FedAvg, FedPer, FedBN, Local, LPFT, SCAFFOLD, Ditto, IFCA, FedProto]
)
def test_who_joins_from_a_file_scores_as_if_the_run_had_held_it_out(kind, tmp_path):
    """The same numbers bit for bit, without others' samples; no byte of the run changes."""

    def method():
        with scoped(3):
            net = MLP(3, (4,), hidden=6, batch_norm=kind is FedBN)
            return kind(net, optimizer=SGD)

    run = loop(default_root_dir=str(tmp_path)).fit(method(), data(unseen=Unseen(clients=["e"])))
    (held_out,) = [row for row in run.latest.clients if row.get("unseen")]
    files = {f: f.read_bytes() for f in run.folder.rglob("*") if f.is_file()}
    new = data(NAMES == "e")
    adopt(new, run.folder)
    new.setup()
    with pytest.warns(UserWarning, match=parts("e: ~ run ~ client")):
        later = joining(new, run.folder, "file")
    with prepared(Wanted(loop(), method(), later, str(run.folder))) as federation:
        tested = Evaluated(federation.evaluator, (), {}, *2 * [federation.run.server], {})
        row = federation.evaluations[-1].measure(tested)
    (joined,) = tested.rows.values()
    assert {**joined, "client": 4} == {n: held_out[n] for n in joined}
    assert joined["client"] == 5
    # Nobody is left to choose the epochs of tuning, or to compare with.
    assert not [name for name in row if "tuned" in name or "gap" in name or "hurt" in name]
    assert files == {f: f.read_bytes() for f in run.folder.rglob("*") if f.is_file()}


# The commands.


def hospitals(file, *names, rows=16, header="age,kind,died,hospital"):
    """Write patients of some hospitals: those above 50 die."""
    with file.open("w", newline="") as lines:
        lines.write(f"{header}\n")
        for h, name in enumerate(names):
            for n in range(rows):
                age = 42 + (7 * n + 3 * h) % 17
                cells = {"age": age, "kind": "ab"[n % 2], "died": age > 50, "hospital": name}
                lines.write(",".join(str(cells[c]) for c in header.split(",")) + "\n")
    return str(file)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A run on three hospitals, whose table is not there any more."""
    folder = tmp_path_factory.mktemp("stored")
    file = hospitals(folder / "old.csv", "Basel", "Bern", "Zug")
    argv = [
        *("--model=FedPer", "--model.net=MLP", "--model.net.hidden=4", "--data=TabularData"),
        *(f"--data.path={file}", "--data.target=died", "--data.client_column=hospital"),
        *("--data.standardise=train", f"--loop.default_root_dir={folder / 'runs'}"),
        *("--loop.rounds=2", "--loop.progress=false"),
    ]
    run = main_fit(read("fit", argv)).folder
    (folder / "old.csv").unlink()
    return run


def test_a_run_is_all_that_is_needed(stored, tmp_path, capsys):
    before = (stored / FILE).read_bytes()
    new = hospitals(tmp_path / "new.csv", "Chur", "Sion")
    assert main(["test", "--ckpt_path", str(stored), "--data", new, "--join", "3"]) == 0
    said = capsys.readouterr().out
    (sion,) = [line for line in said.splitlines() if "Sion" in line]
    # Client, name, training and test samples, zero-shot and three local rounds.
    cells = re.findall(r"[\w.]+", sion)
    assert cells[:4] == ["4", "Sion", "12", "4"]
    assert len(cells) == 8
    assert (stored / FILE).read_bytes() == before
    # The mean over clients is what the only client has.
    one = hospitals(tmp_path / "Thun.csv", "?", header="age,kind,died")
    assert main(["test", f"--ckpt_path={stored}", f"--data={one}", "--join=0"]) == 0
    said = capsys.readouterr().out
    (row,) = [re.findall(r"[\w.]+", line) for line in said.splitlines() if " Thun " in line]
    assert re.search(rf"acc, mean over clients +{row[-1]}\s", said)


def test_predictions_and_exported_models_are_those_of_clients_that_join(stored, tmp_path, capsys):
    new = hospitals(tmp_path / "new.csv", "Chur", "Sion")
    source = ["--ckpt_path", str(stored), "--data", new, "--join", "2"]
    assert main(["predict", *source]) == 0
    folder = stored / "predictions" / "test" / "new"
    assert sorted(file.name for file in folder.iterdir()) == ["client_3.csv", "client_4.csv"]
    rows = csv_rows(folder / "client_4.csv")
    assert {row["name"] for row in rows} == {"Sion"}
    assert all(16 <= int(row["row"]) < 32 for row in rows)
    out = tmp_path / "sion.ckpt"
    assert main(["export", *source, "--client", "Sion", str(out)]) == 0
    capsys.readouterr()
    model = FedPer.load_from_checkpoint(out).eval()
    (means, deviations) = json.loads((stored / TRANSFORMS).read_text())["moments"]["x"]
    for row in rows:
        n = int(row["row"]) - 16
        raw = [42 + (7 * n + 3) % 17, n % 2 == 0, n % 2 == 1]
        x = torch.tensor(raw, dtype=torch.float64)
        x[0] = (x[0] - means[0]) / deviations[0]
        expected = model(x.float()[None]).softmax(-1)[0]
        found = torch.tensor([float(row["prediction_0"]), float(row["prediction_1"])])
        torch.testing.assert_close(found, expected)


def test_a_model_that_is_asked_for_by_name_is_that_of_the_client_that_joins(
    stored, tmp_path, capsys
):
    """Bern was there before; a hospital called 1 is not client 1."""
    new = hospitals(tmp_path / "new.csv", "1", "Bern")
    source = ["export", f"--ckpt_path={stored}", f"--data={new}", "--join=1"]
    for name in ("Bern", "4"):
        with pytest.warns(UserWarning, match="Bern: the run has a client of that name"):
            assert main([*source, f"--client={name}", str(tmp_path / name)]) == 0
    assert (tmp_path / "Bern").read_bytes() == (tmp_path / "4").read_bytes()
    with pytest.warns(UserWarning, match="the client named 1 has the number 3"):
        assert main([*source, "--client=1", str(tmp_path / "one")]) != 0
    assert "client 1 is a client of the run" in capsys.readouterr().err


WRONG = {
    "no file": (
        ["test", "--data", "no.csv", "--join", "3"],
        "--data no.csv: there is no such file",
    ),
    "no --data": (["test", "--join", "3"], "--join needs the file of the clients that join"),
    "a class": (["test", "--data=TabularData", "--join=3"], "--join needs the file of the clients"),
    "no --join": (["test", "--data", "NEW"], "is a file or a folder: with --join K its clients"),
    "negative": (["test", "--data", "NEW", "--join", "-1"], "join ~ negative ~ -1"),
    "word": (["test", "--data", "NEW", "--join", "few"], "--join: ~ int ~ few"),
    "cross": (["test", "--data", "NEW", "--join", "1", "--cross"], "leave out --cross and"),
    "member": (["export", "--data=NEW", "--join=1", "--client=0", "o"], "0 is a client of the run"),
    "name": (
        ["export", "--data=NEW", "--join=1", "--client=Bonn", "o"],
        "there is no client 'Bonn'",
    ),
    "number": (["export", "--data=NEW", "--join=1", "--client=5", "o"], "the clients are 0 to 4"),
    "column": (
        ["test", "--data=LESS", "--join=1"],
        "less.csv has no column 'kind', only age, died",
    ),
    "few": (["test", "--data=FEW", "--join=1"], "Chur has 1 samples: a client that joins needs"),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_message_says_what_is_wrong(case, stored, tmp_path, capsys):
    words, message = WRONG[case]
    files = {
        "NEW": hospitals(tmp_path / "new.csv", "Chur", "Sion"),
        "LESS": hospitals(tmp_path / "less.csv", "Chur", header="age,died"),
        "FEW": hospitals(tmp_path / "few.csv", "Chur", rows=1),
    }
    for name, file in files.items():
        words = [word.replace(name, file) for word in words]
    assert main([*words, "--ckpt_path", str(stored)]) != 0
    said = capsys.readouterr().err
    assert re.search(parts(message), said)
    assert said.count("error:") == 1
    assert not (tmp_path / "o").exists()


def test_a_run_must_be_named_and_must_be_whole(stored, tmp_path, capsys):
    new = hospitals(tmp_path / "new.csv", "Chur")
    join = ["test", "--data", new, "--join", "1"]

    def refused(*words):
        assert main([*join, *words]) != 0
        return capsys.readouterr().err

    assert "needs the folder of a run: --ckpt_path RUN" in refused()
    assert "needs the folder of a run: --ckpt_path RUN" in refused("--ckpt_path=last")
    assert "there is no checkpoint at nowhere" in refused("--ckpt_path=nowhere")
    copy = tmp_path / "copy"
    shutil.copytree(stored, copy)
    (copy / TRANSFORMS).write_text("{")
    assert f"{copy / TRANSFORMS} is damaged" in refused(f"--ckpt_path={copy}")
    (copy / TRANSFORMS).unlink()
    assert f"{copy} has no transforms.json" in refused(f"--ckpt_path={copy}")
    shutil.copy(stored / TRANSFORMS, copy)
    partition = json.loads((copy / "partition.json").read_text())
    partition["label_counts"][1][0] += 1
    (copy / "partition.json").write_text(json.dumps(partition))
    assert "label_counts do not fit" in refused(f"--ckpt_path={copy}")


def test_who_tests_a_run_with_other_data_is_told_how(stored, tmp_path, capsys):
    new = hospitals(tmp_path / "new.csv", "Chur", "Sion", "Thun")
    same = hospitals(tmp_path / "old.csv", "Chur", "Sion", "Thun", rows=12)
    for file in (new, same):
        argv = ["--config", str(stored / "config.yaml"), f"--data.path={file}"]
        assert main(["test", *argv, f"--ckpt_path={stored}"]) != 0
        assert "pfl test --ckpt_path RUN --data FILE --join 5" in capsys.readouterr().err
    hospitals(tmp_path / "old.csv", "Basel", "Bern", "Zug")
    assert main(["test", f"--ckpt_path={stored}", "--data", same, "--join", "1"]) != 0
    assert says(capsys.readouterr().err, "data of the run itself")


def test_data_that_name_no_file_are_refused(tmp_path, capsys):
    argv = ["--config=quickstart", "--loop.rounds=1", f"--loop.default_root_dir={tmp_path}"]
    run = main_fit(read("fit", [*argv, "--loop.progress=false"])).folder
    new = hospitals(tmp_path / "new.csv", "Chur")
    assert main(["test", f"--ckpt_path={run}", "--data", new, "--join", "1"]) != 0
    assert says(capsys.readouterr().err, "Digits ~ join later")


def configured(stored, tmp_path, section, **options):
    """Return a copy of the run, as somebody else may have changed its configuration."""
    copy = tmp_path / "theirs"
    shutil.copytree(stored, copy)
    file = copy / "config.yaml"
    content = yaml.safe_load(file.read_text())
    part = content[section]
    (part if section == "loop" else part["init_args"]).update(options)
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return copy


EVIL = 'open("ran", "w")'
THEIRS = {
    "class": ("model", {"net": {"class_path": "evil.Net"}}, "names evil.Net ~ --trust the file"),
    "metric": ("data", {"metrics": ["evil.Net"]}, "names evil.Net"),
    "place": ("data", {"cache": "/etc"}, "TabularData has no argument 'cache'"),
    "rounds": ("loop", {"rounds": 10**9}, "1,000,000,000 rounds"),
}


@pytest.mark.parametrize("case", THEIRS)
def test_a_run_of_somebody_else_runs_nothing_that_it_names(
    case, stored, tmp_path, capsys, monkeypatch
):
    section, options, message = THEIRS[case]
    new = hospitals(tmp_path / "new.csv", "Chur")
    run = configured(stored, tmp_path, section, **options)
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text(EVIL)
    alone = ["--config", str(run / "config.yaml"), f"--data.path={new}"]
    for words in (["--join", "1", "--data", new], alone):
        assert main(["test", "--ckpt_path", str(run), *words]) == 2
        assert says(capsys.readouterr().err, message)
    assert not Path("ran").exists()


def test_a_run_of_somebody_else_connects_nowhere_and_reads_what_the_user_names(
    stored, tmp_path, capsys
):
    """The same numbers as of the run that nobody has changed."""
    new = hospitals(tmp_path / "new.csv", "Chur", "Sion")
    ray = {"class_path": "pfl.engines.ray.RayEngine", "init_args": {"address": "127.0.0.1:9"}}
    run = configured(stored, tmp_path, "loop", engine=ray)
    said = []
    for folder in (stored, run):
        words = ["--ckpt_path", str(folder), "--data", new, "--join", "1"]
        assert main(["test", *words]) == 0
        said.append(capsys.readouterr())
    assert said[0].out.replace(str(stored), "") == said[1].out.replace(str(run), "")
    assert "loop.engine becomes auto" in said[1].err
    words = ["--config", str(run / "config.yaml"), "--ckpt_path", str(run)]
    assert main(["test", *words]) == 2
    assert says(capsys.readouterr().err, "data.path is ~ old.csv, but ~ --data.path=PATH")
    old = hospitals(tmp_path / "old.csv", "Basel", "Bern", "Zug")
    assert main(["test", *words, f"--data.path={old}"]) == 0
