"""Loaders whose samples are pairs: targets get the form of the task."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from datamodules import LoaderData, Survival
from lightning_modules import FedAvg
from pfl import FederatedLoop
from pfl.core.task import Binary, Classification, MultiLabel, Regression

X = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(24) % 2


class Lazy(Dataset):
    """Samples that no tensor holds together."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return self.x[row], self.y[row]


def run(data, outputs):
    torch.manual_seed(0)
    method = FedAvg(nn.Linear(4, outputs), optimizer=partial(torch.optim.SGD, lr=0.1))
    return FederatedLoop(rounds=1, progress=False, engine="sequential").fit(method, data)


def given(kind, y, task, outputs):
    """Return the samples of three clients, also as their tests."""
    parts = [kind(X[i : i + 8], y[i : i + 8]) for i in (0, 8, 16)]
    return LoaderData(parts, test=parts, task=task, outputs=outputs, batch_size=4)


@pytest.mark.parametrize("kind", [TensorDataset, Lazy])
@pytest.mark.parametrize(
    ("task", "y", "outputs"),
    [
        (Regression(), LABELS.float(), 1),
        (Regression(), LABELS.int(), 1),
        (Binary(), LABELS.bool(), 2),
        (Classification(), LABELS.byte(), 2),
        (Classification(), LABELS.int(), 3),
        (MultiLabel(), torch.stack([LABELS, 1 - LABELS], 1), 2),
        (Survival(), torch.stack([torch.arange(24), LABELS], 1), 1),
    ],
)
def test_targets_of_loaders_get_the_form_of_the_task(kind, task, y, outputs):
    formed = task.of_targets(y)[1]
    raw, ready = (run(given(kind, one, task, outputs), outputs) for one in (y, formed))
    assert formed.dtype != y.dtype or formed.shape != y.shape
    raw_scores, scores = (
        {n: v for n, v in one.history[-1].items() if n.startswith(("test/", "train/"))}
        for one in (raw, ready)
    )
    assert scores == pytest.approx(raw_scores, rel=0, abs=0, nan_ok=True)
    assert all(torch.equal(raw.server.shared[n], v) for n, v in ready.server.shared.items())


@pytest.mark.parametrize(
    ("task", "y", "told"),
    [
        (Classification(), LABELS - 1, "train samples of client 0: classes must be numbered from"),
        (Classification(), LABELS.float(), "classes must be .n,. integers from 0, got torch.float"),
        (Binary(), LABELS + 1, "the classes of a binary task must be 0 and 1"),
        (MultiLabel(), LABELS, "labels must be .n, L. zeros and ones"),
        (Survival(), LABELS, "survival needs .n, 2. targets"),
    ],
)
@pytest.mark.parametrize("kind", [TensorDataset, Lazy])
def test_targets_of_loaders_that_do_not_suit_the_task_are_refused_before_the_run(
    kind, task, y, told
):
    told = told if kind is TensorDataset else told.rpartition("0: ")[2]
    with pytest.raises(ValueError, match=told):
        given(kind, y, task, 2).setup()


@pytest.mark.parametrize("outputs", [1, 3])
def test_numbers_to_predict_are_never_broadcast_to_other_outputs(outputs):
    data = given(TensorDataset, torch.stack([LABELS, LABELS], 1).float(), Regression(), 2)
    with pytest.raises(ValueError, match=rf"targets .*, 2\) need outputs .*, 2\), got .*{outputs}"):
        run(data, outputs)


def test_samples_that_make_no_batch_are_told_with_the_way_to_make_one():
    boxes = [(torch.zeros(4), torch.zeros(1 + row % 3, 4)) for row in range(8)]
    parts = [Lazy(*zip(*boxes, strict=True)) for _ in range(3)]
    with pytest.raises(ValueError, match=r"samples of Lazy make no batch: .*; give collate_fn"):
        LoaderData(parts, batch_size=4).setup()
