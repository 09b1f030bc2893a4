"""Data of clients that join later are read with what the run learnt."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from datamodules import DomainFolder, ImageFolder, TensorData
from datamodules.partition.partitioner import IID
from tests.helpers.data import adopted, batch
from tests.helpers.messages import parts

# As many clients as one, whatever the data say.
ALONE = {"num_clients": 1, "partition": IID()}


def everything(data, client=0):
    train, test = (batch(data, client, name) for name in ("train", "test"))
    return torch.cat([train.x, test.x]), torch.cat([train.y, test.y])


def test_weights_of_a_balanced_loss_are_the_runs():
    options = {"loss": {"class_weights": "balanced"}, **ALONE}
    source = {"x": np.zeros((8, 2)), "y": np.array([0, 0, 0, 0, 0, 0, 1, 1])}
    run = TensorData(source, **options)
    new = TensorData({"x": np.zeros((4, 2)), "y": np.array([0, 1, 1, 1])}, **options)
    assert run.task == adopted(run, new).task


def test_arrays_may_have_fewer_classes_but_no_others():
    run = TensorData({"x": np.zeros((9, 2)), "y": np.arange(9) % 3}, 1, IID())
    fewer = {"x": np.zeros((8, 2)), "y": np.arange(8) % 2}
    assert adopted(run, TensorData(fewer, 1, IID())).num_classes == 3
    with pytest.raises(ValueError, match=parts("0, 1, 2, 3 ~ run ~ 0, 1, 2")):
        adopted(run, TensorData({"x": np.zeros((8, 2)), "y": np.arange(8) % 4}, 1, IID()))
    with pytest.raises(ValueError, match=parts("run ~ Classification ~ data ~ Regression")):
        adopted(run, TensorData({"x": np.zeros((8, 2)), "y": np.zeros(8)}, 1, IID()))


def test_folders_of_images_keep_the_runs_classes(pictures):
    run = ImageFolder(pictures({"cat": 4, "dog": 4}, "old"), **ALONE)
    later = pictures({"Bern/dog": 4, "Chur/dog": 4}, "new")
    new = adopted(run, DomainFolder(later, **{**ALONE, "num_clients": 5}))
    assert [*new.client_names] == ["Bern", "Chur"]
    assert set(everything(new, 1)[1].tolist()) == {1}
    with pytest.raises(ValueError, match=parts("'cow' ~ run ~ cat, dog")):
        adopted(run, ImageFolder(pictures({"cow": 4}, "cow"), **ALONE))
