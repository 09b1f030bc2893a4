"""Somebody's project from its configuration: its file repeats a run, and clients have names."""

from collections.abc import Callable

import lightning as L
import pandas as pd
import torch.nn.functional as F
import yaml
from torch import nn
from torch.utils.data import DataLoader, default_collate

from pfl.__main__ import main
from tests.any_module.data import sets
from tests.any_module.modules import Own

CONFIGURATION = """
seed: 3
loop: {rounds: 2, progress: false}
model:
  class_path: FedPer
  init_args:
    personal_layers: 1
    net: {class_path: tests.any_module.test_own_project.Words, init_args: {act: gelu}}
data:
  class_path: LoaderData
  init_args:
    source: {class_path: tests.any_module.test_own_project.Hospitals}
    client: hospital
"""


class Words(Own):
    """Options that are words, functions or a class, and one that only code can name."""

    def __init__(
        self,
        act: Callable | str = "relu",
        last: Callable = F.softplus,
        scale: Callable = lambda x: 2 * x,
        norm: type[nn.Module] = nn.Identity,
    ):
        super().__init__()
        act = getattr(F, act) if isinstance(act, str) else act
        self.forms = act, last, scale
        self.body, self.head = nn.Sequential(nn.Linear(64, 5), norm()), nn.Linear(5, 3)

    def loss(self, batch):
        act, last, scale = self.forms
        logits = self.head(scale(act(self.body(batch["x"].flatten(1)))))
        return F.cross_entropy(last(logits), batch["y"])

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def test_step(self, batch, batch_idx):
        self.log("test/loss", self.loss(batch), batch_size=len(batch["y"]))


class Hospitals(L.LightningDataModule):
    """One loader, whose samples name their hospital."""

    def setup(self, stage=None):
        self.samples = [
            {"x": x, "y": y, "hospital": name}
            for name, part in zip(("Ulm", "Bonn"), sets((12, 10)), strict=True)
            for x, y in part
        ]

    def train_dataloader(self):
        return DataLoader(self.samples, 4, shuffle=True)


def by_first_letter(sample):
    return sample["hospital"][0]


def as_dictionaries(samples):
    return default_collate(samples)


def test_functions_are_values_where_nothing_is_made_of_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(CONFIGURATION)
    home = "tests.any_module.test_own_project"
    flags = [
        *("--config", "own.yaml", "--loop.rounds=1", "--loop.name=own"),
        *(f"--data.client={home}.by_first_letter", f"--data.collate_fn={home}.as_dictionaries"),
        *("--model.net.act=torch.nn.functional.silu", "--model.net.scale=torch.nn.functional.gelu"),
    ]
    assert main(["fit", *flags]) in (0, None)
    (run,) = (tmp_path / "runs" / "own").iterdir()
    stored = yaml.safe_load((run / "config.yaml").read_text())
    assert stored["data"]["init_args"]["client"] == f"{home}.by_first_letter"
    net = stored["model"]["init_args"]["net"]["init_args"]
    assert (net["act"], net["scale"]) == ("torch.nn.functional.silu", "torch.nn.functional.gelu")
    assert [*pd.read_csv(run / "clients.csv")["name"].unique()] == ["B", "U"]
    assert main(["reproduce", str(run), "--trust"]) in (0, None)
    assert "same bits" in capsys.readouterr().out
    assert main(["fit", "--config", "own.yaml", "--model.net.scale=os.getcwd"]) == 2
    assert "names os.getcwd, which belongs neither" in capsys.readouterr().err


def test_a_class_is_a_value_where_its_type_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(CONFIGURATION)
    flags = ["--config", "own.yaml", "--loop.rounds=1", "--loop.name=own"]
    assert main(["fit", *flags, "--model.net.norm=Tanh"]) in (0, None)
    (run,) = (tmp_path / "runs" / "own").iterdir()
    stored = yaml.safe_load((run / "config.yaml").read_text())
    assert stored["model"]["init_args"]["net"]["init_args"]["norm"] == "torch.nn.Tanh"
    assert main(["reproduce", str(run), "--trust"]) in (0, None)
    assert "same bits" in capsys.readouterr().out
    wrong = {
        "norm=torch.optim.SGD": "--model.net.norm: torch.optim.SGD is not a subclass of Module",
        "norm.inplace=true": "norm is a class itself, without arguments: name it alone",
    }
    for flag, message in wrong.items():
        assert main(["fit", *flags, f"--model.net.{flag}"]) == 2
        assert message in capsys.readouterr().err


def test_a_run_of_ones_own_project_is_repeated_resumed_and_exported_by_name(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(CONFIGURATION)
    assert main(["fit", "--config", "own.yaml", "--loop.name", "own"]) in (0, None)
    assert "serialize" not in capsys.readouterr().err
    (run,) = (tmp_path / "runs" / "own").iterdir()

    stored = yaml.safe_load((run / "config.yaml").read_text())
    assert stored["data"]["init_args"]["client"] == "hospital"
    net = stored["model"]["init_args"]["net"]["init_args"]
    # A lambda has no name, and nobody can have given another one here.
    assert net == {
        "act": "gelu",
        "last": "torch.nn.functional.softplus",
        "norm": "torch.nn.Identity",
    }
    assert [*pd.read_csv(run / "clients.csv")["name"].unique()] == ["Bonn", "Ulm"]

    assert main(["reproduce", str(run), "--trust"]) in (0, None)
    assert "same bits" in capsys.readouterr().out
    config = ["--config", str(run / "config.yaml"), "--ckpt_path", str(run)]
    assert main(["export", *config, "--client", "Ulm", "ulm.ckpt", "--trust"]) in (0, None)
    assert (tmp_path / "ulm.ckpt").exists()
