"""Files of a plain Trainer."""

import re
import shlex
from functools import partial
from pathlib import Path

import lightning
import pytest
import torch
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader, TensorDataset

from lightning_modules import MLP, FedPer
from lightning_modules.base import ClientModule
from pfl.core.failure import advice, error_line
from pfl.core.learner import one_optimizer
from tests.helpers.messages import parts

PAGE = Path(__file__).parents[2].joinpath("docs", "lightningmodule.md").read_text(encoding="utf-8")


def test_a_file_of_a_trainer_is_loaded_with_the_network_or_says_that_it_lacks_it(tmp_path):
    shape, file = (1, 2, 2), tmp_path / "trained.ckpt"
    data = TensorDataset(torch.randn(4, *shape), torch.tensor([0, 1, 0, 1]))
    off = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(
        max_steps=1, accelerator="cpu", enable_checkpointing=False, default_root_dir=tmp_path, **off
    )
    trained = FedPer(MLP(2, shape, hidden=3), epochs=7)
    trainer.fit(trained, DataLoader(data, 4))
    trainer.save_checkpoint(file)

    with pytest.raises(TypeError, match=r"does not say how to build its net: .*\(file, net=\.\.\."):
        FedPer.load_from_checkpoint(file)

    loaded = FedPer.load_from_checkpoint(file, net=MLP(2, shape, hidden=3))
    assert loaded.epochs == 7
    assert all(map(torch.equal, loaded.parameters(), trained.parameters()))


@pytest.mark.long
def test_a_file_of_lightnings_command_line_names_its_network(tmp_path):
    """The command of docs/lightningmodule.md, with one epoch."""
    words = shlex.split(re.search(r"^python train.py (fit .*?)^```", PAGE, re.M | re.S)[1])
    words = [word for word in words if word.strip()]
    options = ["--trainer.logger=false", "--trainer.accelerator=cpu", "--trainer.max_epochs=1"]
    scheduler = ["--optimizer=SGD", "--optimizer.lr=0.1", "--lr_scheduler=StepLR"]
    scheduler += ["--lr_scheduler.step_size=5"]
    cli = LightningCLI(
        ClientModule,
        lightning.LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        args=[*words, *options, f"--trainer.default_root_dir={tmp_path}", *scheduler],
    )
    loaded = FedPer.load_from_checkpoint(cli.trainer.checkpoint_callback.best_model_path)
    assert isinstance(loaded.net, MLP)
    assert all(map(torch.equal, loaded.parameters(), cli.model.parameters()))


def test_an_optimiser_that_asks_for_several_losses_is_refused_by_name():
    module = FedPer(MLP(2, (1, 2, 2), hidden=3), optimizer=partial(torch.optim.LBFGS, lr=0.1))
    with pytest.raises(TypeError, match=parts("LBFGS asks ~ single one ~ torch.optim.SGD")):
        one_optimizer(module, module.configure_optimizers())


@pytest.mark.parametrize(
    ("message", "how"),
    [
        ("mat1 and mat2 must have the same dtype, but got Float and BFloat16", "net.float()"),
        ("Input type (Half) and bias type (float) should be the same dtype", "net.float()"),
        ("Only Tensors created explicitly by the user support deepcopy", "prune.remove"),
        ("something else", ""),
    ],
)
def test_errors_of_torch_are_explained(message, how):
    assert how in advice(RuntimeError(message))
    assert error_line(RuntimeError(message)).startswith(f"RuntimeError: {message}")
    assert bool(advice(RuntimeError(message))) == bool(how)
