"""The command line as a user meets it: runs, resumes, lists, and every way to get it wrong."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
import yaml
from torch.utils.data import DataLoader, TensorDataset

from lightning_modules.fedavg import FedAvg
from lightning_modules.fedper import FedPer
from pfl.__main__ import Terminated, main
from pfl.cli import explain
from pfl.cli.config import Experiment
from pfl.federation import checkpoint
from pfl.imports.trust import TrustError
from tests.helpers.messages import parts

# Line numbers matter: the tests of errors name them.
CONFIG = """\
seed: 1
loop:
  rounds: 2
  progress: false
  sampler: {class_path: UniformSampler, init_args: {fraction: 0.5}}
model:
  class_path: FedPer
  init_args:
    net: {class_path: MLP, init_args: {hidden: 7}}
    optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.005}}
    epochs: 2
    personal_layers: 1
data:
  class_path: Digits
  init_args:
    num_clients: 4
    max_samples: 200
    partition: {class_path: Dirichlet, init_args: {alpha: 0.3}}
"""
MY_NET = """\
from torch import nn
class Plain(nn.Sequential):
    def __init__(self, width: int = 3):
        super().__init__(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10))
"""
ROOT = Path(__file__).parents[2]
FIT = ["--config", "c.yaml"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(own_folder):
    Path("c.yaml").write_text(CONFIG)


def pfl(*words, config="c.yaml"):
    """Run a command on the configuration; its exit code."""
    try:
        return main([words[0], "--config", config, *words[1:]])
    except SystemExit as end:
        return end.code


def experiment(*words):
    return Experiment.parse("fit", ["--config", "c.yaml", *words])


def test_a_file_may_have_arguments_of_the_command_itself():
    for name in ("one", "other"):
        Path(f"{name}.ckpt").touch()
    Path("c.yaml").write_text("ckpt_path: one.ckpt\n")
    words = ["--config", "quickstart", "--config", "c.yaml"]
    assert Experiment.parse("fit", words).values.ckpt_path == "one.ckpt"
    words.append("--ckpt_path=other.ckpt")
    assert Experiment.parse("fit", words).values.ckpt_path == "other.ckpt"


def newest():
    """Return the folder of the newest run."""
    return max(Path("runs").glob("*/*"), key=lambda path: path.name)


def fingerprint(folder=None):
    return json.loads(((folder or newest()) / "summary.json").read_text())["fingerprint"]


# What is there.


def test_a_working_folder_that_was_deleted_is_told_in_one_line(monkeypatch, capsys):
    def gone():
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", gone)
    assert main(["list"]) == 2
    said = capsys.readouterr().err
    assert "folder was deleted" in said
    assert len(said.splitlines()) == 1


def test_output_into_a_closed_pipe_ends_without_a_traceback():
    """As of ``pfl --help | head -1``; the code is that of SIGPIPE."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "pfl", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.long
