"""What somebody else's configuration must not do: run commands, download, read other files."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from pfl.__main__ import main
from pfl.cli.config import Experiment
from pfl.cli.explain import UsageError

ROOT = Path(__file__).parents[2]
RAN = "ran.txt"
CALL = {"class_path": "os.system", "init_args": {"command": f"touch {RAN}"}}
# A function of PyTorch that is annotated to return a network, and executes source.
SOURCE = {
    "class_path": "torch.fx.graph_module.reduce_graph_module",
    "init_args": {
        "body": {"_code": "def forward(self, x):\n    return x\n"},
        "import_block": f"import os; os.system('touch {RAN}')",
    },
}
LAMBDA = "torchvision.transforms.v2.Lambda"
COMPOSED = "torchmetrics.metric.CompositionalMetric"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # An empty entry is the working folder.
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])


def refusal(net="MLP", **data):
    """Parse and build a configuration that must be refused; return what is said."""
    content = {
        "loop": {"default_root_dir": None, "progress": False},
        "model": {"class_path": "FedAvg", "init_args": {"net": net}},
        "data": {
            "class_path": "Synthetic",
            "init_args": {"num_clients": 2, "partition": "IID", "samples": 40, **data},
        },
    }
    Path("c.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(UsageError) as caught:
        _ = Experiment.parse("fit", ["--config", "c.yaml"]).module
    return str(caught.value)


@pytest.mark.parametrize(
    ("net", "said"),
    [
        (SOURCE, f"model.net: names {SOURCE['class_path']}, which belongs neither"),
        (CALL, "model.net: names os.system"),
        ("os.system", "model.net: "),
        ({"class_path": LAMBDA, "init_args": {"lambd": "os.abort"}}, "lambd: names os.abort"),
        (
            {
                "class_path": COMPOSED,
                "init_args": {"operator": "os.kill", "metric_a": 1.0, "metric_b": 2.0},
            },
            "operator: names os.kill",
        ),
        (
            {"class_path": "Timm", "init_args": {"name": "x", "options": {"a": CALL}}},
            "model.net.options.a: names os.system",
        ),
        (
            {
                "class_path": "torch.nn.Linear",
                "init_args": {"in_features": 2, "out_features": 2, "device": str(CALL)},
            },
            "c.yaml:16: model.net.device: names os.system",
        ),
    ],
    ids=lambda value: value.get("class_path") if isinstance(value, dict) else None,
)
def test_what_a_configuration_names_is_checked_before_it_runs(net, said):
    assert said in refusal(net)
    assert not Path(RAN).exists()


@pytest.mark.parametrize("arguments", [{"init_args": {"weights": "IMAGENET1K_V1"}}, {}])
def test_pretrained_weights_are_downloaded_only_if_an_option_says_so(arguments, monkeypatch):
    def download(*arguments, **options):
        raise OSError("downloads")

    monkeypatch.setattr("torch.hub.download_url_to_file", download)
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(Path.cwd()))
    # The second one has pretrained weights by default.
    name = "resnet18" if arguments else "segmentation.fcn_resnet50"
    net = {"class_path": f"torchvision.models.{name}", **arguments}
    assert "may be downloaded only with --download_weights" in refusal(net)
    words = ["--config", "c.yaml", "--download_weights"]
    if arguments:
        experiment = Experiment.parse("fit", words)
        assert "download_weights" not in experiment.text
        with pytest.raises(UsageError, match="downloads"):
            _ = experiment.module


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("download_weights", "c.yaml:5: download_weights: a file cannot allow downloads"),
        ("print_config", "c.yaml:5: print_config: give the flag"),
        ("config", "c.yaml:5: config: give further files with --config"),
    ],
)
def test_a_file_gives_no_flags_of_the_command(key, said):
    Path("c.yaml").write_text(f"loop:\n  default_root_dir: null\n  rounds: 1\n\n{key}: true\n")
    with pytest.raises(UsageError) as caught:
        Experiment.parse("fit", ["--config", "c.yaml"])
    assert said in str(caught.value)


# Nine to the power of nine values, and a depth at which Python's parser gives up.
MANY = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in pairwise("abcdefghi")
)
DEEP = "[" * 20_000 + "]" * 20_000


@pytest.mark.parametrize("text", [MANY, DEEP, "&a [*a]"], ids=["many", "deep", "circle"])
@pytest.mark.parametrize("key", ["partition", "metrics"])
def test_a_text_that_expands_without_end_is_refused_in_one_line(text, key):
    said = refusal({"class_path": "lightning_modules.MLP"}, **{key: text})
    assert "c.yaml" in said or key in said
    assert "recursion" not in said
    assert len(said) < 50_000


@pytest.mark.parametrize("key", ["--data.partition", "--model", "--data", "--model.net"])
def test_a_message_does_not_show_the_content_of_a_file(key):
    Path("secret.env").write_text("PASSWORD=hunter2\n")
    Path("secret.json").write_text('{"password": "hunter2"}')
    refusal("no_such.Net")
    for file in ("secret.env", "secret.json"):
        words = ["--config", "c.yaml", "--model.net=MLP", f"{key}={file}"]
        with pytest.raises(UsageError) as caught:
            _ = Experiment.parse("fit", words).module
        assert "hunter2" not in str(caught.value)


HELPER = f"from pathlib import Path\nPath({RAN!r}).touch()\n"
NET = """
import helpers
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes: int):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
"""


def test_a_module_of_the_working_folder_is_imported_only_if_it_is_named():
    """Libraries look for optional packages, such as PyTorch for ``tabulate``."""
    Path("optional_package.py").write_text(HELPER)
    Path("beside_net.py").write_text(NET)
    Path("helpers.py").write_text("")
    base = ["fit", "--data=Digits", "--data.num_clients=2", "--data.partition=IID"]
    words = [*base, "--data.max_samples=60", "--loop.rounds=1", "--loop.progress=false"]
    try:
        for net in ("MLP", "beside_net.Net"):
            assert main([*words, "--model=FedAvg", f"--model.net={net}"]) == 0
            with pytest.raises(ImportError):
                importlib.import_module("optional_package")
        assert {"beside_net", "helpers"} <= sys.modules.keys()
    finally:
        for name in ("beside_net", "helpers"):
            sys.modules.pop(name, None)
    assert not Path(RAN).exists()
    assert str(Path.cwd()) not in sys.path


@pytest.mark.parametrize("folder", [".", ROOT], ids=["elsewhere", "checkout"])
def test_python_m_leaves_the_working_folder_on_the_path_only_in_a_checkout(folder, monkeypatch):
    """Where the project itself may be found through it."""
    monkeypatch.chdir(folder)
    others = [*sys.path]
    monkeypatch.setattr(sys, "path", [str(Path.cwd()), *others])
    monkeypatch.setattr(sys, "argv", ["pfl", "--version"])
    monkeypatch.delitem(sys.modules, "pfl.__main__")
    with pytest.raises(SystemExit):
        runpy.run_module("pfl", run_name="__main__")
    assert sys.path == ([str(ROOT)] if folder == ROOT else []) + others


def test_a_class_that_does_not_exist_is_told_where_any_value_may_stand(capsys):
    """torch.nn.Linear takes anything as its device, so that the parser looks for no class."""
    net = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 2}}
    net["init_args"]["device"] = {"class_path": "planted.Net"}
    assert main(["fit", "--config", "quickstart", "--model.net", json.dumps(net)]) == 2
    said = capsys.readouterr().err
    assert "--model.net: model.net.device: there is no class 'planted.Net'" in said


def test_a_message_repeats_no_escape_sequences_and_no_long_text(capsys):
    for word in ("a\x1b[2J\x9b\u202e", "a" * 10_000, "a b " * 5_000):
        assert main(["fit", f"--model={word}"]) == 2
        assert main([word]) == 2
        assert main(["report", word]) == 2
        said = capsys.readouterr().err
        assert len(said) < 3 * 3_200
        assert said.replace("\n", "").isprintable()


@pytest.mark.parametrize("net", ["antigravity.x", {"class_path": "antigravity.x"}])
def test_a_module_of_python_is_not_even_imported(net, monkeypatch):
    monkeypatch.delitem(sys.modules, "antigravity", raising=False)
    monkeypatch.setattr("webbrowser.open", lambda *_: pytest.fail("it was imported"))
    assert "names antigravity.x" in refusal(net)
    assert "antigravity" not in sys.modules
