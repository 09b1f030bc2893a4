"""Methods with an output for each pixel: any engine, any method that needs no classes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from datamodules import IID, Segmentation, SyntheticOrgans, TensorData
from datamodules.augment import Augmentation
from lightning_modules import (
    IFCA,
    PFAKD,
    Ditto,
    FedALA,
    FedAvg,
    FedBN,
    FedEM,
    FedFomo,
    FedPer,
    FedRep,
    UNet,
)
from pfl.core.data_view import DataView
from pfl.core.seeds import generator, scoped
from pfl.core.task import Task
from pfl.loop import FederatedLoop
from tests.engines.agreement import agree, same
from tests.helpers.extras import needs
from tests.helpers.federation import HEAVY, sgd

METHODS = [FedAvg, FedPer, Ditto, FedALA, FedRep, PFAKD, FedBN]


def organs(loss="ce", **options):
    return SyntheticOrgans(
        (0.3, 0.2, -0.3),
        **{"samples": 11, "size": 8, "task": Segmentation(2, loss), "batch_size": 4, **options},
    )


def unet():
    with scoped(0):
        return UNet(2, (1, 8, 8), width=2, depth=1)


def fitted(method, data, engine="sequential", rounds=2, **options):
    loop = FederatedLoop(rounds, engine=engine, progress=False, **options)
    return loop.fit(method(unet(), optimizer=HEAVY), data)


@pytest.mark.parametrize("method", METHODS)
def test_threads_give_the_bits_of_one_client_after_another(method):
    one = fitted(method, organs())
    assert same(fitted(method, organs(), "threads"), one)
    assert one.history[-1]["test/personal/dice_clients"] == 3
    assert one.module.task == Segmentation(2)


def test_processes_give_the_bits_of_one_client_after_another():
    assert same(fitted(FedPer, organs(), "processes"), fitted(FedPer, organs()))


@pytest.mark.parametrize("loss", ["ce", "dice_ce"])
@pytest.mark.parametrize("method", METHODS)
def test_stacks_agree_in_double_precision(method, loss):
    options = {"precision": "64-true"}
    stacked = fitted(method, organs(loss), "vectorised", **options)
    expected = "FedALA is not vectorizable" if method is FedALA else "vectorised: all clients"
    assert expected in stacked.header["engine"]
    agree(stacked, fitted(method, organs(loss), **options))


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("loss", ["ce", "dice", "batch_dice"])
def test_fedavg_is_a_plain_loop(loss):
    """Full batches and one step of SGD: each client's gradient on its own samples, and their mean.

    In float64, against torch's own derivative of the task's loss.
    """
    data = organs(loss, batch_size=64)
    run = FederatedLoop(3, engine="sequential", precision="64-true", progress=False).fit(
        FedAvg(torch.nn.Conv2d(1, 2, 3, padding=1), optimizer=sgd(0.3)), data
    )
    net = torch.nn.Conv2d(1, 2, 3, padding=1).double()
    net.load_state_dict({n.removeprefix("net."): v for n, v in run.template.items()})
    splits = [data.split(client, "train") for client in range(3)]
    for _ in range(3):
        slopes = []
        for split in splits:
            batch = split.batch(torch.arange(len(split)))
            loss = data.task.loss(net(batch.x.double()), batch.y)
            slopes.append(torch.autograd.grad(loss, [*net.parameters()]))
        with torch.no_grad():
            for parameter, *each in zip(net.parameters(), *slopes, strict=True):
                parameter -= 0.3 * torch.stack(each).mean(0)
    for name, value in run.server.shared.items():
        own = net.get_parameter(name.removeprefix("net."))
        assert torch.allclose(value, own, rtol=0, atol=1e-12)


def test_test_data_change_no_weight():
    data = organs()
    poisoned = organs()
    for client in range(3):
        split = poisoned.split(client, "test")
        rows = split._rows
        split._store.targets[rows] = 1 - split._store.targets[rows]
        split._store.inputs[rows] = 255 - split._store.inputs[rows]
    one, other = fitted(FedBN, data), fitted(FedBN, poisoned)
    assert one.fingerprint == other.fingerprint
    assert one.history[-1]["test/personal/acc"] != other.history[-1]["test/personal/acc"]


def test_a_client_without_the_structure_lacks_the_score():
    data = organs(empty=0.0)
    split = data.split(1, "test")
    split._store.targets[split._rows] = 0
    row = fitted(FedAvg, data).history[-1]
    assert row["test/personal/dice_clients"] == row["test/personal/hd95_clients"] == 2
    assert "test/personal/dice@site 1" not in row
    assert 0 <= row["test/personal/acc"] <= 1


def test_images_in_three_dimensions():
    rng = generator(0, "volumes")
    y = (torch.rand(12, 4, 8, 8, generator=rng) < 0.3).byte()
    x = y[:, None] + torch.rand(12, 1, 4, 8, 8, generator=rng)
    data = TensorData({"x": x, "y": y}, 2, IID(), task="segmentation", batch_size=4)
    with scoped(0):
        net = UNet(2, (1, 4, 8, 8), width=2, depth=1)
    run = FederatedLoop(2, progress=False).fit(FedPer(net, optimizer=HEAVY), data)
    assert run.history[-1]["train/local/ce"] < run.history[0]["train/local/ce"]


COUPLED = Segmentation(2, "batch_dice")


def test_a_loss_of_a_batch_trains_on_engines_that_do_not_pad():
    one = fitted(FedPer, organs("batch_dice"))
    assert same(fitted(FedPer, organs("batch_dice"), "threads"), one)
    unpadded = fitted(FedPer, organs("batch_dice"), "vectorised")
    assert same(unpadded, one)
    assert "is of a whole batch, and a stack pads batches" in unpadded.header["engine"]


@pytest.mark.parametrize("method", [IFCA, FedFomo])
def test_what_weighs_losses_of_samples_refuses_a_loss_of_a_batch_by_name(method):
    words = rf"{method.__name__} needs losses of single samples: the task Segmentation.* of a batch"
    with pytest.raises(TypeError, match=words):
        fitted(method, organs("batch_dice"))


def test_what_needs_classes_refuses_a_task_without_any_by_name():
    with pytest.raises(TypeError, match="FedEM needs samples with classes"):
        fitted(FedEM, organs())


def test_privacy_of_samples_refuses_a_loss_of_a_batch():
    pytest.importorskip("dp_accounting")
    from pfl.extras.privacy.privacy import Privacy

    step = Privacy(1.0, 1.0, 1e-2, level="sample")
    with pytest.raises(ValueError, match=r"the loss of the task .* is of a whole batch"):
        fitted(FedAvg, organs("batch_dice"), uplink=[step])


@dataclass(frozen=True, repr=False)
class Angles(Task):
    """Targets of a form that nobody guesses: (n, 2, 5) angles and weights."""

    scores_better = {"error": False}  # noqa: RUF012
    loss_name = "error"

    def sample_losses(self, outputs, y):
        if y.shape[1:] != (2, 5):
            raise ValueError("angles and weights")
        return ((outputs.flatten(1)[:, :5] - y[:, 0]).abs() * y[:, 1]).mean(1)

    def rows(self, outputs, y):
        return self.sample_losses(outputs, y)[:, None]


class Exampled(Angles):
    def example(self, outputs):
        return torch.randn(6, outputs, 8, 8), torch.rand(6, 2, 5)


def private(task, engine):
    from pfl.extras.privacy.privacy import Privacy

    rng = generator(0, "private")
    x, y = torch.rand(24, 1, 8, 8, generator=rng), torch.rand(24, 2, 5, generator=rng)
    if isinstance(task, Segmentation):
        y = (x[:, 0] > 0.5).byte()
    data = TensorData({"x": x, "y": y}, 3, IID(), task=task, batch_size=4)
    with scoped(0):
        net = UNet(2, (1, 8, 8), width=2, depth=1, batch_norm=False)
    step = Privacy(1.0, 1.0, 1e-2, level="sample")
    loop = FederatedLoop(2, engine=engine, progress=False, uplink=[step])
    return loop.fit(FedAvg(net, optimizer=sgd(0.1)), data)


@needs("sites", "privacy")
@pytest.mark.parametrize("task", [Segmentation(2, "dice_ce"), Exampled()], ids=str)
def test_private_samples_of_dense_tasks_at_sites(task):
    """A server sees no targets, so it makes up some that the task takes with the outputs."""
    pytest.importorskip("dp_accounting")
    assert private(task, "loopback").fingerprint == private(task, "sequential").fingerprint


@needs("sites", "privacy")
def test_private_samples_at_sites_of_a_task_whose_targets_nobody_guesses():
    pytest.importorskip("dp_accounting")
    assert private(Angles(), "sequential").round == 2
    with pytest.raises(ValueError, match=r"task Angles.* accepts none .* give it example\(outputs"):
        private(Angles(), "loopback")


def test_a_strangers_method_that_asks_for_losses_of_samples_is_told_at_once():
    class Asks(FedAvg):
        def losses(self, batch):
            return {"own": self.task.sample_losses(self(batch.x), batch.y).amax()}

    with pytest.raises(TypeError, match="has no losses of single samples"):
        fitted(Asks, organs("batch_dice"))


class Windows(nn.Module):
    """Trains on crops; in a test, windows of the crops' size are put together."""

    def __init__(self):
        super().__init__()
        with scoped(0):
            self.net = UNet(2, (1, 4, 4), width=2, depth=1)

    def forward(self, x):
        if self.training:
            return self.net(x)
        whole = x.new_zeros(len(x), 2, *x.shape[2:])
        for top in range(0, x.shape[2], 4):
            for left in range(0, x.shape[3], 4):
                part = ..., slice(top, top + 4), slice(left, left + 4)
                whole[part] = self.net(x[part])
        return whole