def test_the_packages_need_neither_wandb_nor_jsonargparse_nor_ray():
    code = (
        "import sys\n"
        "for name in ('wandb', 'jsonargparse', 'ray'): sys.modules[name] = None\n"
        "import pfl.loop, pfl.cli.catalogue\n"
        "pfl.cli.catalogue.load()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stderr, "a module was left out"


def test_data_inspect_draws_a_picture_over_no_other_file(capsys):
    """It needs no model, and draws beside the runs where nothing else is said."""
    content = yaml.safe_load(CONFIG)
    Path("d.yaml").write_text(yaml.safe_dump({"data": content["data"]}))
    assert main(["data", "inspect", "--config", "d.yaml"]) == 0
    assert "Digits, 4 clients" in capsys.readouterr().out
    assert Path("runs/digits/partition.png").read_bytes().startswith(b"\x89PNG")
    for name in ("c.yaml", "split.pdf"):
        assert main(["data", "inspect", "--config", "c.yaml", "--out", name]) == 2
        assert f"{name}: the picture is a .png file\n" in capsys.readouterr().err
    assert Path("c.yaml").read_text() == CONFIG
    assert not Path("split.pdf").exists()


# Configurations.


def test_later_files_win_and_flags_last():
    Path("later.yaml").write_text("seed: 2\nloop: {rounds: 3}\n")
    found = experiment("--config", "later.yaml", "--loop.rounds=4")
    assert (found.values.seed, found.values.loop.rounds, found.loop.seed) == (2, 4, 2)
    assert found.values.loop.progress is False


@pytest.mark.parametrize("overlay", ["model: {class_path: FedAvg}", "model: FedAvg", None])
def test_another_method_keeps_what_it_shares_with_the_first(overlay):
    words = ["--model=FedAvg"]
    if overlay is not None:
        Path("overlay.yaml").write_text(overlay)
        words = ["--config", "overlay.yaml"]
    model = experiment(*words).values.model
    assert model.class_path == "lightning_modules.FedAvg"
    assert model.init_args.epochs == 2
    assert model.init_args.net.init_args.hidden == 7
    assert model.init_args.optimizer.init_args.lr == 0.005
    assert "personal_layers" not in model.init_args


def test_short_names_of_all_kinds():
    made = experiment(
        "--model.optimizer=Adam",
        "--model.optimizer.lr=0.01",
        "--data.partition=IID",
        "--loop.sampler=BernoulliSampler",
        "--loop.callbacks+=EarlyStopping",
        "--loop.engine=SequentialEngine",
    )
    optimizer = made.module.configure_optimizers()
    assert isinstance(optimizer, torch.optim.Adam)
    assert optimizer.param_groups[0]["lr"] == 0.01
    kinds = [type(made.data.partition), type(made.loop.sampler), type(made.loop.callbacks[0])]
    assert [kind.__name__ for kind in kinds] == ["IID", "BernoulliSampler", "EarlyStopping"]


def test_networks_are_told_what_the_data_say():
    """Digits: 10 classes, 1x8x8 pixels; 64 inputs to the first layer, if it asks for them."""
    net = experiment().module.net
    assert (net.backbone[1].in_features, net.num_classes) == (64, 10)
    words = ["--model.net=Projected", "--model.net.net=MLP", "--model.net.width=5"]
    net = experiment(*words).module.net
    assert (net.backbone.encoder[1].in_features, net.num_classes) == (64, 10)
    module = experiment("--model=FedSimSup", "--model.supervisor=MLP").module
    assert module.supervisor.backbone[1].in_features == 64
    assert experiment("--model.net.num_classes=12").module.net.head.out_features == 12
    Path("my_net.py").write_text(MY_NET)
    net = experiment("--model=FedAvg", "--model.net=my_net.Plain", "--model.net.width=5").module.net
    assert net[1].out_features == 5


def test_integers_that_a_network_does_not_take_are_told(capsys):
    np.savez("whole.npz", x=np.zeros((40, 3), int), y=np.arange(40) % 2)
    words = ["--data", "TensorData", "--data.source=whole.npz", "--data.partition=IID"]
    assert pfl("fit", *words, "--data.max_samples=null") == 2
    check(capsys, " ~ MLP ~ shape (3,) and type int64: ~ give floats")


def test_initial_weights_depend_on_the_seed_alone():
    states = []
    for stream, words in ((1, []), (2, []), (2, ["--seed=5"])):
        torch.manual_seed(stream)
        before = torch.get_rng_state()
        states.append(experiment(*words).module.state_dict()["net.head.weight"])
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


# Errors: one line, the place, what was given, what would be right.

# What stands in the configuration, what stands there instead, what is said of it.
IN_FILES = r"""
epochs: 2 | epoch: 2 | c.yaml:11: model.epoch: FedPer ~ 'epoch' ~ 'epochs'
loop: | lop: | c.yaml:2: lop: ~ 'lop' ~ 'loop'
init_args: {fr | init_arg: {fr | c.yaml:5: loop.sampler.init_arg: UniformSampler ~ 'init_arg' ~ fraction, numpy_seed, train_all
class_path: FedPer | class_path: os.system | c.yaml:7: model: ~ os.system ~ torch.nn
class_path: FedPer | class: FedPer | c.yaml:7: model.class: ~ 'class_path'
FedPer | FedPerr | c.yaml:7: model: ~ 'FedPerr' ~ 'FedPer'
MLP | no_such.Net | c.yaml:9: model.net: ~ 'no_such.Net'
rounds: 2 | callbacks: [{class_path: EarlyStopping, init_args: {patience: 2, mod: max}}] | c.yaml:3: loop.callbacks.0.mod: EarlyStopping ~ 'mod' ~ 'mode'
rounds: 2 | callbacks: [{class_path: lightning.pytorch.callbacks.ModelCheckpoint}] | c.yaml:3: loop.callbacks.0: ModelCheckpoint ~ checkpoint_every
rounds: 2 | rounds: two | c.yaml:3: loop.rounds: ~ int ~ two
lr: 0.005 | lr: slow | c.yaml:10: model.optimizer.lr: ~ float ~ slow
rounds: 2 | precision: 16 | c.yaml:3: loop.precision: ~ '32-true', '64-true', 'bf16-mixed', '16-mixed' ~ 16
    num_clients: 4\n |  | c.yaml:14: data: ~ num_clients
seed: 1 | seed: 1\nseed: 2 | c.yaml:2: ~ 'seed' ~ twice
seed: 1 | seed: [ | c.yaml:3: ~ YAML ~ ',' or ']' ~ ':'
rounds: 2 | rounds: 0 | c.yaml:3: loop.rounds: rounds ~ 1 ~ 0
clients: 4 | clients: 0 | c.yaml:16: data.num_clients: num_clients ~ 1 ~ 0
clients: 4 | clients: 400 | c.yaml:16: data.num_clients: num_clients ~ 400 ~ 200
{class_path: MLP, init_args: {hidden: 7}} | LeNet5 | c.yaml:9: model.net: LeNet5 ~ (1, 8, 8) ~ 1x16x16
hidden: 7 | num_classes: 3 | c.yaml:7: model: ~ MLP ~ (3,) ~ 10
hidden: 7 | input_shape: [1, 9, 9] | c.yaml:7: model: ~ MLP ~ (1, 8, 8)
MLP | M\x07LP | c.yaml:9: ~ 0x07
epochs: 2 | ? [a, b]\n    : 2 | c.yaml:11: ~ YAML ~ key
epochs: 2 | epochs: null | c.yaml:11: model.epochs: ~ int ~ null
{class_path: torch.optim.SGD, init_args: {lr: 0.005}} | null | c.yaml:10: model.optimizer: ~ Optimizer ~ null
MLP | '..' | c.yaml:9: model.net: ~ '..'
class_path: MLP | class_path: [MLP] | c.yaml:9: model.net: ~ name
init_args: {hidden: 7} | hidden: 7 | c.yaml:9: model.net.hidden: put hidden under init_args
init_args: {hidden: 7} | init_args: 7 | c.yaml:9: model.net.init_args: ~ arguments
rounds: 2 | devices: 99 | c.yaml:3: loop.devices: devices ~ one ~ 99 ~ engine
rounds: 2 | accelerator: tpux | c.yaml:3: loop.accelerator: ~ accelerator
torch.optim.SGD | torch.optim.SparseAdam | c.yaml:10: model.optimizer: ~ SparseAdam ~ sparse
torch.optim.SGD | torch.optim.LBFGS | c.yaml:10: model.optimizer: ~ LBFGS ~ several times
lr: 0.005 | lr: .inf | c.yaml:10: model.optimizer.lr: ~ finite ~ inf
samples: 200 | samples: 200\n    mean: .nan | c.yaml:18: data.mean: ~ number ~ nan
{class_path: UniformSampler, init_args: {fraction: 0.5}} | {class_path: BernoulliSampler, init_args: {probability: 1.0e-12}} | ~ probability=1e-12 ~ minimum=2 ~ 4
{class_path: torch.optim.SGD, init_args: {lr: 0.005}} | {class_path: os.system, init_args: {command: touch ran}} | c.yaml:10: model.optimizer: ~ os.system ~ torch.nn
{class_path: UniformSampler, init_args: {fraction: 0.5}} | 0.5 | c.yaml:5: loop.sampler: expected Sampler ~ class_path ~ got 0.5
{class_path: MLP, init_args: {hidden: 7}} | {hidden: 7} | c.yaml:9: model.net: no class ~ class_path ~ init_args
samples: 200 | samples: 200\n    metrics: torchmetrics.AUROC | c.yaml:18: data.metrics: expected list, got torchmetrics.AUROC
rounds: 2 | name: ../../x | c.yaml:3: loop.name: name ~ default_root_dir ~ '../../x'
rounds: 2 | name: /x | c.yaml:3: loop.name: name ~ default_root_dir ~ '/x'
rounds: 2 | name: "\0" | c.yaml:3: ~ '\x00'
rounds: 2 | name: "a\e[2Jb" | c.yaml:3: ~ '\x1b'
clients: 4 | clients: 10000000000000000000 | c.yaml:16: data.num_clients: ~ 2**63
  class_path: Digits\n |   class_path: ImageFolder\n | c.yaml:14: data: ~ required: root
Digits\n  init_args: | ImageFolder\n  init_args:\n    root: gone/x | c.yaml:16: data.root: ~ gone/x ~ root/train/
"""  # noqa: E501

# A flag, and what is said of it.
IN_FLAGS = """
--model=Pfakd | --model: ~ 'PFAKD'
--model.optimizer=torch.optim.adamw | --model.optimizer: ~ 'torch.optim.AdamW'
--model.help | ~ 'pfl list methods'
--loop.callbacks+=ModelCheckpoint | --loop.callbacks+: ModelCheckpoint is not a callback of a federation ~ use checkpoint_every of the loop
--model.net=torch.nn.Liner | --model.net: ~ 'torch.nn.Liner' ~ 'torch.nn.Linear'
--model.help=FedPre | --model.help: ~ 'FedPre' ~ 'FedPer'
--model.net.hidden=x | --model.net.hidden: ~ int ~ x
--model.optimizer.lrr=1 | --model.optimizer.lrr: SGD ~ 'lrr' ~ 'lr'
--data.partition=gone.json | --data.partition: ~ gone.json ~ pfl list partitions
--data.loss={label_smoothing: 2} | --data.loss: ~ label_smoothing ~ [0, 1) ~ 2.0
--data.metrics=[{name: x}] | --data.metrics: {'name': 'x'} ~ metric ~ torchmetrics.Metric
--config=/ | --config /: this is a folder
--loop.seed=2 | --loop.seed: seed is a top-level key, beside loop
--model.net={class_path: MLP, hidden: 7} | --model.net: model.net.hidden: put hidden under init_args
--ckpt_path=last | --ckpt_path last: ~ checkpoint ~ runs/fedper_digits
--ckpt_path | --ckpt_path: expected a value
stray | unrecognized arguments: stray
--loop.callbacks+=EarlyStopping | --loop.callbacks+: ~ 'val/personal/acc' ~ data.val_fraction
"""  # noqa: E501


@pytest.mark.parametrize("case", IN_FILES.strip().splitlines())
def test_an_error_in_a_file_names_the_line(case, capsys):
    parts = (part.replace("\\n", "\n").replace("\\x07", "\x07") for part in case.split(" | "))
    old, new, message = parts
    assert old in CONFIG
    Path("c.yaml").write_text(CONFIG.replace(old, new, 1))
    assert pfl("fit") == 2
    check(capsys, message)
    assert not Path("ran").exists()


@pytest.mark.parametrize("case", IN_FLAGS.strip().splitlines())
def test_an_error_in_a_flag_names_the_flag(case, capsys):
    flag, message = case.split(" | ")
    assert pfl("fit", flag) == 2
    check(capsys, message)


# Settings as key, value and place; a message about the section of the first; where it is placed.
SAMPLES = "data.samples 80 c.yaml:3"
COLUMNS = ("data.path t.csv --path", "data.target Y --target", "data.client_column hospital --who")
CLASSES = ("data.class_path Digits c.yaml:14", "data TensorData --data")
MODEL = ("model.class_path FedPer c.yaml:7", "model.epochs 2 --model.epochs")
RATE = "model.optimizer.lr -1 --model.lr"
FEW = "80 samples are too few for 1000 domains"
GAP = "hospital.csv, line 9, column 'bmi': '' is a missing value"
LOCATED = [
    ([SAMPLES], FEW, "c.yaml:3: data.samples: "),
    # The flag rather than the file.
    ([SAMPLES, "data.num_clients 1000 --data.num_clients"], FEW, "--data.num_clients: "),
    # A value in quotes rather than another that the message lists.
    (COLUMNS, "t.csv has no column 'Y', only a, hospital, y", "--target: "),
    # The file that lacks a value, and no column that is not the one.
    (
        ["data.path hospital.csv c.yaml:4", "data.partition.column age --column", COLUMNS[2]],
        GAP,
        "c.yaml:4: data.path: ",
    ),
    # No number in another word.
    ([*CLASSES, "data.num_clients 3 --data.num_clients"], "no idx3 in STL-3x", "--data: "),
    # The class that stands in the place of the file's.
    (CLASSES, "the data need x and y", "--data: "),
    (CLASSES[:1], "the data need x and y", "c.yaml:14: data: "),
    (["model.net mine.Wide --model.net"], "network Wide has too few outputs", "--model.net: "),
    # The flag that gives a number.
    ([*MODEL, RATE], "Invalid learning rate: -1.0", "--model.lr: "),
    (MODEL, "Invalid learning rate: -1.0", "c.yaml:7: "),
]


@pytest.mark.parametrize(("given", "message", "place"), LOCATED)
def test_an_error_names_the_setting_that_it_is_about(given, message, place):
    words = [one.split() for one in given]
    settings = [explain.UserSetting(tuple(k.split(".")), text, at) for k, text, at in words]
    said = explain.locate(message, settings, given[0].partition(".")[0])
    assert said.startswith(place)
    assert said.endswith(message)


def check(capsys, message):
    """Check that standard error is one line of the usual form, and no traceback."""
    said = capsys.readouterr().err
    assert re.match(parts(f"pfl fit: error: {message}"), said)
    assert said.count("\n") == 1
    assert len(said) < 500


# A list of nine times the list before.
NINE = b"a%d: &a%d [%s]\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CONFIG.encode().replace(b"MLP", b"M\xffP"), "c.yaml:9: this is not UTF-8 (byte 0xff)"),
        (b"model:\n  " + b"[" * 500 + b"]" * 500, "c.yaml:2: there are more than 50 levels"),
        (
            b"a0: &a0 1\n" + b"".join(NINE % (n, n, b"*a%d," % (n - 1) * 9) for n in range(1, 9)),
            "c.yaml:1: there are more than 100,000 values, aliases included",
        ),
        (b"loop: null\n" + CONFIG[CONFIG.index("model:") :].encode(), "c.yaml:1: loop: expected"),
        (b"", "c.yaml:1: ~ keys and values"),
        (b"- 1", "c.yaml:1: ~ keys and values"),
    ],
    ids=["not UTF-8", "levels", "aliases", "section", "nothing", "list"],
)
def test_a_file_that_is_no_configuration(content, message, capsys):
    Path("c.yaml").write_bytes(content)
    assert pfl("fit") == 2
    check(capsys, message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config", "c.yaml", "fit"], "--config ~ after ~ pfl fit --config"),
        (["ft"], "'ft' ~ 'pfl fit'"),
        (["FIT"], "'FIT' ~ 'pfl fit'"),
        (["data", "inspekt"], "'data' ~ 'pfl data inspect'"),
        (["xyz"], "'xyz' ~ fit, test, validate, predict, export, "),
    ],
)
def test_an_error_in_the_command(words, message, capsys):
    assert main(words) == 2
    said = capsys.readouterr().err
    assert re.match(parts(f"pfl: error: ~ {message}"), said)
    assert said.count("\n") == 1


