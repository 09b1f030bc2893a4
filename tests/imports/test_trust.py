"""What a configuration or an exported model names is checked before it is called."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch.loggers import Logger
from torch import nn

from lightning_modules.fedper import FedPer
from lightning_modules.nets import MLP
from pfl.core.export import DamagedError
from pfl.core.types import OptimizerFactory
from pfl.federation.sampling import Sampler
from pfl.imports.trust import Trust, TrustError, check_calls
from tests.helpers.messages import parts, says


def call(path, **arguments):
    """Return what a configuration writes for an object of this class."""
    return {"class_path": path, "init_args": arguments}


SGD = call("torch.optim.SGD", lr=0.1)


def sgd(params, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(params, lr=lr)


NORM = functools.partial(nn.LayerNorm, eps=1e-6)


class Activated(nn.Module):
    def __init__(
        self,
        first: Callable[[torch.Tensor], torch.Tensor] = torch.nn.functional.gelu,
        second: Callable[..., nn.Module] = NORM,
    ):
        super().__init__()


def unannotated(params):
    return torch.optim.SGD(params, lr=0.1)


HERE = f"{__name__}"
CALL = call("os.system", command="true")
# A function of PyTorch that is annotated to return a network, and executes source.
REDUCE = "torch.fx.graph_module.reduce_graph_module"
NETS = "lightning_modules.nets"
LAMBDA = "torchvision.transforms.v2.Lambda"
LAYER = "torch.nn.TransformerEncoderLayer"
METRIC = "torchmetrics.metric.CompositionalMetric"
RESNET = "torchvision.models.resnet18"
DATA = torch.utils.data.Dataset
FAKE = call("torchvision.datasets.FakeData", transform=call("torchvision.transforms.ToTensor"))
PARTIAL = functools.partial(nn.LayerNorm, eps=1e-6)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (SGD, OptimizerFactory),
        ({"class_path": f"{HERE}.sgd"}, OptimizerFactory),
        (sgd, OptimizerFactory),
        (call("torch.nn.Linear", in_features=3), nn.Module),
        ({"class_path": RESNET}, nn.Module | None),
        ([{"class_path": "torch.nn.ReLU"}], list[nn.Module] | None),
        ({"class_path": "pfl.federation.sampling.UniformSampler"}, Sampler),
        (["two.words"], Sequence[str]),
        ([{"class_path": "torchmetrics.AUROC"}], Sequence[str | dict[str, str]]),
        ({"some": "value"}, dict[str, str]),
        (call(LAMBDA, lambd=sgd), nn.Module),
        (sgd, Callable),
        (FAKE, DATA),
        ({"class_path": "torch.nn.Linear"}, dict[str, nn.Module]),
        ({"a": {"class_path": "torch.nn.Linear"}}, dict[str, nn.Module]),
        # A function that the class itself gives.
        (call(LAYER, activation=nn.functional.relu), nn.Module),
        (call(f"{HERE}.Activated", first=nn.functional.gelu, second=PARTIAL), nn.Module),
        ({"class_path": "lightning.pytorch.loggers.CSVLogger"}, Logger),
    ],
)
def test_what_is_listed_and_has_the_declared_type_passes(value, hint):
    check_calls(value, hint)


@pytest.mark.parametrize(
    ("value", "hint", "message"),
    [
        (CALL, OptimizerFactory, "names os.system, which belongs neither"),
        ("os.system", OptimizerFactory, "names os.system, which belongs neither"),
        (unannotated, OptimizerFactory, "unannotated is not annotated to return Optimizer"),
        (SGD, nn.Module, "torch.optim.SGD is not a subclass of Module"),
        ([SGD], Sequence[nn.Module], "0: torch.optim.SGD is not a subclass of Module"),
        ([SGD], Sequence[str], "0: torch.optim.SGD is not allowed here: the argument declares no"),
        # An argument without a type: anything would be made of it.
        (call("torch.nn.Linear", device=SGD), nn.Module, "device: torch.optim.SGD ~ declares no"),
        (
            {"class_path": "torch.nn.functional"},
            nn.Module,
            "torch.nn.functional ~ class ~ function",
        ),
        (SGD, Callable, "torch.optim.SGD ~ not allowed"),
        ({"class_path": REDUCE}, nn.Module, f"names {REDUCE}"),
        # A listed module lends no name to another.
        (call("torch.nn.modules.module.warnings.warn"), nn.Module, "names ~ warnings.warn"),
        (call("torch.nn.utils.fusion.fuse_conv_bn_eval"), nn.Module, "fuse_conv_bn_eval"),
        (call("torchvision.models.get_model"), nn.Module, "models.get_model ~ name a class"),
        ({"class_path": "torch.utils.data.Subset"}, DATA, "names torch.utils"),
        # Functions, and classes whose objects are called, in arguments for functions.
        (call(LAMBDA, lambd=os.abort), nn.Module, "lambd: names ~ .abort"),
        (call(METRIC, operator="os.kill", metric_a=1.0), nn.Module, "operator: names os.kill"),
        (yaml.unsafe_load, Callable, "yaml.unsafe_load ~ class"),
        (functools.partial(os.abort), Callable, "functools.partial ~ class"),
        (yaml.unsafe_load, Callable[[str], Any] | None, "yaml.unsafe_load ~ class"),
        ({"class_path": "subprocess.Popen"}, Callable, "names subprocess.Popen"),
        (subprocess.Popen, type, "names subprocess.Popen"),
        # Objects in mappings that hold anything.
        ({"a": CALL}, Mapping[str, Any], "a: names os.system"),
        ({"a": [{"b": CALL}]}, Mapping[str, Any] | None, "a.0.b: names os.system"),
        (call("torch.nn.Linear") | {"dict_kwargs": {"other": CALL}}, nn.Module, "other: names os."),
        # Pretrained weights.
        (call(RESNET, weights="DEFAULT"), nn.Module, "weights ~ --download_weights"),
        (
            call(RESNET) | {"dict_kwargs": {"pretrained": True}},
            nn.Module,
            "pretrained ~ --download",
        ),
    ],
)
def test_what_is_not_listed_or_has_another_type_is_refused(value, hint, message):
    with pytest.raises(TrustError) as caught:
        check_calls(value, hint)
    assert says(str(caught.value), message)


def test_a_metric_with_a_pretrained_network_is_refused_without_the_option():
    """It would be downloaded when the metric is built, without any argument."""
    path = "torchmetrics.image.LearnedPerceptualImagePatchSimilarity"
    for given in (path, {"class_path": path}):
        with pytest.raises(TrustError, match=parts("PatchSimilarity ~ --download_weights")):
            check_calls(given, nn.Module)
    check_calls({"class_path": path}, nn.Module, trust=Trust(weights=True))
    check_calls(call(RESNET, weights="DEFAULT"), nn.Module, trust=Trust(weights=True))


def test_it_is_refused_at_any_depth_and_by_its_keys():
    net = {"class_path": "torch.nn.Identity"}
    value = call("lightning_modules.FedPer", net=net, optimizer=CALL)
    with pytest.raises(TrustError) as caught:
        check_calls(value, FedPer, ("model",))
    assert caught.value.keys == ("model", "optimizer")


# Exported models.


@pytest.fixture
def export(tmp_path):
    """Write an exported FedPer with other arguments; returns the file."""

    def write(where="hyper_parameters", **changed):
        net = call(f"{NETS}.MLP", num_classes=3, input_shape=[1, 2, 2], hidden=5)
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
    command = call("os.system", command=f"touch {path}")
    with pytest.raises(TrustError, match=parts("client.ckpt: optimizer: names os.system")):
        FedPer.load_from_checkpoint(export(where, optimizer=command))
    # Not even where somebody trusts it.
    with pytest.raises(TrustError, match=parts("client.ckpt: optimizer: os.system ~ Optimizer")):
        FedPer.load_from_checkpoint(export(where, optimizer=command), trust=["os", "posix"])
    assert not path.exists()


HEAD = {"class_path": "torch.nn.Identity"}


@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump])
@pytest.mark.parametrize(
    "place",
    [
        lambda own: {"optimizer": own},
        lambda own: {"net": own},
        # At any depth: where an object, a mapping of anything, or nothing is declared.
        lambda own: {"net": call(f"{NETS}.SplitNet", backbone=own, head=HEAD)},
        lambda own: {
            "net": call(f"{NETS}.SplitNet") | {"dict_kwargs": {"backbone": own, "head": HEAD}}
        },
        lambda own: {"net": call(f"{NETS}.Timm", num_classes=3, name="x", options={"a": own})},
        lambda own: {"net": call("torch.nn.Linear", in_features=2, out_features=2, device=own)},
    ],
)
def test_text_in_an_export_runs_no_command(place, write, export, tmp_path):
    path = tmp_path / "ran"
    own = call("os.system", command=f"touch {path}")
    for given in (write(own), write([own]), own):
        with pytest.raises(TrustError):
            FedPer.load_from_checkpoint(export(**place(given)))
        assert not path.exists()


@pytest.mark.parametrize("name", ["os.system", "builtins.exec", 3, ["os.system"]])
def test_only_lightning_builds_the_objects_of_an_export(name, export):
    with pytest.raises(TrustError, match=parts(f"client.ckpt: names {name!r}")):
        FedPer.load_from_checkpoint(export(_instantiator=name))


def shared():
    """A list of 2**40 numbers in a file of a few bytes."""
    found = [1]
    for _ in range(40):
        found = [found, found]
    return found


def circular():
    found: list = []
    found.append(found)
    return found


@pytest.mark.long
@pytest.mark.parametrize("made", [shared, circular], ids=lambda f: f.__name__)
def test_an_export_whose_arguments_have_no_end_is_refused(made, export):
    file = export(net=call(f"{NETS}.MLP", num_classes=3, input_shape=made()))
    with pytest.raises(DamagedError, match=parts("client.ckpt ~ damaged ~ more than")):
        FedPer.load_from_checkpoint(file)


def test_nor_is_it_read_from_a_stream(export):
    file = export(net=call(f"{NETS}.MLP", num_classes=3, input_shape=circular()))
    with file.open("rb") as stream, pytest.raises(DamagedError, match="more than 50 levels"):
        FedPer.load_from_checkpoint(stream)


def test_an_export_downloads_no_weights(export, monkeypatch):
    def download(*arguments, **options):
        raise OSError("downloads")

    monkeypatch.setattr("torch.hub.download_url_to_file", download)
    monkeypatch.setattr("torch.hub.get_dir", lambda: "/no/such/folder")
    net = call(RESNET, weights="DEFAULT")
    with pytest.raises(TrustError, match=parts("ckpt: net.weights: ~ download_weights=True")):
        FedPer.load_from_checkpoint(export(net=net))


def test_a_trusted_module_lends_no_name_to_another(export):
    """``pfl.callbacks.records.os.system`` is found in a module of ours, and is none of ours."""
    with pytest.raises(TrustError, match=r"names (posix|nt)\.system"):
        FedPer.load_from_checkpoint(export(net={"class_path": "pfl.callbacks.records.os.system"}))


OWN = "from torch import nn\nclass Net(nn.Linear):\n    pass\n"


def test_a_module_that_is_not_trusted_is_not_even_imported(export, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    Path(tmp_path, "somebodys.py").write_text(OWN)
    for net in ({"class_path": "somebodys.Net"}, "somebodys.Net"):
        with pytest.raises(TrustError, match=parts("somebodys.Net ~ trust=['somebodys.Net']")):
            FedPer.load_from_checkpoint(export(net=net))
    # Nor in text that the parser would read as this name.
    for net in ("'somebodys.Net'", "somebodys.Net # a comment", "!!str somebodys.Net"):
        with pytest.raises(TrustError, match="got text that describes them"):
            FedPer.load_from_checkpoint(export(net=net))
    assert "somebodys" not in sys.modules
    file = export(net=call("somebodys.Net", in_features=2, out_features=3))
    # The file's weights are those of another network: it is made, and then does not fit.
    with pytest.raises(RuntimeError, match="Error"):
        FedPer.load_from_checkpoint(file, trust=["somebodys"])
    assert sys.modules.pop("somebodys")


def test_plug_ins_are_trusted(export, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    Path(tmp_path, "plugged.py").write_text(OWN)
    point = importlib.metadata.EntryPoint("net", "plugged:Net", "pfl.nets")
    monkeypatch.setattr("pfl.imports.plugins.entry_points", lambda group: [point])
    net = call("plugged.Net", in_features=2, out_features=3)
    with pytest.raises(RuntimeError, match="Error"):
        FedPer.load_from_checkpoint(export(net=net))


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
    with pytest.raises(DamagedError, match=parts("client.ckpt ~ damaged ~ checksum")):
        FedPer.load_from_checkpoint(file)
