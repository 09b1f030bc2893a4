"""What a configuration or an exported model names is checked before it is called."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from lightning_modules.fedper import FedPer
from lightning_modules.nets import MLP
from pfl.core.tensor_file import DamagedError
from pfl.core.trust import TrustError, check_calls
from pfl.core.types import OptimizerFactory
from pfl.federation.sampling import Sampler

SGD = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}


def sgd(params, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(params, lr=lr)


def unannotated(params):
    return torch.optim.SGD(params, lr=0.1)


HERE = f"{__name__}"


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (SGD, OptimizerFactory),
        ({"class_path": f"{HERE}.sgd"}, OptimizerFactory),
        (sgd, OptimizerFactory),
        ({"class_path": "torch.nn.Linear", "init_args": {"in_features": 3}}, nn.Module),
        ({"class_path": "torchvision.models.resnet18"}, nn.Module | None),
        ([{"class_path": "torch.nn.ReLU"}], list[nn.Module] | None),
        ({"class_path": "pfl.federation.sampling.UniformSampler"}, Sampler),
        ("a.word", str),
        (["two.words"], Sequence[str]),
        ([{"class_path": "torchmetrics.AUROC"}], Sequence[str | dict[str, str]]),
        ({"some": "value"}, dict[str, str]),
    ],
)
def test_what_has_the_declared_type_passes(value, hint):
    check_calls(value, hint)


@pytest.mark.parametrize(
    ("value", "hint", "message"),
    [
        (
            {"class_path": "os.system", "init_args": {"command": "true"}},
            OptimizerFactory,
            "os.system is not annotated to return Optimizer",
        ),
        ("os.system", OptimizerFactory, "os.system is not annotated to return Optimizer"),
        (unannotated, OptimizerFactory, "unannotated is not annotated to return Optimizer"),
        (
            {"class_path": "subprocess.Popen"},
            OptimizerFactory,
            "subprocess.Popen is not a subclass of Optimizer",
        ),
        (SGD, nn.Module, "torch.optim.SGD is not a subclass of Module"),
        ([SGD], Sequence[nn.Module], "0: torch.optim.SGD is not a subclass of Module"),
        ([SGD], Sequence[str], "0: torch.optim.SGD is not allowed here: the argument declares no"),
        ([SGD], list[nn.Module], "0: torch.optim.SGD is not a subclass of Module"),
        (
            # An argument without a type: anything would be made of it.
            {"class_path": "torch.nn.Linear", "init_args": {"device": SGD}},
            nn.Module,
            "device: torch.optim.SGD is not allowed here: the argument declares no class",
        ),
        ({"class_path": "torch.pi"}, nn.Module, "torch.pi is neither a class nor a function"),
        (SGD, Callable, "torch.optim.SGD is not allowed here"),
    ],
)
def test_what_has_another_type_is_refused(value, hint, message):
    with pytest.raises(TrustError) as caught:
        check_calls(value, hint)
    assert message in str(caught.value)


def test_it_is_refused_at_any_depth_and_by_its_keys():
    net = {"class_path": "torch.nn.Identity"}
    optimizer = {"class_path": "os.system", "init_args": {"command": "true"}}
    value = {
        "class_path": "lightning_modules.FedPer",
        "init_args": {"net": net, "optimizer": optimizer},
    }
    with pytest.raises(TrustError) as caught:
        check_calls(value, FedPer, ("model",))
    assert caught.value.keys == ("model", "optimizer")


# Exported models.


@pytest.fixture
def export(tmp_path):
    """Write an exported FedPer with other arguments; returns the file."""

    def write(where="hyper_parameters", **changed):
        net = {
            "class_path": "lightning_modules.nets.MLP",
            "init_args": {"num_classes": 3, "input_shape": [1, 2, 2], "hidden": 5},
        }
        arguments = {"net": net, "optimizer": SGD, **changed}
        module = FedPer(MLP(3, (1, 2, 2), hidden=5))
        content = {
            "pytorch-lightning_version": "2.5.0",
            "state_dict": module.state_dict(),
            where: {"_instantiator": "lightning.pytorch.cli.instantiate_module", **arguments},
        }
        torch.save(content, tmp_path / "client.ckpt")
        return tmp_path / "client.ckpt"

    return write


def test_an_exported_model_is_loaded(export):
    assert FedPer.load_from_checkpoint(export()).net.head.in_features == 5
    with export().open("rb") as file:
        assert FedPer.load_from_checkpoint(file).net.head.in_features == 5


@pytest.mark.parametrize("where", ["hyper_parameters", "hparams", "module_arguments"])
def test_an_exported_model_runs_no_command(where, export, tmp_path):
    path = tmp_path / "ran"
    command = {"class_path": "os.system", "init_args": {"command": f"touch {path}"}}
    with pytest.raises(TrustError, match=r"names os\.system, which belongs neither"):
        FedPer.load_from_checkpoint(export(where, optimizer=command))
    # Not even where somebody trusts it.
    with pytest.raises(TrustError, match="is not annotated to return Optimizer"):
        FedPer.load_from_checkpoint(export(where, optimizer=command), trust=["os", "posix"])
    assert not path.exists()


def test_a_trusted_module_lends_no_name_to_another(export):
    """``pfl.callbacks.records.os.system`` is found in a module of ours, and is none of ours."""
    with pytest.raises(TrustError, match=r"names (posix|nt)\.system"):
        FedPer.load_from_checkpoint(export(net={"class_path": "pfl.callbacks.records.os.system"}))


OWN = "from torch import nn\nclass Net(nn.Linear):\n    pass\n"


def test_a_module_that_is_not_trusted_is_not_even_imported(export, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    Path(tmp_path, "somebodys.py").write_text(OWN)
    arguments = {"in_features": 2, "out_features": 3}
    for net in ({"class_path": "somebodys.Net"}, "somebodys.Net"):
        with pytest.raises(TrustError, match=r"pass trust=\['somebodys.Net'\]"):
            FedPer.load_from_checkpoint(export(net=net))
    assert "somebodys" not in sys.modules
    file = export(net={"class_path": "somebodys.Net", "init_args": arguments})
    # The file's weights are those of another network: it is made, and then does not fit.
    with pytest.raises(RuntimeError, match="Error"):
        FedPer.load_from_checkpoint(file, trust=["somebodys"])
    assert "somebodys" in sys.modules


def test_plug_ins_are_trusted(export, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    Path(tmp_path, "plugged.py").write_text(OWN)
    point = importlib.metadata.EntryPoint("net", "plugged:Net", "pfl.nets")
    monkeypatch.setattr("pfl.core.plugins.entry_points", lambda group: [point])
    arguments = {"in_features": 2, "out_features": 3}
    with pytest.raises(RuntimeError, match="Error"):
        FedPer.load_from_checkpoint(
            export(net={"class_path": "plugged.Net", "init_args": arguments})
        )


def test_an_argument_that_the_caller_gives_is_not_the_file_s(export):
    net = {"class_path": "somebodys.Net"}
    module = FedPer.load_from_checkpoint(export(net=net), net=MLP(3, (1, 2, 2), hidden=5))
    assert module.net.head.in_features == 5


def test_a_damaged_export_is_refused(export):
    file = export()
    content = bytearray(file.read_bytes())
    weights = FedPer.load_from_checkpoint(file).net.head.weight.detach().numpy().tobytes()
    content[content.index(weights)] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedError, match="is damaged"):
        FedPer.load_from_checkpoint(file)