# Runs.


def test_fit_prints_the_same_fingerprint_twice(capsys):
    said = []
    for _ in range(2):
        assert pfl("fit") == 0
        said.append(capsys.readouterr().out)
    summary = json.loads((newest() / "summary.json").read_text())["summary"]
    score = f"test/personal/acc {summary['test/personal/acc/last']:.4f}"
    assert said[0] == said[1] == f"{score}\nfingerprint {fingerprint()}\n"


def test_nothing_is_written_over_the_records_of_a_run(capsys, run):
    before = {file: file.read_bytes() for file in run.rglob("*.*") if file.is_file()}
    for words, told in (
        (["report", run, "--out", run / "summary.json"], "summary.json: a report is an .html file"),
        (["compare", run, "--out", run / "metrics.csv"], "metrics.csv: the CSV files of this"),
        (["compare", run, "--out", "a.csv", run / "b.csv"], "b.csv: the CSV files of this"),
    ):
        assert main([*map(str, words)]) == 2
        assert told in capsys.readouterr().err
    assert {file: file.read_bytes() for file in run.rglob("*.*") if file.is_file()} == before
    assert not Path("a.csv").exists()


def test_an_exported_client_loads_and_is_tuned_without_naming_anything(capsys, run):
    """Its own file needs no network, and neither does the one that ModelCheckpoint writes."""
    assert pfl("export", "--ckpt_path=last", "--client=3", "out.ckpt") == 0
    assert 'FedPer.load_from_checkpoint("out.ckpt")' in capsys.readouterr().out
    saved = checkpoint.load(run / "checkpoints" / "last.ckpt")
    kept = saved["kept"].get(3, saved["template"])
    module = FedPer.load_from_checkpoint("out.ckpt")
    assert (module.net.head.in_features, module.epochs) == (7, 2)
    for name, value in module.state_dict().items():
        source = kept if name.startswith("net.head") else saved["server"]["shared"]
        assert torch.equal(value, source[name])
    loader = DataLoader(TensorDataset(torch.randn(8, 1, 8, 8), torch.arange(8)), 4)
    trainer = L.Trainer(max_epochs=1, logger=False, enable_progress_bar=False, accelerator="cpu")
    trainer.fit(module, loader)
    again = FedPer.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
    for name, value in module.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
    (first, _) = trainer.predict(again, loader)
    assert torch.allclose(first.sum(1), torch.ones(4))


