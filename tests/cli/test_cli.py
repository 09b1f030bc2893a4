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
from contextlib import suppress
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
import yaml
from torch.utils.data import DataLoader, TensorDataset

from lightning_modules.base import ClientModule
from lightning_modules.fedavg import FedAvg
from lightning_modules.fedper import FedPer
from pfl.__main__ import Terminated, main
from pfl.cli import explain
from pfl.cli.commands import commands
from pfl.cli.config import Experiment
from pfl.cli.explain import UsageError
from pfl.cli.parser import make_parser
from pfl.federation import checkpoint
from pfl.imports.trust import TrustError
from tests.helpers.messages import parts, says

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
    return Experiment.parse(make_parser("fit"), ["--config", "c.yaml", *words])


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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--version"], "pfl: warning: 3 of 9\n"),
        (["--version", "--debug"], "<string>:1: UserWarning: 3 of 9\n"),
    ],
)
def test_a_warning_is_one_line_without_its_place_in_the_code(words, told):
    code = "import pfl.__main__, warnings; pfl.__main__.main(); warnings.warn('3 of 9')"
    command = [sys.executable, "-c", code, *words]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stderr == told


def test_without_a_command_the_first_three_are_shown(capsys):
    assert main([]) == 2
    said = capsys.readouterr().out
    assert all(f"  pfl {words} " in said for words in ("fit --config quickstart", "list", "init"))
    assert "sweep" not in said
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.skipif(sys.version_info < (3, 11), reason="jsonargparse needs Python 3.11 for it")
def test_help_lists_the_optimisers_of_torch(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--model.help=FedAvg"])
    said = " ".join(capsys.readouterr().out.split())
    (known,) = re.findall(r"--model.optimizer OPTIMIZER .*? known: ([\w, ]+)\)", said)
    assert {"SGD", "AdamW"} <= {*known.split(", ")}
    assert "Optimizer" not in known.split(", ")


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--model=Pfakd", "PFAKD"),
        ("--model=fedavg", "FedAvg"),
        ("--model.optimizer=sgd", "SGD"),
        ("--model.optimizer=torch.optim.adamw", "torch.optim.AdamW"),
        ("--model.net=mlp", "MLP"),
    ],
)
def test_a_name_in_the_wrong_case_finds_the_right_one(flag, meant, capsys):
    assert pfl("fit", flag) == 2
    assert f"'{meant}'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["ModelCheckpoint", "lightning.pytorch.callbacks.ModelCheckpoint"])
def test_a_callback_of_lightning_is_refused_and_ours_named(name, capsys):
    wanted = (
        "ModelCheckpoint is not a callback of a federation, which has rounds and clients, not "
        "a single training loop; use checkpoint_every of the loop"
    )
    assert pfl("fit", f"--loop.callbacks+={name}") == 2
    check(capsys, f"--loop.callbacks+: {wanted}")
    Path("d.yaml").write_text(f"loop:\n  callbacks:\n    - class_path: {name}\n")
    assert main(["fit", "--config", "c.yaml", "--config", "d.yaml"]) == 2
    check(capsys, f"d.yaml:3: loop.callbacks.0: {wanted}")


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


def test_help_of_a_method_shows_its_own_arguments_and_those_of_every_client(capsys):
    assert pfl("fit", "--model.help", "FedPer") == 0
    shown = capsys.readouterr().out
    for argument in ("personal_layers", "epochs", "buffers", "lr_decay"):
        assert f"--model.{argument}" in shown
    assert "LeNet5" in shown
    assert "torch.nn.Conv2d" not in shown
    usage = "usage: pfl fit --model FedPer [--model.ARGUMENT VALUE ...]"
    assert shown.startswith(f"{usage}\n\nA shared backbone")
    assert not re.search("``|:class:|<class|Literal", shown)


def test_help_of_no_class_says_what_to_name(capsys):
    assert pfl("fit", "--model.help") == 2
    assert "'pfl list methods'" in capsys.readouterr().err


