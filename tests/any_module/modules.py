"""LightningModules as people write them, each with its own steps, optimisers and scores."""

from typing import NamedTuple

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torchmetrics import Accuracy, MetricCollection
from torchmetrics.classification import MulticlassF1Score

STEPS: list[str] = []


class Own(L.LightningModule):
    """Notes each training step."""

    def on_train_batch_start(self, batch, batch_idx):
        STEPS.append(type(self).__name__)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05)


def mlp(last=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, last))


class Autoencoder(Own):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())
        self.decoder = nn.Linear(8, 64)

    def loss(self, batch):
        return F.mse_loss(self.decoder(self.encoder(batch[0])), batch[0].flatten(1))

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train/mse", loss)
        return loss

    def test_step(self, batch, batch_idx):
        self.log("mse", self.loss(batch))


class UNet(Own):
    """Two levels with batch norms, and masks of the bright pixels."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.last = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        wide = self.down(x)
        return self.last(torch.cat([wide, self.up(self.deep(wide))], 1))

    def dice(self, x):
        chance, mask = self(x).sigmoid(), (x > 0).float()
        return (2 * (chance * mask).sum() + 1) / (chance.sum() + mask.sum() + 1)

    def training_step(self, batch, batch_idx):
        x = batch["image"]
        loss = F.binary_cross_entropy_with_logits(self(x), (x > 0).float()) + 1 - self.dice(x)
        return {"loss": loss, "seen": len(x)}

    def validation_step(self, batch, batch_idx):
        self.log("val_dice", self.dice(batch["image"]), batch_size=len(batch["image"]))


class SimCLR(Own):
    """Two views of each image; only the loss is measured."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = mlp(6), nn.Linear(6, 4)

    def info_nce(self, views):
        z = F.normalize(self.head(self.backbone(torch.cat(views))), dim=1)
        alike = (z @ z.T / 0.5).masked_fill(torch.eye(len(z), dtype=torch.bool), -9.0)
        return F.cross_entropy(alike, torch.arange(len(z)).roll(len(z) // 2))

    def training_step(self, batch, batch_idx):
        views, _ = batch
        return self.info_nce(views)

    def test_step(self, batch, batch_idx):
        self.log("test/nce", self.info_nce(batch[0]), batch_size=len(batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 1e-2)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class Output(NamedTuple):
    loss: torch.Tensor | None
    logits: torch.Tensor


class Transformer(L.LightningModule):
    """A classifier whose network returns an object with loss and logits, as transformers' do."""

    def __init__(self, lr: float = 1e-2, warmup: int = 2):
        super().__init__()
        self.save_hyperparameters()
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)
        self.backbone = nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoder(layer, 1))
        self.head = nn.Linear(8, 3)
        scores = {"acc": Accuracy("multiclass", num_classes=3), "f1": MulticlassF1Score(3)}
        self.scores_of_test = MetricCollection(scores, prefix="test_")

    def forward(self, pixels, labels=None):
        logits = self.head(self.backbone(pixels.flatten(1).unflatten(1, (8, 8))).mean(1))
        return Output(None if labels is None else F.cross_entropy(logits, labels), logits)

    def training_step(self, batch, batch_idx):
        STEPS.append("Transformer")
        return self(**batch).loss

    def test_step(self, batch, batch_idx):
        self.scores_of_test.update(self(batch["pixels"]).logits, batch["labels"])
        self.log_dict(self.scores_of_test)

    def configure_optimizers(self):
        decayed = [p for p in self.parameters() if p.dim() > 1]
        others = [p for p in self.parameters() if p.dim() <= 1]
        return torch.optim.AdamW(
            [{"params": decayed}, {"params": others, "weight_decay": 0.0}], self.hparams.lr
        )

    def optimizer_step(self, epoch, batch_idx, optimizer, closure):
        optimizer.step(closure=closure)
        scale = min(1.0, (self.trainer.global_step + 1) / self.hparams.warmup)
        for group in optimizer.param_groups:
            group["lr"] = scale * self.hparams.lr


class Forecaster(Own):
    """The last numbers of a series from the first; the plateau of its validation loss counts."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.GRU(1, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def loss(self, batch):
        series = batch[0].flatten(1)[:, :10]
        return F.l1_loss(self.head(self.backbone(series[:, :8, None])[0][:, -1]), series[:, 8:])

    def training_step(self, batch):
        return self.loss(batch)

    def validation_step(self, batch):
        self.log("val_mae", self.loss(batch), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 1e-2)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return [optimizer], [{"scheduler": plateau, "monitor": "val_mae"}]


class GAN(L.LightningModule):
    """Two optimisers, which the step takes itself."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.backbone = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head, self.critic = nn.Linear(8, 64), nn.Linear(64, 1)

    def made(self, count):
        return self.head(self.backbone(torch.randn(count, 4)))

    def training_step(self, batch, batch_idx):
        STEPS.append("GAN")
        real, (of_maker, of_critic) = batch[0].flatten(1), self.optimizers()
        self.toggle_optimizer(of_maker)
        loss = F.softplus(-self.critic(self.made(len(real)))).mean()
        of_maker.zero_grad()
        self.manual_backward(loss)
        of_maker.step()
        self.untoggle_optimizer(of_maker)
        made = self.made(len(real)).detach()
        against = F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(made)).mean()
        of_critic.zero_grad()
        self.manual_backward(against)
        of_critic.step()
        self.log_dict({"maker": loss, "critic": against})
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def test_step(self, batch, batch_idx):
        self.log("critic_loss", F.softplus(-self.critic(batch[0].flatten(1))).mean())

    def configure_optimizers(self):
        maker = torch.optim.Adam([*self.backbone.parameters(), *self.head.parameters()], 1e-3)
        critic = torch.optim.SGD(self.critic.parameters(), 1e-2)
        schedules = [torch.optim.lr_scheduler.StepLR(one, 3) for one in (maker, critic)]
        return [maker, critic], schedules


MATRIX = (Autoencoder, UNet, SimCLR, Transformer, Forecaster, GAN)
