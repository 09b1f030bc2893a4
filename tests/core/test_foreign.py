"""A network with a training of its own is refused by name; one that only computes is a network."""

import lightning as L
import pytest
import torch
from torch import nn

from lightning_modules import FML, FedAvg, FedPer
from lightning_modules.nets import PerClient, SplitNet
from pfl.training.declaration import check_fits
from tests.helpers.toy import blobs, mlp


class Layers(L.LightningModule):
    """Only a network: six inputs, three outputs."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 3)

    def forward(self, x):
        return self.line(x)


class Trained(Layers):
    def training_step(self, batch, batch_idx):
        return self(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class Hooked(Layers):
    def on_train_epoch_start(self):
        self.line.reset_parameters()


class Tested(Layers):
    def validation_step(self, batch, batch_idx):
        self.log("val", 0.0)


def test_a_network_alone_may_be_a_lightning_module():
    for net in (Layers(), SplitNet(Layers(), nn.Linear(3, 3)), PerClient([Layers(), Layers()])):
        check_fits(FedAvg(net), blobs((4, 4)))


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: FedPer(SplitNet(Trained(), nn.Linear(3, 3))), "LightningModule Trained"),
        (lambda: FedAvg(nn.Sequential(nn.Identity(), Trained())), "LightningModule Trained"),
        (lambda: FedAvg(PerClient([Layers(), Trained()])), "nets of PerClient"),
        (lambda: FedAvg(Hooked()), "with on_train_epoch_start of its own"),
        (lambda: FedAvg(Tested()), "with validation_step of its own"),
        (lambda: FedAvg(FedAvg(Layers())), "FedAvg is a method"),
    ],
)
def test_a_training_of_its_own_is_refused_by_name(build, told):
    with pytest.raises(TypeError, match=told) as raised:
        build()
    assert "\n" not in str(raised.value)


def test_a_network_beside_net_is_looked_at_before_a_run():
    module = FML(mlp(), private=Trained())
    with pytest.raises(TypeError, match=r"^personal of FML has the LightningModule Trained with"):
        check_fits(module, blobs((4, 4)))


def test_lightning_of_the_other_package_is_the_same():
    """Its classes have the names of Lightning's, and no base in common with them."""

    class LightningModule(nn.Module):
        def training_step(self, batch, batch_idx): ...

    class Silent(LightningModule): ...

    class Other(LightningModule):
        def training_step(self, batch, batch_idx): ...

    FedAvg(Silent())
    with pytest.raises(TypeError, match="Other is no LightningModule of the packages"):
        FedAvg(Other())