@pytest.mark.parametrize("command", commands())
def test_a_help_opens_with_what_for_and_two_examples(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with suppress(SystemExit):
        main([*command.split(), "--help"])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    _, purpose, examples, *_ = shown.split("\n\n")
    assert purpose.endswith(".")
    title, *lines = examples.splitlines()
    assert title == "examples:"
    assert [f"pfl {command} " in f"{line} " for line in lines] == [True, True]


def test_data_inspect(capsys):
    assert pfl("data", "--nothing") == 2
    assert main(["data", "inspect", "--config", "c.yaml", "--out", "split.png"]) == 0
    assert "Digits, 4 clients" in capsys.readouterr().out
    assert Path("split.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["c.yaml", "split.pdf"])
def test_data_inspect_writes_its_picture_over_no_other_file(name, capsys):
    assert main(["data", "inspect", "--config", "c.yaml", "--out", name]) == 2
    assert f"{name}: the picture is a .png file\n" in capsys.readouterr().err
    assert Path("c.yaml").read_text() == CONFIG
    assert not Path("split.pdf").exists()


def test_data_inspect_needs_no_model(capsys):
    content = yaml.safe_load(CONFIG)
    Path("c.yaml").write_text(yaml.safe_dump({"data": content["data"]}))
    assert main(["data", "inspect", "--config", "c.yaml"]) == 0
    assert Path("runs/digits/partition.png").exists()
    assert not Path("partition.png").exists()


# Configurations.


@pytest.mark.long
def test_a_printed_config_says_the_same_as_its_source(capsys):
    assert pfl("fit", "--print_config") == 0
    printed = capsys.readouterr().out
    Path("printed.yaml").write_text(printed)
    assert pfl("fit", "--print_config", config="printed.yaml") == 0
    assert capsys.readouterr().out == printed
    assert "ckpt_path" not in printed

    prints = []
    for config in ("c.yaml", "printed.yaml"):
        assert pfl("fit", config=config) == 0
        prints.append(fingerprint())
        # What was stored with the run is such a source, too.
        assert pfl("fit", config=str(newest() / "config.yaml")) == 0
        prints.append(fingerprint())
    assert len(set(prints)) == 1


def test_later_files_win_and_flags_last():
    Path("later.yaml").write_text("seed: 2\nloop: {rounds: 3}\n")
    found = experiment("--config", "later.yaml", "--loop.rounds=4")
    assert (found.values.seed, found.values.loop.rounds, found.loop.seed) == (2, 4, 2)
    assert found.values.loop.progress is False


@pytest.mark.parametrize("how", ["file", "flag"])
def test_there_is_one_seed_beside_the_loop(how):
    Path("later.yaml").write_text("loop: {seed: 2}\n")
    words = ["--config", "later.yaml"] if how == "file" else ["--loop.seed=2"]
    with pytest.raises(UsageError, match=r"loop\.seed: seed is a top-level key, beside loop"):
        experiment(*words)


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
    """Digits: 10 classes, 1x8x8 pixels; 64 inputs to the first layer."""
    net = experiment().module.net
    assert net.backbone[1].in_features == 64
    assert net.num_classes == 10


def test_nested_and_further_networks_are_told_too():
    words = ["--model.net=Projected", "--model.net.net=MLP", "--model.net.width=5"]
    net = experiment(*words).module.net
    assert (net.backbone.encoder[1].in_features, net.num_classes) == (64, 10)
    module = experiment("--model=FedSimSup", "--model.supervisor=MLP").module
    assert module.supervisor.backbone[1].in_features == 64


def test_an_explicit_value_wins():
    assert experiment("--model.net.num_classes=12").module.net.head.out_features == 12


def test_a_sampler_of_ones_own_without_types_is_told_what_is_expected(capsys):
    """It need not inherit anything by Python's rules, but the parser knows it by its types."""
    body = "(self, clients, rng, round):\n        return Cohort(tuple(clients), tuple(clients))\n"
    Path("my_sampler.py").write_text(
        "from pfl.core.types import Cohort\n"
        "from pfl.federation.sampling import Sampler\n"
        f"class Bare:\n    def __call__{body}"
        f"class Heir(Sampler):\n    def __call__{body}"
    )
    for name in ("Bare", "Heir"):
        assert pfl("fit", f"--loop.sampler=my_sampler.{name}") == 2
        said = capsys.readouterr().err
        assert f"my_sampler.{name} does not implement Sampler: derive it from pfl." in said
        assert "(self, clients: Sequence[int], rng: torch.Generator, round: int) -> Cohort" in said


def test_an_argument_of_ones_own_network_without_a_type_is_told(capsys):
    Path("untyped.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Linear):\n"
        "    def __init__(self, width):\n        super().__init__(width, 10)\n"
    )
    assert pfl("fit", "--model.net=untyped.Net") == 2
    check(capsys, "--model.net: declare the type of the argument 'width' of untyped.Net\n")


def test_integers_that_a_network_does_not_take_are_told(capsys):
    np.savez("whole.npz", x=np.zeros((40, 3), int), y=np.arange(40) % 2)
    words = ["--data", "TensorData", "--data.source=whole.npz", "--data.partition=IID"]
    assert pfl("fit", *words, "--data.max_samples=null") == 2
    check(capsys, " ~ MLP ~ shape (3,) and type int64: ~ give floats")


def test_a_network_of_ones_own_needs_no_such_arguments():
    Path("my_net.py").write_text(MY_NET)
    net = experiment("--model=FedAvg", "--model.net=my_net.Plain", "--model.net.width=5").module.net
    assert net[1].out_features == 5


def test_a_number_in_the_place_of_a_section_is_refused(tmp_path, capsys):
    sections = yaml.safe_load((ROOT / "configs/quickstart.yaml").read_text())
    file = tmp_path / "n.yaml"
    file.write_text(yaml.safe_dump(sections | {"loop": 0.5}))
    assert main(["fit", "--config", str(file)]) == 2
    assert says(capsys.readouterr().err, "n.yaml:10: loop: ~ keys and values")


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
rounds: 2 | round: 2 | c.yaml:3: loop.round: FederatedLoop ~ 'round' ~ 'rounds'
loop: | lop: | c.yaml:2: lop: ~ 'lop' ~ 'loop'
hidden | hiden | c.yaml:9: model.net.hiden: MLP ~ 'hiden' ~ 'hidden'
lr: 0 | lrr: 0 | c.yaml:10: model.optimizer.lrr: SGD ~ 'lrr' ~ 'lr'
alpha | alfa | c.yaml:18: data.partition.alfa: Dirichlet ~ 'alfa' ~ 'alpha'
init_args: {fr | init_arg: {fr | c.yaml:5: loop.sampler.init_arg: UniformSampler ~ 'init_arg' ~ fraction, numpy_seed, train_all
class_path: FedPer | class_path: os.system | c.yaml:7: model: ~ os.system ~ torch.nn
class_path: FedPer | class: FedPer | c.yaml:7: model.class: ~ 'class_path'
FedPer | FedPerr | c.yaml:7: model: ~ 'FedPerr' ~ 'FedPer'
MLP | MPL | c.yaml:9: model.net: ~ 'MPL' ~ 'MLP'
MLP | torch.nn.Liner | c.yaml:9: model.net: ~ 'torch.nn.Liner' ~ 'torch.nn.Linear'
MLP | no_such.Net | c.yaml:9: model.net: ~ 'no_such.Net'
rounds: 2 | callbacks: [{class_path: EarlyStopping, init_args: {patience: 2, mod: max}}] | c.yaml:3: loop.callbacks.0.mod: EarlyStopping ~ 'mod' ~ 'mode'
rounds: 2 | rounds: two | c.yaml:3: loop.rounds: ~ int ~ two
hidden: 7 | hidden: wide | c.yaml:9: model.net.hidden: ~ int ~ wide
lr: 0.005 | lr: slow | c.yaml:10: model.optimizer.lr: ~ float ~ slow
rounds: 2 | precision: 16 | c.yaml:3: loop.precision: ~ '32-true', '64-true', 'bf16-mixed', '16-mixed' ~ 16
    num_clients: 4\n |  | c.yaml:14: data: ~ num_clients
seed: 1 | seed: 1\nseed: 2 | c.yaml:2: ~ 'seed' ~ twice
seed: 1 | seed: 1\nconfig: d.yaml | c.yaml:2: config: ~ --config
seed: 1 | seed: [ | c.yaml:3: ~ YAML ~ ',' or ']' ~ ':'
rounds: 2 | rounds: 0 | c.yaml:3: loop.rounds: rounds ~ 1 ~ 0
fraction: 0.5 | fraction: 1.5 | c.yaml:5: loop.sampler.fraction: fraction ~ (0, 1] ~ 1.5
alpha: 0.3 | alpha: 0 | c.yaml:18: data.partition.alpha: alpha ~ positive ~ 0.0
clients: 4 | clients: 0 | c.yaml:16: data.num_clients: num_clients ~ 1 ~ 0
clients: 4 | clients: 400 | c.yaml:16: data.num_clients: num_clients ~ 400 ~ 200
{class_path: MLP, init_args: {hidden: 7}} | LeNet5 | c.yaml:9: model.net: LeNet5 ~ (1, 8, 8) ~ 1x16x16
hidden: 7 | num_classes: 3 | c.yaml:7: model: ~ MLP ~ (3,) ~ 10
hidden: 7 | input_shape: [1, 9, 9] | c.yaml:7: model: ~ MLP ~ (1, 8, 8)
MLP | M\x07LP | c.yaml:9: ~ 0x07
epochs: 2 | epochs: &x [*x] | c.yaml:1: ~ levels
epochs: 2 | ? [a, b]\n    : 2 | c.yaml:11: ~ YAML ~ key
epochs: 2 | epochs: null | c.yaml:11: model.epochs: ~ int ~ null
lr: 0.005 | lr: 0.005, momentum: null | c.yaml:10: model.optimizer.momentum: ~ float ~ null
{class_path: torch.optim.SGD, init_args: {lr: 0.005}} | null | c.yaml:10: model.optimizer: ~ Optimizer ~ null
{class_path: UniformSampler, init_args: {fraction: 0.5}} | null | c.yaml:5: loop.sampler: ~ Sampler ~ null
MLP | '..' | c.yaml:9: model.net: ~ '..'
class_path: MLP | class_path: [MLP] | c.yaml:9: model.net: ~ name
init_args: {hidden: 7} | hidden: 7 | c.yaml:9: model.net.hidden: put hidden under init_args
init_args: {hidden: 7} | init_args: 7 | c.yaml:9: model.net.init_args: ~ arguments
init_args: {hidden: 7} | init_args: [7] | c.yaml:9: model.net.init_args: ~ arguments
rounds: 2 | devices: 99 | c.yaml:3: loop.devices: devices ~ one ~ 99 ~ engine
rounds: 2 | accelerator: tpux | c.yaml:3: loop.accelerator: ~ accelerator
torch.optim.SGD | torch.optim.SparseAdam | c.yaml:10: model.optimizer: ~ SparseAdam ~ sparse
torch.optim.SGD | torch.optim.LBFGS | c.yaml:10: model.optimizer: ~ LBFGS ~ several times
rounds: 2 | kept_memory: .inf | c.yaml:3: loop.kept_memory: kept_memory ~ finite ~ inf
rounds: 2 | gradient_clip_val: .nan | c.yaml:3: loop.gradient_clip_val: ~ number ~ nan
lr: 0.005 | lr: .inf | c.yaml:10: model.optimizer.lr: ~ finite ~ inf
lr: 0.005 | lr: .nan | c.yaml:10: model.optimizer.lr: ~ number ~ nan
samples: 200 | samples: 200\n    mean: .nan | c.yaml:18: data.mean: ~ number ~ nan
hidden: 7 | hidden: 0 | c.yaml:9: model.net.hidden: hidden ~ 1 ~ 0
{class_path: UniformSampler, init_args: {fraction: 0.5}} | {class_path: BernoulliSampler, init_args: {probability: 1.0e-12}} | ~ probability=1e-12 ~ minimum=2 ~ 4
{class_path: torch.optim.SGD, init_args: {lr: 0.005}} | {class_path: os.system, init_args: {command: touch ran}} | c.yaml:10: model.optimizer: ~ os.system ~ torch.nn
{class_path: UniformSampler, init_args: {fraction: 0.5}} | 0.5 | c.yaml:5: loop.sampler: expected Sampler: ~ class_path ~ got 0.5
{class_path: MLP, init_args: {hidden: 7}} | 7 | c.yaml:9: model.net: expected Module: ~ class_path ~ got 7
{class_path: MLP, init_args: {hidden: 7}} | {hidden: 7} | c.yaml:9: model.net: no class ~ class_path ~ init_args
{class_path: Dirichlet, init_args: {alpha: 0.3}} | {alpha: 0.3} | c.yaml:18: data.partition: no class ~ class_path ~ init_args
samples: 200 | samples: 200\n    metrics: torchmetrics.AUROC | c.yaml:18: data.metrics: expected list, got torchmetrics.AUROC
rounds: 2 | name: ../../x | c.yaml:3: loop.name: name ~ default_root_dir ~ '../../x'
rounds: 2 | name: /x | c.yaml:3: loop.name: name ~ default_root_dir ~ '/x'
rounds: 2 | name: "\0" | c.yaml:3: ~ '\x00'
rounds: 2 | name: "a\e[2Jb" | c.yaml:3: ~ '\x1b'
clients: 4 | clients: 10000000000000000000 | c.yaml:16: data.num_clients: ~ 2**63
  class_path: Digits\n |   class_path: ImageFolder\n | c.yaml:14: data: ~ required: root
"""  # noqa: E501

# A flag, and what is said of it.
IN_FLAGS = """
--model.init_args.net.init_args.hiden=3 | --model.init_args.net.init_args.hiden: MLP ~ 'hiden' ~ 'hidden'
--model.net=LeNet6 | --model.net: ~ 'LeNet6' ~ 'LeNet5'
--model.net=torch.nn.Liner | --model.net: ~ 'torch.nn.Liner' ~ 'torch.nn.Linear'
--model.help=FedPre | --model.help: ~ 'FedPre' ~ 'FedPer'
--model.net.hidden=x | --model.net.hidden: ~ int ~ x
--model.optimizer.lrr=1 | --model.optimizer.lrr: SGD ~ 'lrr' ~ 'lr'
--data.num_clients=x | --data.num_clients: ~ int ~ x
--data.num_clients=0 | --data.num_clients: num_clients ~ 1 ~ 0
--model.optimizer.class_path=torch.optim.LBFGS | --model.optimizer.class_path: ~ LBFGS ~ several times
--data.partition=gone.json | --data.partition: ~ gone.json ~ pfl list partitions
--data.loss={label_smoothing: 2} | --data.loss: ~ label_smoothing ~ [0, 1) ~ 2.0
--data.loss={focal: -1} | --data.loss: ~ focal ~ negative ~ -1.0
--data.loss={class_weights: [1, 2]} | --data.loss: ~ class_weights ~ 10 ~ [1.0, 2.0]
--data.metrics=[{name: x}] | metrics: {'name': 'x'} ~ metric ~ torchmetrics.Metric
--config=/ | --config /: this is a folder
--model.net={class_path: MLP, hidden: 7} | --model.net: put ~ under init_args
--ckpt_path=last | --ckpt_path last: ~ checkpoint ~ runs/fedper_digits
--ckpt_path | argument --ckpt_path: expected one argument
stray | unrecognized arguments: stray
--loop.callbacks+=EarlyStopping | ~ 'val/personal/acc' ~ test/personal/acc,
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
LOCATED = [
    ([SAMPLES], FEW, "c.yaml:3: data.samples: "),
    # The flag rather than the file.
    ([SAMPLES, "data.num_clients 1000 --data.num_clients"], FEW, "--data.num_clients: "),
    # A value in quotes rather than another that the message lists.
    (COLUMNS, "t.csv has no column 'Y', only a, hospital, y", "--target: "),
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


def test_a_long_word_of_a_message_takes_nothing_along():
    said = explain.in_plain_words(f"line 7, column 'a': {'9' * 5000} is no number")
    assert said.startswith("line 7, column 'a': 99")
    assert said.endswith("... is no number")


def test_a_class_whose_module_lacks_something(capsys):
    Path("broken_net.py").write_text("import no_such_library\nclass Net: pass\n")
    assert pfl("fit", "--model.net=broken_net.Net") == 2
    check(capsys, "--model.net: broken_net.Net ~ 'no_such_lib")


@pytest.mark.parametrize("content", ["- 1", "", "text"])
def test_a_configuration_without_keys(content, capsys):
    Path("c.yaml").write_text(content)
    assert pfl("fit") == 2
    check(capsys, "c.yaml:1: ~ keys and values")


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
    ],
    ids=["not UTF-8", "levels", "aliases", "section"],
)
def test_a_file_that_is_no_configuration(content, message, capsys):
    Path("c.yaml").write_bytes(content)
    assert pfl("fit") == 2
    check(capsys, message)


@pytest.mark.long
def test_last_is_printed_and_of_the_same_settings(capsys, run):
    file = run / "checkpoints" / "last.ckpt"
    assert pfl("fit", "--model.optimizer.lr=0.1", "--seed=7", "--loop.name=r") == 0
    capsys.readouterr()
    for words in (["fit"], ["test"], ["export", "--client=1", "out.ckpt"]):
        assert pfl(*words, "--ckpt_path=last") == 0
        assert f"reads {file}\n" in capsys.readouterr().out
    assert pfl("fit", "--model.optimizer.lr=0.1", "--seed=7", "--ckpt_path=last") == 2
    said = capsys.readouterr().err
    assert "seed 1 (now 7); model.optimizer.lr 0.005 (now 0.1)" in said


def test_a_folder_instead_of_a_configuration_is_told(capsys):
    Path("d.yaml").mkdir()
    assert pfl("fit", config="d.yaml") == 2
    check(capsys, "--config d.yaml: this is a folder\n")
    Path("run").mkdir()
    assert pfl("fit", config="run") == 2
    check(capsys, "--config run: this is a folder\n")
    Path("run/config.yaml").touch()
    assert pfl("fit", config="run") == 2
    check(capsys, "--config run: this is a folder; give run/config.yaml\n")


def test_a_folder_of_runs_instead_of_a_run_is_told(capsys, run):
    assert pfl("fit", "--ckpt_path", str(run.parent)) == 2
    check(capsys, f"{run.parent} is not a run's folder: name a run, such as {run}\n")


def test_a_missing_folder_names_the_key(capsys):
    changed = CONFIG.replace("Digits\n  init_args:", "ImageFolder\n  init_args:\n    root: gone/x")
    Path("c.yaml").write_text(changed)
    assert pfl("fit") == 2
    check(capsys, "c.yaml:16: data.root: ~ gone/x ~ root/train/")


def test_a_missing_configuration_says_what_is_required(capsys):
    assert main(["fit"]) == 2
    check(capsys, " ~ required: ")


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


def test_debug_shows_where_an_error_comes_from():
    with pytest.raises(UsageError, match="at least 1") as caught:
        pfl("fit", "--loop.rounds=0", "--debug")
    assert isinstance(caught.value.__cause__, ValueError)


# Runs.


def test_fit_prints_the_same_fingerprint_twice(capsys):
    said = []
    for _ in range(2):
        assert pfl("fit") == 0
        said.append(capsys.readouterr().out)
    summary = json.loads((newest() / "summary.json").read_text())["summary"]
    score = f"test/personal/acc {summary['test/personal/acc/last']:.4f}"
    assert said[0] == said[1] == f"{score}\nfingerprint {fingerprint()}\n"


def test_fit_ends_with_a_table(capsys):
    assert pfl("fit", "--loop.progress=true") == 0
    shown = capsys.readouterr().out
    for row in ("FedPer", "personal accuracy", "worst tenth", "bytes moved", fingerprint()):
        assert row in shown


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


def test_plots_of_a_column_that_no_run_has_are_refused(capsys, run):
    """Pictures that show no column are not drawn either."""
    assert main(["plot", str(run), "--metric", "test/personal/ac"]) == 2
    assert says(capsys.readouterr().err, "no column 'test/personal/ac' ~ 'test/personal/acc'")
    assert not (run / "plots").exists()


def test_test_prints_the_metrics_of_the_last_round(capsys, run):
    folders = list(Path("runs").glob("*/*"))
    last = (run / "metrics.csv").read_text().splitlines()
    row = dict(zip(last[0].split(","), last[-1].split(","), strict=True))
    assert pfl("test", "--ckpt_path", "last") == 0
    shown = capsys.readouterr().out
    for name in ("test/personal/acc", "test/personal/acc_worst10", "test/personal/loss"):
        assert f"{name} " in shown
        assert f"{float(row[name]):.4f}" in shown
    assert list(Path("runs").glob("*/*")) == folders


def test_an_exported_client_loads_without_naming_anything(capsys, run):
    assert pfl("export", "--ckpt_path=last", "--client=3", "out.ckpt") == 0
    assert 'FedPer.load_from_checkpoint("out.ckpt")' in capsys.readouterr().out
    content = torch.load("out.ckpt", weights_only=True)
    saved = checkpoint.load(run / "checkpoints" / "last.ckpt")
    kept = saved["kept"].get(3, saved["template"])
    module = FedPer.load_from_checkpoint("out.ckpt")
    assert module.net.head.in_features == 7
    assert module.epochs == 2
    for name, value in module.state_dict().items():
        source = kept if name.startswith("net.head") else saved["server"]["shared"]
        assert torch.equal(value, source[name])
        assert torch.equal(value, content["state_dict"][name])
    assert isinstance(module, ClientModule)


def test_an_exported_client_is_tuned_by_a_trainer_and_its_file_loads_again(run):
    """Its own file needs no network, and neither does the one that ModelCheckpoint writes."""
    assert pfl("export", "--ckpt_path=last", "--client=3", "out.ckpt") == 0
    module = FedPer.load_from_checkpoint("out.ckpt")
    loader = DataLoader(TensorDataset(torch.randn(8, 1, 8, 8), torch.arange(8)), 4)
    trainer = L.Trainer(max_epochs=1, logger=False, enable_progress_bar=False, accelerator="cpu")
    trainer.fit(module, loader)
    again = FedPer.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
    for name, value in module.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
    (first, _) = trainer.predict(again, loader)
    assert torch.allclose(first.sum(1), torch.ones(4))


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


def test_export_of_a_client_that_is_not_there(capsys, run):
    assert pfl("export", "--ckpt_path=last", "--client=4", "out.ckpt") == 2
    said = capsys.readouterr().err
    assert said == "pfl export: error: there is no client 4; the clients are 0 to 3\n"
    assert not Path("out.ckpt").exists()


@pytest.mark.parametrize("name", ["last.ckpt", "other.ckpt"])
def test_an_export_replaces_no_checkpoint(name, capsys, run):
    file = run / "checkpoints" / "last.ckpt"
    before = file.read_bytes()
    assert pfl("export", "--ckpt_path=last", "--client=1", str(file.with_name(name))) == 2
    assert f"{file.with_name(name)} is the place of a run's checkpoint" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(("kind", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_an_interruption_before_a_resume_goes_on_says_that_nothing_is_lost(
    kind, code, monkeypatch, capsys
):
    def interrupted(words):
        raise kind

    monkeypatch.setattr("pfl.cli.runs.fit_experiment", interrupted)
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


def test_a_plan_that_reads_a_value_ends_with_a_sentence(tmp_path, monkeypatch, capsys):
    (tmp_path / "curious.py").write_text(
        "from lightning_modules.fedper import FedPer\n"
        "class Curious(FedPer):\n"
        "    def plan(self):\n"
        "        return super().plan() if self.net.head.bias.sum() < 9 else ()\n"
    )
    monkeypatch.chdir(tmp_path)
    config = Path(__file__).parents[2] / "configs/quickstart.yaml"
    words = ["fit", "--config", str(config), "--model.class_path=curious.Curious"]
    assert main([*words, "--loop.engine=sequential"]) == 2
    said = capsys.readouterr().err
    assert "Curious.plan() reads the value of the entry 'net.head.bias'" in said
    assert "Traceback" not in said


def test_a_long_line_of_the_header_goes_on_below_its_text(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["fit", "--config", "c.yaml", "--loop.progress=true", "--loop.name=[a]/b"]) == 0
    lines = capsys.readouterr().err.partition("round ")[0].splitlines()
    topics = {line[:10].strip(): line[11:].strip() for line in lines}
    assert max(map(len, lines)) <= 60
    assert len(lines) > len(topics)  # a line of no topic is one that goes on
    assert {"method", "data", "folder"} <= {*topics}
    assert topics["folder"].startswith("runs/[a]/b/")
