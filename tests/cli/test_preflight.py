"""Slips are told before torch is imported, and nothing that is right is taken for one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pfl.__main__ import main
from pfl.cli import shipped
from pfl.cli.explain import UsageError
from pfl.cli.reading import read
from tests.helpers.extras import has
from tests.helpers.messages import parts

QUICK = ["fit", "--config", "quickstart"]
# The words of a command, and what is said.
OF_EXTRAS = {
    verb: ([verb, "no.yaml"], f"there is no {verb} file no.yaml")
    for verb, extra in {"table": "papers", "sweep": "sweeps"}.items()
    if has(extra)
}
if has("privacy"):
    step = "{class_path: Privacy, init_args: {sigm: 1}}"
    OF_EXTRAS["a key in a flag's text"] = (
        [*QUICK, f"--loop.uplink=[{step}]"],
        "--loop.uplink: loop.uplink.0.sigm: ~ 'sigma'",
    )
if has("bench"):
    OF_EXTRAS["a method of a benchmark"] = (["bench", "digits", "--methods", "FedPre"], "'FedPer'")
    OF_EXTRAS["its flags"] = (["bench", "digits", "--loop.round=3"], "--loop.round: ~ 'rounds'")
if has("tables"):
    OF_EXTRAS["a table"] = (
        [*QUICK, "--data", "my.csv"],
        "--data: name the class that reads it: --data TabularData --data.path my.csv",
    )
SLIPS = {
    "method": ([*QUICK, "--model", "FedPre"], "'FedPre' ~ 'FedPer'"),
    "data": ([*QUICK, "--data", "Digit"], "'Digit' ~ 'Digits'"),
    "key of the loop": ([*QUICK, "--loop.round=3"], "'rounds'"),
    "key of a method": ([*QUICK, "--model.epoch", "3"], "FedPer ~ 'epoch'"),
    "key of a network": ([*QUICK, "--model.net.hiden=3"], "MLP ~ 'hiden'"),
    "key of a partition": ([*QUICK, "--data.partition.alfa=1"], "'alpha'"),
    **{
        f"the base of {flag}": ([*QUICK, f"--{flag}={word}"], f"{base} is a base class: name one")
        for flag, base, word in (
            ("model", "ClientModule", "ClientModule"),
            ("data", "FederatedDataModule", "FederatedDataModule"),
            ("data.partition", "Partitioner", "Partitioner"),
            ("loop.engine", "Engine", "pfl.engines.base.Engine"),
            ("loop.sampler", "Sampler", "Sampler"),
            ("loop.callbacks", "Callback", "[{class_path: Callback}]"),
            ("loop.evaluations", "Evaluation", "[{class_path: Evaluation}]"),
            ("loop.uplink", "UplinkStep", "[{class_path: UplinkStep}]"),
        )
    },
    "network": ([*QUICK, "--model.net=MPL"], "'MPL' ~ 'MLP'"),
    "partition": ([*QUICK, "--data.partition=Dirichlt"], "'Dirichlet'"),
    "optimiser": ([*QUICK, "--model.optimizer", "Adm"], "'Adam'"),
    "engine": ([*QUICK, "--loop.engine=vectorized"], "'vectorized' ~ 'vectorised'"),
    "one of some words": (
        [*QUICK, "--loop.on_nonfinite=stopp"],
        "--loop.on_nonfinite: ~ 'stop', 'skip' ~ stopp",
    ),
    "a word for a number": ([*QUICK, "--model.epochs=two"], "epochs: ~ int ~ two"),
    "sampler": ([*QUICK, "--loop.sampler=Uniform"], "'UniformSampler'"),
    "section": ([*QUICK, "--lop.rounds=3"], "'lop' ~ 'loop'"),
    "name of a file": (["fit", "--config", "quickstrat"], "'quickstart'"),
    "file": (["fit", "--config", "no.yaml"], "--config no.yaml: there is no such file"),
    "checkpoint": ([*QUICK, "--ckpt_path", "no"], "there is no checkpoint at no"),
    "what a verb needs": (["test", *QUICK[1:]], "are required: ckpt_path"),
    "nothing": (["fit"], "the following arguments are required: data, model"),
    "method of a check": (["check", "FedPre"], "'FedPer'"),
    "data to inspect": (["data", "inspect", "--data", "Digit"], "'Digits'"),
    **OF_EXTRAS,
    "file as a word": (["fit", "mine.yaml"], "data, model; add --config mine.yaml\n"),
    "key of a part without the part": (
        [*QUICK, "--rounds=3"],
        "'rounds'; did you mean loop.rounds?",
    ),
    "key of another part": ([*QUICK, "--loop.epochs=3"], "'epochs'; did you mean model.epochs?"),
    "key that the file sets": ([*QUICK, "--model.lr=1"], "'lr'; did you mean model.optimizer.lr?"),
    "a configuration without its name": (["fit", "--config"], "--config: expected a YAML file"),
    "option that no inspection reads": (
        ["data", "inspect", *QUICK[1:], "--loop.rounds=3"],
        "--loop.rounds: pfl data inspect ignores this option",
    ),
    "a flag without its value": ([*QUICK, "--data.num_clients"], "--data.num_clients: ~ a value"),
    "a number of a method": ([*QUICK, "--model.epochs=half"], "--model.epochs: ~ float ~ half"),
    "a number of an optimiser": ([*QUICK, "--model.optimizer.lr=low"], "lr: ~ float ~ low"),
    "a list": ([*QUICK, "--loop.callbacks=EarlyStopping"], "callbacks: ~ list ~ EarlyStopping"),
    "a class of another kind": (
        [*QUICK, "--data.partition=FedPer"],
        "partition: FedPer ~ Partitioner",
    ),
    "an argument that is needed": (
        [*QUICK, "--model=FedSimSup"],
        "--model: ~ required: supervisor",
    ),
    "data that are needed": ([*QUICK, "--model=FedMD"], "--model: FedMD needs ~ set data.public"),
    "a class of one's own module": (["check", "own.Nothing"], "'own.Nothing' ~ 'own.Something'"),
    "a split": (["predict", *QUICK[1:], "--ckpt_path=last", "--split=tets"], "--split: ~ 'test'"),
    "runs": (["compare", "no"], "there is no folder no"),
    "a metric without its path": (
        [*QUICK, "--data.metrics+=auroc"],
        "--data.metrics+: 'auroc' ~ did you mean 'torchmetrics.AUROC'",
    ),
    "a metric in a list": (
        [*QUICK, "--data.metrics=[torchmetrics.Acuracy]"],
        "--data.metrics: ~ did you mean 'torchmetrics.Accuracy'",
    ),
    "a metric with options": (
        [*QUICK, "--data.metrics=[{metric: torchmetrics.No, top_k: 2}]"],
        "--data.metrics: 'torchmetrics.No' is not a metric",
    ),
    "options without a metric": ([*QUICK, "--data.metrics=[{name: x}]"], "no key metric"),
    "accelerator": ([*QUICK, "--loop.accelerator=gppu"], "'gppu'; did you mean 'gpu'"),
    "more clients than samples": (
        [*QUICK, "--data.num_clients=5000"],
        "--data.num_clients: ~ 5000, but there are only 1797 samples",
    ),
    "several devices": ([*QUICK, "--loop.devices=3"], "--loop.devices: ~ one device, got 3"),
    "no device": ([*QUICK, "--loop.devices=0"], "--loop.devices: ~ one device, got 0"),
    "a folder below a file": (
        [*QUICK, "--loop.default_root_dir=own.py/runs"],
        "--loop.default_root_dir: expected a folder, but own.py is a file",
    ),
    "words of a list": (
        [*QUICK, "--loop.evaluate_at=never"],
        "--loop.evaluate_at: expected list of 'post_broadcast', 'post_local', got never",
    ),
    "a newest run of none": (
        [*QUICK, "--ckpt_path=last", "--loop.default_root_dir=out", "--loop.name=null"],
        "there is no checkpoint below out/fedper_digits",
    ),
    "a newest run of a name": (
        ["test", *QUICK[1:], "--ckpt_path=last", "--loop.name=mine"],
        "there is no checkpoint below runs/mine",
    ),
    "file of a partition": (
        [*QUICK, "--data.partition=no.json"],
        "--data.partition: ~ no.json; ~ pfl list partitions",
    ),
    "a class beside the name of a file": (
        [*QUICK, "--data.partition=Dirichlt", "--loop.name=no.json"],
        "'Dirichlt' ~ 'Dirichlet'",
    ),
    "a network of torchvision": (
        [*QUICK, "--model.net=torchvision.models.ResNett"],
        "there is no class 'torchvision.models.ResNett'; did you mean 'torchvision.models.ResNet'",
    ),
    "a function of torchvision": (
        [*QUICK, "--model.net=torchvision.models.resnet19"],
        "'torchvision.models.resnet19'; did you mean 'torchvision.models.resnet18'",
    ),
    "an argument of a function of torchvision": (
        [*QUICK, "--model.net=torchvision.models.resnet18", "--model.net.progres=false"],
        "resnet18 has no argument 'progres'; did you mean 'progress'",
    ),
    "one that is passed on": (
        [*QUICK, "--model.net=torchvision.models.vit_b_16", "--model.net.image_sise=32"],
        "vit_b_16 has no argument 'image_sise'; did you mean 'image_size'",
    ),
    "a class of another package": (
        [*QUICK, "--model.net=jsonargparse.ArgumentParser"],
        "jsonargparse.ArgumentParser is not a subclass of Module",
    ),
    "no class of another package": (
        [*QUICK, "--data=sklearn.linear_model.LogisticRegresion"],
        "there is no class 'sklearn.linear_model.LogisticRegresion'",
    ),
    "an option of another task's loss": (
        [*QUICK, "--data.loss.huber=1"],
        "--data.loss.huber: Classification has no option 'huber', only class_weights",
    ),
    "a value of the loss": (
        [*QUICK, "--data.loss.focal=-1"],
        "--data.loss.focal: focal must not be negative",
    ),
    "a score without its data": (
        [*QUICK, "--loop.callbacks+=EarlyStopping"],
        "--loop.callbacks+: ~ 'val/personal/acc', and there are no validation data",
    ),
    "a file of a picture": (
        ["data", "inspect", *QUICK[1:], "--out=a.tiff"],
        "--out: a.tiff: the picture is a .png file",
    ),
}


OWN = """
from lightning_modules.base import ClientModule

