"""Modules as people write them, times methods whose idea permits any loss: each of them trains."""

import warnings

import pytest
import torch

from lightning_modules import (
    SCAFFOLD,
    Ditto,
    FedAvg,
    FedAvgP,
    FedBN,
    FedPer,
    FedProx,
    FedRep,
    LGFedAvg,
    Local,
)
from pfl import FederatedLoop
from pfl.__main__ import main
from pfl.core.seeds import scoped
from tests.any_module.data import data
from tests.any_module.modules import MATRIX, STEPS, Autoencoder

OPTIONS = {
    FedPer: {"personal_layers": 1},
    FedRep: {"head_epochs": 1, "personal_layers": 1},
    FedAvgP: {"ft_epochs": 1},
}
METHODS = (Local, FedAvg, FedAvgP, FedProx, SCAFFOLD, FedPer, FedBN, LGFedAvg, FedRep, Ditto)


def trained(method, module, rounds=1, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(batch norm|plain SGD)")
        with scoped(3):
            made = method(module(), **{**OPTIONS.get(method, {}), **options})
    before = {name: value.clone() for name, value in made.state_dict().items()}
    STEPS.clear()
    run = FederatedLoop(rounds=rounds, progress=False).fit(made, data(module))
    return run, before


@pytest.mark.parametrize("module", MATRIX, ids=lambda module: module.__name__)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_each_trains_by_its_own_steps_and_is_scored_by_them(method, module):
    run, before = trained(method, module)
    assert STEPS
    (main, *_) = run.scores
    assert run.history[-1][f"test/personal/{main}"] >= 0
    for client in range(3):
        moved = {**run.server.shared, **run.kept.get(client, {})}
        parameters = [name for name in moved if name.startswith(("net.", "personal."))]
        apart = [n for n in parameters if n in before and not torch.equal(before[n], moved[n])]
        assert apart


CONFIGURATION = """
seed: 3
loop: {{rounds: 1, progress: false, default_root_dir: null}}
model:
  class_path: {method}
  init_args:
    net: {{class_path: tests.any_module.modules.{module}}}
data:
  class_path: LoaderData
  init_args:
    source: {{class_path: tests.any_module.data.Sites, init_args: {{kind: {module}}}}}
    val_fraction: 0.2
"""


@pytest.mark.parametrize(
    "module",
    [Autoencoder, *(pytest.param(one, marks=pytest.mark.long) for one in MATRIX[1:])],
    ids=lambda module: module.__name__,
)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
@pytest.mark.filterwarnings("ignore:.*(batch norm|plain SGD)")
def test_each_trains_from_a_configuration(method, module, tmp_path, capsys):
    file = tmp_path / "own.yaml"
    file.write_text(CONFIGURATION.format(method=method.__name__, module=module.__name__))
    options = OPTIONS.get(method, {}).items()
    flags = [f"--model.init_args.{name}={value}" for name, value in options]
    STEPS.clear()
    assert main(["fit", "--config", str(file), *flags]) in (0, None)
    assert STEPS
    assert "fingerprint" in capsys.readouterr().out
