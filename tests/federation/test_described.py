"""A run that was started from Python has a configuration, told by its loop, method and data."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
import yaml

from datamodules import IID, Digits, TensorData
from lightning_modules.fedper import FedPer
from lightning_modules.nets import MLP
from pfl.__main__ import main
from pfl.federation import identity
from pfl.federation.described import described
from pfl.loop import FederatedLoop
from pfl.results.runs import RunFolder
from pfl.results.settings import group
from tests.helpers.messages import says
from tests.helpers.toy import mlp


def sgd(lr):
    return lambda params: torch.optim.SGD(params, lr=lr)


@pytest.fixture(scope="module")
def data():
    found = Digits(2, IID(), max_samples=40, batch_size=8)
    found.setup()
    return found


def train(folder, data, seed=1, lr=0.1, loop=None, ckpt_path=None, **options):
    method = FedPer(MLP(10, (1, 8, 8), hidden=4), optimizer=sgd(lr), **options)
    given = {"rounds": 1, "seed": seed, "default_root_dir": str(folder), "name": "x"}
    return FederatedLoop(**given | {"progress": False} | (loop or {})).fit(method, data, ckpt_path)


def test_it_has_the_arguments_of_loop_method_and_data(tmp_path, data):
    run = train(tmp_path, data)
    text = (run.folder / "config.yaml").read_text()
    assert text == run.config
    found = identity.of_run(yaml.safe_load(text))
    expected = {
        **{"started": "from Python", "seed": 1, "loop.rounds": 1, "loop.sampler.fraction": 1.0},
        **{"model": "FedPer", "model.net": "MLP", "model.optimizer.lr": 0.1, "model.epochs": 1},
        **{"data": "Digits", "data.partition": "IID", "data.batch_size": 8, "data.num_clients": 2},
    }
    assert {name: found.get(name) for name in expected} == expected


def test_runs_are_grouped_and_named_as_those_of_configurations(tmp_path, data):
    runs = [train(tmp_path, data, *seed_and_lr) for seed_and_lr in ((1, 0.1), (2, 0.1), (1, 0.2))]
    settings, repeated = group([RunFolder.read(run.folder) for run in runs])
    assert repeated == []
    assert [setting.label for setting in settings] == ["FedPer, lr=0.1", "FedPer, lr=0.2"]
    assert [run.seed for run in settings[0].runs] == [1, 2]


def test_networks_are_told_apart_by_structure_not_by_weights():
    loop = FederatedLoop().options
    texts = [
        described(loop, FedPer(net), None) for net in (mlp(seed=1), mlp(seed=2), mlp(hidden=7))
    ]
    assert sorted(Counter(texts).values()) == [1, 2]


def test_values_that_no_file_can_hold_are_told_by_type_and_size():
    source = {"x": torch.zeros(4, 3), "y": [0, 1, 0, 1], "client": list("ab" * 200)}
    given = TensorData(source, 1, IID(), public=TensorData({}, 1, IID()))
    loop = {**FederatedLoop().options, "default_root_dir": Path("runs"), "callbacks": [len]}
    content = yaml.safe_load(described(loop, FedPer(mlp()), given))
    told = content["data"]["init_args"]
    assert told["source"] == {"x": "torch.float32[4, 3]", "y": [0, 1, 0, 1], "client": "400 items"}
    assert told["public"]["class_path"] == "datamodules.tensors.TensorData"
    assert content["loop"]["default_root_dir"] == "runs"
    assert content["loop"]["callbacks"] == [{"class_path": "builtins.len"}]


def test_nothing_is_built_from_it(tmp_path, data, capsys):
    folder = train(tmp_path, data).folder
    for words in (["fit", "--config", str(folder / "config.yaml")], ["reproduce", str(folder)]):
        assert main(words) == 2
        assert says(capsys.readouterr().err, "from Python")


def test_a_resume_from_python_compares_what_it_did(tmp_path, data):
    """Another loop may go on with the run, and end it by a callback of its own."""
    run = train(tmp_path, data)
    method = FedPer(MLP(10, (1, 8, 8), hidden=4), optimizer=sgd(0.2))
    loop = FederatedLoop(2, seed=1, progress=False)
    resumed = loop.fit(method, data, ckpt_path=str(run.folder))
    assert resumed.round == 2