@dataclass(frozen=True)
class Crops(Augmentation):
    """Random quarters of images and of their masks."""

    def __call__(self, images, rng):
        raise AssertionError("there are masks")

    def pairs(self, images, masks, rng):
        top, left = (int(torch.randint(5, (), generator=rng)) for _ in range(2))
        part = ..., slice(top, top + 4), slice(left, left + 4)
        return images[part], masks[part]


class Painted(Segmentation):
    """Predictions are marks of pixels, not probabilities."""

    def predictions(self, outputs):
        return outputs.argmax(1)


@pytest.mark.parametrize(
    "engine", ["threads", "processes", pytest.param("loopback", marks=needs("sites")), "vectorised"]
)
def test_sliding_windows_have_the_sequential_bits(engine):
    def run(one, **options):
        rng = generator(0, "windows")
        x = torch.rand(24, 1, 8, 8, generator=rng)
        y = (x[:, 0] > 0.5).byte()
        task = Painted(2, "dice_ce")
        images = (255 * x).byte()
        data = TensorData({"x": images, "y": y}, 3, IID(), task=task, batch_size=4, augment=Crops())
        loop = FederatedLoop(2, engine=one, progress=False, **options)
        return loop.fit(FedBN(Windows(), optimizer=sgd(0.1)), data)

    alone, other = run("sequential"), run(engine)
    assert 0 <= alone.history[-1]["test/personal/dice"] <= 1
    if engine == "vectorised":
        # In single precision, pixels near the threshold may fall on the other side of it.
        alone, other = (run(one, precision="64-true") for one in ("sequential", engine))
        for name, value in alone.server.shared.items():
            torch.testing.assert_close(other.server.shared[name], value, rtol=0, atol=1e-12)
        for row, right in zip(other.history, alone.history, strict=True):
            found = {name: value for name, value in right.items() if name.startswith("test/")}
            assert found == pytest.approx({name: row[name] for name in found}, abs=1e-12)
    else:
        assert other.fingerprint == alone.fingerprint


def test_a_view_of_data_keeps_the_task():
    view = replace(DataView.of(organs("dice")), num_clients=2)
    assert view.task == Segmentation(2, "dice")
