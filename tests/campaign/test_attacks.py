"""Files of somebody who means harm: nothing that they name runs, nothing beside them is shown."""

from __future__ import annotations

import copy
import json
from argparse import ArgumentError
from contextlib import suppress

import pytest
import torch
import yaml

from lightning_modules.fedper import FedPer
from lightning_modules.nets import MLP
from tests.campaign.mutate import CANARY, places
from tests.campaign.programs import config, dumped

pytestmark = pytest.mark.campaign

SECRET = "hunter2"
TOUCH = f"touch {CANARY}"
# Each leaves the canary if what it names is called.
CALLS = [
    {"class_path": "os.system", "init_args": {"command": TOUCH}},
    {"class_path": "posix.system", "init_args": {"command": TOUCH}},
    {"class_path": "subprocess.Popen", "init_args": {"args": TOUCH, "shell": True}},
    {"class_path": "subprocess.getoutput", "dict_kwargs": {"cmd": TOUCH}},
    {"class_path": "builtins.open", "init_args": {"file": CANARY, "mode": "w"}},
    {"class_path": "pfl.callbacks.records.os.system", "init_args": {"command": TOUCH}},
    {
        "class_path": "torch.fx.graph_module.reduce_graph_module",
        "init_args": {
            "body": {"_code": "def forward(self, x):\n    return x\n"},
            "import_block": f"import os; os.system({TOUCH!r})",
        },
    },
    {
        "class_path": "torchvision.transforms.v2.Lambda",
        "init_args": {"lambd": "torch.save"},
    },
    {
        "class_path": "torchmetrics.metric.CompositionalMetric",
        "init_args": {"operator": "os.kill", "metric_a": 0.0, "metric_b": 0.0},
    },
    {"class_path": "functools.partial", "init_args": {"func": "os.system"}},
    {"class_path": "torchvision.models.resnet18", "init_args": {"weights": "DEFAULT"}},
    {"class_path": "torchvision.models.resnet18", "dict_kwargs": {"pretrained": True}},
    {"class_path": "planted.Net"},
]
FORMS = [
    lambda call: call,
    lambda call: call["class_path"],
    json.dumps,
    yaml.safe_dump,
    lambda call: json.dumps(json.dumps(call)),
    lambda call: [call],
    lambda call: json.dumps([call]),
    lambda call: {"a": call},
    lambda call: {"class_path": "torch.nn.Sequential", "dict_kwargs": {"a": call}},
    lambda call: {"class_path": "Timm", "init_args": {"name": "x", "options": {"a": call}}},
    lambda call: {"class_path": "FrozenParts", "init_args": {"net": call, "patterns": ["*"]}},
    lambda call: {
        "class_path": "torch.nn.Linear",
        "init_args": {"in_features": 2, "out_features": 2, "device": json.dumps(call)},
    },
]


@pytest.fixture(autouse=True)
def _no_download(monkeypatch):
    def download(*arguments, **options):
        raise AssertionError("downloads")

    monkeypatch.setattr("torch.hub.download_url_to_file", download)


def attacked(content, draw):
    """Return a mapping with an attack in one of its places, or in two."""
    content = copy.deepcopy(content)
    for _ in range(draw.choice((1, 1, 2))):
        holder, key = draw.choice(places(content))
        holder[key] = draw.choice(FORMS)(copy.deepcopy(draw.choice(CALLS)))
    return content


def test_a_configuration_runs_nothing_that_it_names(case, draw, server, tmp_path):
    content = attacked(config(draw.randrange(1000), rounds=2), draw)
    if draw.random() < 0.2:
        place = draw.choice([pair for pair in places(content) if pair[1] != "root"])
        place[0][place[1]] = draw.choice(("secret.env", "secret.json", "secret.yaml"))
    (tmp_path / "secret.env").write_text(f"PASSWORD={SECRET}\n")
    for name in ("secret.json", "secret.yaml"):
        (tmp_path / name).write_text(json.dumps({"password": SECRET}))
    # Packages that libraries look for, in the place of the user's own modules.
    for name in ("tabulate", "pandas", "dotenv", "colorama"):
        (tmp_path / f"{name}.py").write_text(f"open({CANARY!r}, 'w')\n")
    (tmp_path / "c.yaml").write_bytes(dumped(content))
    answer = server.run(["fit", "--config", "c.yaml"], tmp_path)
    print(answer.code, answer.err)
    answer.check()
    assert SECRET not in answer.err + answer.out
    assert "Downloading" not in answer.err
    assert not [*tmp_path.rglob(CANARY)], "what was named was called"


def test_an_export_runs_nothing_that_it_names(case, draw, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sgd = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}
    net = {
        "class_path": "lightning_modules.nets.MLP",
        "init_args": {"num_classes": 3, "input_shape": [1, 2, 2], "hidden": 5},
    }
    arguments = attacked({"net": net, "optimizer": sgd, "epochs": 1}, draw)
    content = {
        "pytorch-lightning_version": "2.5.0",
        "state_dict": FedPer(MLP(3, (1, 2, 2), hidden=5)).state_dict(),
        draw.choice(("hyper_parameters", "hparams", "module_arguments")): {
            "_instantiator": draw.choice(("lightning.pytorch.cli.instantiate_module", "os.system")),
            **arguments,
        },
    }
    torch.save(content, "e.ckpt")
    # An attack may leave something harmless, which is built, or does not fit the weights.
    with suppress(ValueError, TypeError, RuntimeError, ArgumentError, OSError, ImportError):
        FedPer.load_from_checkpoint("e.ckpt")
    assert not [*tmp_path.rglob(CANARY)], "what was named was called"
