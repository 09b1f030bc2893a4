"""Trainers in several threads leave Lightning and its loggers as they were."""

import logging
import threading
import time

import lightning as L
import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch.trainer.connectors import data_connector
from torch.utils.data import DataLoader

from pfl.training.lightning_loops import Batches, make_trainer, ran


class Module(L.LightningModule):
    def __init__(self, meet=None):
        super().__init__()
        self.w, self.meet = torch.nn.Parameter(torch.zeros(())), meet

    def training_step(self, batch, batch_idx):
        if self.meet is not None:
            self.meet.wait(30)
        return self.w * batch.sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(module):
    trainer = make_trainer(module, fabric := Fabric(accelerator="cpu", devices=1), max_epochs=1)
    loader = Batches(lambda positions: positions.float(), [[torch.arange(2)]])
    ran(trainer.fit, module, object(), fabric, loader)


def together(*modules):
    threads = [threading.Thread(target=fit, args=(module,)) for module in modules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_loaders_of_two_threads_leave_the_class_as_it_was(monkeypatch):
    """The first leaves its set-up while the second is in its own, unless that has to wait."""
    init, first, second = DataLoader.__init__, threading.Event(), threading.Event()
    given = data_connector._DataLoaderSource.dataloader

    def dataloader(source):
        if not first.is_set():
            first.set()
            second.wait(0.5)
        else:
            second.set()
            time.sleep(0.2)
        return given(source)

    monkeypatch.setattr(data_connector._DataLoaderSource, "dataloader", dataloader)
    modules = Module(), Module()
    together(*modules)
    assert DataLoader.__init__ is init
    assert all(module.w < 0 for module in modules)


def test_loops_of_two_threads_run_beside_each_other_and_restore_the_loggers():
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    meet = threading.Barrier(2)
    modules = Module(meet), Module(meet)
    together(*modules)
    assert not meet.broken
    assert logger.level == level


def test_a_hook_that_raises_leaves_the_class_as_it_was():
    class Broken(Module):
        def setup(self, stage):
            self.trainer.estimated_stepping_batches  # noqa: B018  (as schedulers ask)

        def train_dataloader(self):
            raise RuntimeError("no loader")

    init, module = DataLoader.__init__, Broken()
    trainer = make_trainer(module, fabric := Fabric(accelerator="cpu", devices=1), max_epochs=1)
    with pytest.raises(RuntimeError, match="no loader"):
        ran(trainer.fit, module, object(), fabric)
    assert DataLoader.__init__ is init
