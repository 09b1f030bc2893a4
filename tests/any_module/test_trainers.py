"""FedAvg over a module is a Trainer of each client's round and a mean, scores included."""

import copy

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateMonitor,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.utilities import grad_norm
from torch import nn
from torchmetrics import AUROC, Accuracy, ConfusionMatrix, MetricCollection

from lightning_modules import FedAvg
from pfl import FederatedLoop
from pfl.core.seeds import scoped
from tests.any_module.trainers import EPOCHS, ROUNDS, SEED, by_trainers
from tests.helpers.toy import blobs


class Classifier(L.LightningModule):
    """Five numbers, three classes."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(5, 6), nn.Tanh())
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.backbone(x))

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])

    def test_step(self, batch, batch_idx):
        self.log("test_loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05)


class Scheduled(L.LightningModule):
    """Batch norm, a schedule by step, a score of torchmetrics and one by batch."""

    def __init__(self):
        super().__init__()
        layers = nn.Linear(5, 6, False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)
        self.net, self.acc = nn.Sequential(*layers), Accuracy("multiclass", num_classes=3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.net(x), y, label_smoothing=0.1)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.acc(self.net(x), y)
        self.log("test/acc", self.acc)
        self.log("test/loss", F.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Clipped(Classifier):
    """Looks at gradients and changes them before the step, and its learning rate by the step."""

    def on_before_optimizer_step(self, optimizer):
        self.log_dict(grad_norm(self, norm_type=2))
        for parameter in self.parameters():
            parameter.grad.clamp_(-0.1, 0.1)

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 / (1 + self.global_step)
        optimizer.step(closure=optimizer_closure)

    def backward(self, loss, *others, **options):
        (2 * loss).backward()


class Accumulates(Classifier):
    """Two batches a step, by hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        self.manual_backward(super().training_step(batch, batch_idx) / 2)
        if (batch_idx + 1) % 2 == 0 or self.trainer.is_last_batch:
            optimizer.step()
            optimizer.zero_grad()


class Toggles(Classifier):
    """Two optimisers in turn, one with a schedule that the step takes."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization, self.critic = False, nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        self.toggle_optimizer(first)
        first.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        self.clip_gradients(first, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        first.step()
        self.untoggle_optimizer(first)
        with second.toggle_model():
            second.zero_grad()
            self.manual_backward(self.critic(self(batch[0]).detach()).square().mean())
            second.step()
        if self.trainer.is_last_batch:
            self.lr_schedulers().step()

    def configure_optimizers(self):
        first = torch.optim.Adam([*self.backbone.parameters(), *self.head.parameters()])
        second = torch.optim.SGD(self.critic.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.StepLR(first, 1, 0.5)
        return {"optimizer": first, "lr_scheduler": schedule}, {"optimizer": second}


class Configured(Classifier):
    """Built from arguments that it saves, as under LightningCLI."""

    def __init__(self, lr: float = 0.1, hidden: tuple[int, ...] = (7,)):
        super().__init__()
        self.save_hyperparameters()
        self.backbone = nn.Sequential(nn.Linear(5, self.hparams.hidden[0]), nn.ReLU())
        self.head = nn.Linear(self.hparams.hidden[0], 3)

    def configure_optimizers(self):
        return torch.optim.RMSprop(self.parameters(), self.hparams.lr / 10)


class Plateau(Classifier):
    """Monitors what training logs, by a dictionary with all keys."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.5)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        monitored = {"scheduler": schedule, "monitor": "train_loss", "interval": "epoch"}
        return {"optimizer": optimizer, "lr_scheduler": {**monitored, "frequency": 1}}


class Gathers(Classifier):
    """What only matters with several devices, and signatures of every kind."""

    def training_step(self, *given, **named):
        x, y = given[0] if given else named["batch"]
        outputs = self.all_gather(self(x), sync_grads=True)
        self.trainer.strategy.barrier()
        assert self.trainer.world_size == 1
        assert self.trainer.is_global_zero
        assert len(self.trainer.train_dataloader.dataset) >= len(x)
        return {"loss": F.cross_entropy(outputs, y), "outputs": outputs.detach()}

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("test_loss", F.cross_entropy(self(batch[0]), batch[1]), sync_dist=True)


