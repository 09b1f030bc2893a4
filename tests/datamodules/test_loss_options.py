"""Losses from YAML: their weights, and options that change the outputs."""

from __future__ import annotations

import pytest
import torch

from datamodules import IID, Digits, TensorData
from pfl.__main__ import main
from pfl.core.task import Binary, Classification, Regression
from tests.helpers.messages import parts


@pytest.mark.parametrize(
    ("y", "weights"),
    [
        # Three of class 0 and one of class 1 are trained on: 4 / (2 * 3) and 4 / (2 * 1).
        ([0, 0, 0, 1, 1, 1], (2 / 3, 2.0)),
        # Nobody trains on class 2.
        ([0, 1, 1, 1, 2], (2.0, 2 / 3, 0.0)),
    ],
)
def test_balanced_weights_count_the_training_samples_of_all_clients(y, weights):
    source = {"x": torch.zeros(len(y), 1), "y": y, "num_train": 4}
    options = {"test_protocol": "global", "loss": {"class_weights": "balanced"}}
    assert TensorData(source, 2, IID(), **options).task == Classification(class_weights=weights)


def test_weights_are_as_many_as_classes():
    with pytest.raises(ValueError, match=parts("class_weights ~ balanced ~ 10 ~ [1.0, 2.0]")):
        Digits(2, IID(), loss={"class_weights": [1.0, 2.0]}).task  # noqa: B018


def test_quantiles_ask_for_more_outputs():
    source = {"x": torch.zeros(4, 1), "y": torch.zeros(4, 2)}
    data = TensorData(source, 2, IID(), loss={"quantiles": [0.1, 0.9]})
    assert (data.task, data.outputs) == (Regression(quantiles=(0.1, 0.9)), 4)


def test_tensors_of_a_binary_task_are_zeros_and_ones():
    source = {"x": torch.zeros(4, 1), "y": [0, 0, 0, 0], "client": [0, 0, 1, 1]}
    data = TensorData(source, task="binary", test_fraction=0.5)
    assert (data.task, data.outputs, list(data.class_names)) == (Binary(), 2, ["0", "1"])
    with pytest.raises(ValueError, match=parts("binary ~ 0 and 1")):
        TensorData({**source, "y": [0, 1, 2, 1]}, task="binary").setup()


def test_an_unknown_option_of_the_loss_is_refused_by_name(capsys):
    argv = ["fit", "--config", "configs/quickstart.yaml", "--data.init_args.loss.smoothing=0.1"]
    assert main(argv) != 0
    assert "smoothing" in capsys.readouterr().err