class Something(ClientModule):
    pass
"""


@pytest.fixture(autouse=True)
def _own_module(own_folder):
    (own_folder / "own.py").write_text(OWN)
    # What it has, only an import tells.
    (own_folder / "mine.py").write_text("from elsewhere import Data, Mine\n")
    (own_folder / "derived.py").write_text(
        "from datamodules import Digits\nclass Data(Digits): ...\n"
    )


def test_a_module_in_common_makes_no_two_names_alike(own_folder, capsys):
    (own_folder / "methods_of_my_project.py").write_text(OWN)
    assert main([*QUICK, "--model=methods_of_my_project.Other"]) == 2
    assert capsys.readouterr().err.endswith("no class 'methods_of_my_project.Other'\n")


@pytest.mark.parametrize("case", SLIPS)
def test_a_slip_is_told_in_a_sentence(case, capsys):
    words, message = SLIPS[case]
    assert main(words) == 2
    assert re.search(parts(message), capsys.readouterr().err)


def test_no_slip_waits_for_torch_or_lightning():
    """All in one process, so that the test is fast: none of them may import these."""
    calls = "\n".join(f"assert main({words!r}) == 2" for words, _ in SLIPS.values())
    code = f"import sys\nfrom pfl.__main__ import main\n{calls}\n"
    code += "print({'torch', 'lightning', 'matplotlib', 'scipy', 'optuna'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.long
def test_no_shipped_configuration_is_taken_for_a_slip():
    for name in shipped.names():
        if not name.startswith(("tables/", "overlays/", "bench/")):
            read("fit", ["--config", "quickstart", "--config", name])


# The rest of a command line after the quickstart's configuration, and files beside it.
RIGHT = {
    "another method": ["--model", "FedAvg", "--model.epochs", "3"],
    "by its path": ["--model", "lightning_modules.fedprox.FedProx", "--model.mu=1"],
    "by a path that the parser judges": [
        "--model",
        "lightning_modules.methods.fedprox.FedProx",
        "--model.mu=1",
    ],
    "one's own": ["--model", "mine.Mine", "--model.rank=3", "--data", "Ours"],
    "a class of torch": ["--model.optimizer", "torch.optim.Adam", "--model.optimizer.eps=1"],
    "short name of a class of torch": ["--model.optimizer", "Adam", "--model.optimizer.eps=1"],
    "help of a class": ["--model.help", "FedAvg"],
    "help": ["--help"],
    "print": ["--print_config=skip_null"],
    "the full keys": ["--model.init_args.net.init_args.hidden=3"],
    "a list": ["--loop.callbacks+=EarlyStopping", "--loop.callbacks.patience=3"],
    "null": ["--ckpt_path", "null", "--loop.workers=null", "--loop.cost=null"],
    "no model": ["--model=null"],
    "a checkpoint": ["--ckpt_path", "after.yaml"],
    "one of some words": ["--loop.on_nonfinite=skip", "--loop.precision=bf16-mixed"],
    "an engine": ["--loop.engine=vectorised", "--model.epochs=2"],
    "an engine's class": ["--loop.engine=VectorisedEngine", "--loop.engine.clients=4"],
    "a network of torch": ["--model.net=Sequential"],
    "file of a partition": ["--data.partition", "partition"],
    "metrics": ["--data.metrics=[torchmetrics.AUROC, {metric: torchmetrics.F1Score, name: f}]"],
    "a builder of torchvision": ["--model.net=torchvision.models.resnet18"],
    "what a builder passes on": [
        "--model.net=torchvision.models.resnet18",
        "--model.net.width_per_group=32",
    ],
    "what a builder takes out": [
        "--model.net=torchvision.models.vit_b_16",
        "--model.net.image_size=32",
    ],
    "a class that is derived from another package's": ["--data", "derived.Data"],
    "a class beside a path": ["--data.partition=Dirichlet", "--data.partition.alpha=0.5"],
    "what only the parser knows": ["--loop.progress=yes", "--loop.devices=auto"],
    "class after arguments": ["--config", "after.yaml"],
}


@pytest.mark.parametrize("case", RIGHT)
def test_what_is_right_is_taken_for_no_slip(case):
    Path("partition").touch()
    Path("after.yaml").write_text("model: {init_args: {mu: 1}, class_path: FedProx}\n")
    read("fit", ["--config", "quickstart", *RIGHT[case]])


@pytest.mark.parametrize("part", ["", "checkpoints/last.ckpt"])
def test_a_run_without_its_configuration_is_told_where_that_is(part, tmp_path):
    Path(tmp_path, "checkpoints").mkdir()
    for name in ("config.yaml", "checkpoints/last.ckpt"):
        Path(tmp_path, name).touch()
    with pytest.raises(UsageError, match=f"data, model; add --config {tmp_path}/config.yaml$"):
        read("test", ["--ckpt_path", str(tmp_path / part)])


def test_a_slip_beside_classes_of_ones_own_is_left_to_the_parser():
    """A module of one's own may bring further classes, whose names need no module."""
    read("fit", ["--config", "quickstart", "--data", "mine.Data", "--model", "FedPre"])
    with pytest.raises(UsageError, match="FedPre"):
        read("fit", ["--config", "quickstart", "--model", "FedPre"])


def test_the_help_of_a_class_asks_for_no_other_argument(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["fit", "--model.help", "FedPer"])
    assert "--model.ARGUMENT VALUE" in capsys.readouterr().out