class Collects(Classifier):
    """A collection of metrics, a list of outputs, and a matrix that is no score."""

    def __init__(self):
        super().__init__()
        of = {"task": "multiclass", "num_classes": 3}
        self.metrics_of_test = MetricCollection([Accuracy(**of), AUROC(**of)], prefix="test_")
        self.matrix, self.seen = ConfusionMatrix(**of), []

    def test_step(self, batch, batch_idx):
        outputs = self(batch[0])
        self.metrics_of_test.update(outputs, batch[1])
        self.matrix.update(outputs, batch[1])
        self.seen.append(F.cross_entropy(outputs, batch[1], reduction="none"))

    def on_test_epoch_end(self):
        self.log_dict(self.metrics_of_test.compute())
        self.log("test_worst", torch.cat(self.seen).max())
        self.log("test_diagonal", self.matrix.compute().diag().sum().float())
        self.metrics_of_test.reset()
        self.matrix.reset()
        self.seen.clear()


class Compiled(Classifier):
    """A submodule that was compiled."""

    def __init__(self):
        super().__init__()
        self.backbone = torch.compile(self.backbone, backend="eager")


class Newton(Classifier):
    """An optimiser that calls the step's closure several times."""

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), 0.1, max_iter=3)


class Stops(Classifier):
    """Ends its training itself, and leaves out batches."""

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if self.current_epoch == 1 else None

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.trainer.should_stop = self.global_step >= 3


class Average(L.Callback):
    """An average of weights in a callback, which takes their place in the end."""

    def __init__(self):
        self.held = {}

    def on_train_batch_end(self, trainer, module, *others):
        for name, value in module.state_dict().items():
            self.held[name] = torch.lerp(self.held.get(name, value), value, 0.3)

    def on_train_end(self, trainer, module):
        module.load_state_dict(self.held)


def with_callback(make):
    class Called(Classifier):
        def configure_callbacks(self):
            return [make()]

    Called.__name__ = make().__class__.__name__
    return Called


MODULES = [
    *(Scheduled, Clipped, Accumulates, Toggles, Configured, Plateau, Gathers, Collects),
    *(Compiled, Newton, Stops),
    *map(
        with_callback,
        (
            Average,
            WeightAveraging,
            lambda: StochasticWeightAveraging(1e-2, swa_epoch_start=1),
            lambda: GradientAccumulationScheduler({0: 2}),
        ),
    ),
]


@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
def test_fedavg_is_each_clients_own_trainer_and_a_mean(kind):
    """Two rounds of two epochs: weights and scores, in double precision."""
    with scoped(0):
        net = kind()
    toy = blobs((8, 6, 4))
    loop = FederatedLoop(rounds=ROUNDS, seed=SEED, progress=False, precision="64-true")
    run = loop.fit(FedAvg(copy.deepcopy(net), epochs=EPOCHS), toy)
    mean, scores = by_trainers(net, toy)
    for name, value in mean.items():
        torch.testing.assert_close(run.server.shared[f"net.{name}"], value, rtol=0, atol=1e-12)
    for name in scores[0]:
        value = sum(found[name] for found in scores) / 3
        short = name.removeprefix("test").lstrip("/_")
        assert run.history[-1][f"test/personal/{short}"] == pytest.approx(value, abs=1e-12)
    assert {*run.scores} == {name.removeprefix("test").lstrip("/_") for name in scores[0]}


@pytest.mark.parametrize(
    "make",
    [
        lambda: EarlyStopping("val_loss", patience=0),
        LearningRateMonitor,
        lambda: BackboneFinetuning(unfreeze_backbone_at_epoch=1),
    ],
)
def test_further_callbacks_of_lightning_run(make):
    class Called(with_callback(make)):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            loss = F.cross_entropy(self(batch[0]), batch[1])
            self.log("val_loss", loss, add_dataloader_idx=False)

        def configure_optimizers(self):
            free = [one for one in self.parameters() if one.requires_grad]
            return torch.optim.SGD(free, 0.05)

    runs = [
        FederatedLoop(rounds=2, progress=False, engine=engine).fit(
            FedAvg(built(Called), epochs=3), blobs((8, 6, 4))
        )
        for engine in ("sequential", "threads")
    ]
    assert runs[0].fingerprint == runs[1].fingerprint


def built(kind):
    with scoped(0):
        return kind()


def test_a_module_that_was_compiled_as_a_whole_is_refused_in_one_line():
    with pytest.raises(TypeError, match=r"has the LightningModule Classifier with training_step"):
        FedAvg(torch.compile(Classifier(), backend="eager"))