def test_an_export_replaces_no_checkpoint(capsys, run):
    file = run / "checkpoints" / "last.ckpt"
    before = file.read_bytes()
    for name in ("last.ckpt", "other.ckpt"):
        place = file.with_name(name)
        assert pfl("export", "--ckpt_path=last", "--client=1", str(place)) == 2
        assert f"{place} is the place of a run's checkpoint" in capsys.readouterr().err
    assert pfl("export", "--ckpt_path=last", "--client=4", "out.ckpt") == 2
    said = capsys.readouterr().err
    assert said == "pfl export: error: there is no client 4; the clients are 0 to 3\n"
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]
    assert not Path("out.ckpt").exists()


def test_an_export_that_names_somebodys_class_says_how_to_load_it(capsys):
    Path("my_net.py").write_text(MY_NET)
    words = ["--model=FedAvg", "--model.net=my_net.Plain"]
    assert pfl("fit", *words) == 0
    assert pfl("export", *words, "--ckpt_path=last", "--client=0", "out.ckpt") == 0
    advice = "FedAvg.load_from_checkpoint(\"out.ckpt\", trust=['my_net.Plain'])"
    assert advice in capsys.readouterr().out
    with pytest.raises(TrustError, match="trust="):
        FedAvg.load_from_checkpoint("out.ckpt")
    module = FedAvg.load_from_checkpoint("out.ckpt", trust=["my_net.Plain"])
    assert module.net[1].out_features == 3


