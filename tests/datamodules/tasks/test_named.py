"""A data module's task: a name, an import path, or the task itself."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.utils.data import TensorDataset

from datamodules import IID, Digits, Segmentation, TabularData, TensorData, TorchDataset
from datamodules.tasks.named import OWN, task_of
from lightning_modules import FedAvg
from pfl.core.task import Classification, Regression, Task
from tests.helpers.federation import fit, sgd


@dataclass(frozen=True, repr=False)
class Counts(Task):
    """Numbers of events, whose logarithm is predicted."""

    scale: float = 1.0

    scores_better = {"deviance": False}  # noqa: RUF012
    loss_name = "poisson"

    def sample_losses(self, outputs, y):
        return torch.nn.functional.poisson_nll_loss(outputs, y, reduction="none").flatten(1).mean(1)

    def scores(self, outputs, y):
        return self.sample_losses(outputs, y).mean()[None]


@dataclass(frozen=True, repr=False)
class Needy(Counts):
    scale: float = None

    def __post_init__(self):
        if self.scale is None:
            raise TypeError("scale is required")


PATH = f"{__name__}.Counts"


def test_a_name_a_path_and_a_task_are_the_same():
    assert task_of(PATH) == task_of(Counts()) == Counts()
    assert [task_of(one.__name__.lower()) for one in OWN] == [one() for one in OWN]
    assert task_of("Segmentation") == Segmentation()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("segmentatoin", "task: there is no 'segmentatoin'; did you mean 'segmentation'"),
        (f"{__name__}.Nothing", "task: .*there is no"),
        ("torch.nn.Linear", "task: .*not a subclass of Task"),
        ("os.path.join", "task: names os.path.join, which belongs neither"),
        (f"{__name__}.Needy", "Needy needs options: scale is required"),
        (3, "task must be a Task, its import path or a name, got 3"),
    ],
)
def test_what_names_no_task_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        TensorData({}, 2, IID(), task=given)


X, Y = torch.rand(40, 3), torch.randint(5, (40, 1)).float()


@pytest.mark.parametrize("task", [PATH, Counts(), Counts(scale=2.0)])
def test_a_strangers_task_is_that_of_any_data_module(task, tmp_path):
    csv = tmp_path / "table.csv"
    rows = torch.cat([X, Y], 1).tolist()
    csv.write_text("\n".join(["a,b,c,y", *(",".join(map(str, row)) for row in rows)]))
    pairs = TensorDataset(X, Y)
    for data in (
        TensorData({"x": X, "y": Y}, 2, IID(), task=task),
        TorchDataset(pairs, 2, IID(), task=task),
        TabularData(str(csv), "y", 2, IID(), task=task),
    ):
        assert data.task == task_of(task)
        assert (data.outputs, data.num_classes) == (1, None)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = torch.nn.Linear(3, 1)
        run = fit(FedAvg(net, optimizer=sgd(0.1)), data, rounds=2)
        assert run.module.task == data.task
        assert run.history[-1]["train/local/poisson"] < run.history[0]["train/local/poisson"]
        assert run.history[-1]["test/personal/deviance"] == pytest.approx(
            run.summary["test/personal/deviance/last"]
        )


@dataclass(frozen=True, repr=False)
class Doubled(Classification):
    """Classification with twice the loss."""

    def sample_losses(self, outputs, y):
        return 2 * super().sample_losses(outputs, y)

    def loss(self, outputs, y, weight=None):
        return Task.loss(self, outputs, y, weight)


def test_data_with_classes_take_a_task_with_classes():
    data = Digits(num_clients=3, partition=IID(), max_samples=90, task=f"{__name__}.Doubled")
    assert data.task == Doubled()
    plain = Digits(num_clients=3, partition=IID(), max_samples=90)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nets = [torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)) for _ in range(2)]
        nets[1].load_state_dict(nets[0].state_dict())
    runs = [
        fit(FedAvg(net, optimizer=sgd(rate)), one, rounds=2)
        for net, one, rate in zip(nets, (data, plain), (0.05, 0.1), strict=True)
    ]
    for name, value in runs[0].server.shared.items():
        assert torch.allclose(value, runs[1].server.shared[name], atol=1e-5)
    numbers = Digits(num_clients=3, partition=IID(), task="regression")
    with pytest.raises(ValueError, match=r"Digits has classes, which Regression\(\) does not"):
        fit(FedAvg(torch.nn.Linear(64, 10)), numbers)


def test_a_methods_own_task_must_be_that_of_the_data():
    data = TensorData({"x": X, "y": Y}, 2, IID())
    assert data.task == Regression()
    with pytest.raises(TypeError, match=r"was built for the task Classification\(\)"):
        fit(FedAvg(torch.nn.Linear(3, 1), task=Classification()), data)
    with pytest.raises(TypeError, match="built for the task Counts"):
        fit(FedAvg(torch.nn.Linear(3, 1), task=Counts(2.0)), data)
