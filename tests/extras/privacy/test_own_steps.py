"""A LightningModule with its own steps has no losses of single samples to be kept private."""

import pytest

from lightning_modules.fedavg import FedAvg
from pfl.extras.privacy.privacy import Privacy
from pfl.loop import FederatedLoop
from tests.any_module.data import data
from tests.any_module.modules import Autoencoder


def test_private_samples_are_refused_in_one_line():
    step = Privacy(clip=1.0, sigma=1.0, delta=1e-3, level="sample")
    told = "samples cannot be kept private: the loss of Autoencoder is its own training_step"
    with pytest.raises(ValueError, match=told):
        FederatedLoop(rounds=1, uplink=[step]).fit(FedAvg(Autoencoder()), data())