@pytest.mark.parametrize(("kind", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_an_interruption_before_a_resume_goes_on_says_that_nothing_is_lost(
    kind, code, monkeypatch, capsys
):
    def interrupted(reading):
        raise kind

    monkeypatch.setattr("pfl.cli.config.Experiment.of", interrupted)
    Path("run").mkdir()
    for words, told in (
        (["--ckpt_path=run"], "the run is unchanged"),
        (["--ckpt_path", "null"], "nothing to resume"),
        ([], "nothing to resume"),
    ):
        assert pfl("fit", *words) == code
        assert told in capsys.readouterr().err


LONG = ["--loop.rounds=40", "--loop.checkpoint_every=1", "--data.num_clients=8", "--loop.name=long"]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_ended_run_goes_on_to_the_same_result(number, capsys):
    """A process is ended after a few rounds; resumed, its weights are those of an unbroken run."""
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, "-m", "pfl", "fit", "--config", "c.yaml", *LONG]
    process = subprocess.Popen(
        command, env=environment | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True
    )
    while not (table := list(Path("runs").glob("long/*/metrics.csv"))) or rows(table[0]) < 3:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    folder = table[0].parent
    # From now on the interrupted process's folder is looked at, and gone on with, from here.
    advice = f"pfl fit --config {folder / 'config.yaml'} --ckpt_path {folder}"
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert "Traceback" not in said
        assert said.splitlines()[-1] == advice
    assert not (folder / "summary.json").exists()

    assert main(shlex.split(advice)[1:]) == 0
    assert rows(folder / "metrics.csv") == 41
    assert pfl("fit", *LONG) == 0
    assert fingerprint() == fingerprint(folder)
    assert newest() != folder


def rows(path):
    return len(path.read_text().splitlines())
