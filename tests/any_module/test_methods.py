"""Further modules as people write them, under four methods: the Trainers of each client and a mean.

FedPer keeps the head; Ditto's common model and SCAFFOLD's first round are FedAvg's. What cannot be
followed is refused by name.
"""

import copy
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchmetrics import Accuracy, MetricCollection, Recall

from lightning_modules import MOON, SCAFFOLD, Ditto, FedAvg, FedPer, FedProx
from pfl import FederatedLoop
from pfl.core.seeds import scoped
from tests.any_module.test_trainers import Classifier
from tests.any_module.trainers import EPOCHS, ROUNDS, SEED, by_trainers
from tests.helpers.toy import blobs


class Adversarial(Classifier):
    """A generator and a critic, by hand, with an optimiser each."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization, self.critic = False, nn.Linear(5, 1)
        self.generator = nn.Linear(5, 5)

    def training_step(self, batch, batch_idx):
        x, _ = batch
        makes, judges = self.optimizers()
        fake = self.generator(x.roll(1, 0))
        for optimizer, loss in (
            (judges, lambda: F.softplus(self.critic(fake.detach()) - self.critic(x)).mean()),
            (makes, lambda: F.softplus(-self.critic(fake)).mean()),
        ):
            optimizer.zero_grad()
            self.manual_backward(loss())
            optimizer.step()
        self.log("critic", self.critic(x).mean())

    def configure_optimizers(self):
        makes = torch.optim.Adam(self.generator.parameters(), 0.01, betas=(0.5, 0.9))
        return [makes, torch.optim.RMSprop(self.critic.parameters(), 0.01)], []


class Contrastive(Classifier):
    """A queue of keys that a slow encoder makes after each batch."""

    def __init__(self):
        super().__init__()
        self.slow = copy.deepcopy(self.backbone).requires_grad_(False)
        self.queue = nn.Buffer(torch.ones(8, 6) / 3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        query = F.normalize(self.backbone(x), dim=1)
        self.keys = F.normalize(self.slow(x), dim=1).detach()
        logits = torch.cat([(query * self.keys).sum(1, True), query @ self.queue.t()], 1)
        return F.cross_entropy(logits, torch.zeros_like(y)) + F.cross_entropy(self(x), y)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.queue.copy_(torch.cat([self.keys, self.queue])[:8])
        with torch.no_grad():
            for old, new in zip(self.slow.parameters(), self.backbone.parameters(), strict=True):
                old.lerp_(new, 0.1)


class MeanTeacher(Classifier):
    """A teacher that moves in a hook before gradients are set to zero."""

    def __init__(self):
        super().__init__()
        self.teacher = copy.deepcopy(self.head)
        for value in self.teacher.parameters():
            value.requires_grad = False

    def training_step(self, batch, batch_idx):
        z = self.backbone(batch[0])
        return F.mse_loss(self.head(z), self.teacher(z.detach())) + super().training_step(
            batch, batch_idx
        )

    @torch.no_grad()
    def on_before_zero_grad(self, optimizer):
        for old, new in zip(self.teacher.parameters(), self.head.parameters(), strict=True):
            old.mul_(0.9).add_(new, alpha=0.1)


class WarmsUp(Classifier):
    """A schedule by step, which its own hook moves, and a warm-up by the global step."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1, momentum=0.9, nesterov=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step", "frequency": 2},
        }

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step(epoch=self.global_step)

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        if self.trainer.global_step < 2:
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (self.trainer.global_step + 1)


class Patient(Classifier):
    """Lowers its rate when the mean loss of an epoch does not fall, by hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization, self.outputs = False, []

    def on_train_epoch_start(self):
        self.outputs.clear()

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = super().training_step(batch, batch_idx)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.outputs.append(loss.detach())
        return {"loss": loss}

    def on_train_epoch_end(self):
        self.lr_schedulers().step(torch.stack(self.outputs).mean() * -self.current_epoch)

    def configure_optimizers(self):
        optimizer = torch.optim.Adagrad(self.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "x"}}


class Collection(Classifier):
    """Scores in a collection, computed at the end of an epoch and reset there."""

    def __init__(self):
        super().__init__()
        options = {"task": "multiclass", "num_classes": 3}
        found = MetricCollection({"acc": Accuracy(**options), "rec": Recall(**options)})
        self.of_training, self.of_test = found.clone("train/"), found.clone("test/")

    def training_step(self, batch, batch_idx):
        self.log_dict(self.of_training(self(batch[0]), batch[1]), on_step=True, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def test_step(self, batch, batch_idx):
        self.of_test.update(self(batch[0]), batch[1])

    def on_test_epoch_end(self):
        self.log_dict(self.of_test.compute())
        self.of_test.reset()


@dataclass
class Nested:
    """A batch of a class of one's own."""

    inputs: dict
    targets: tuple


class Transfers(Classifier):
    """Batches of a form of its own, made on their way to the device."""

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        x, y = batch
        return Nested({"x": [x.to(device)], "more": {"k": 2.0}}, (y.to(device),))

    def on_after_batch_transfer(self, batch, dataloader_idx):
        batch.inputs["x"].append(batch.inputs["x"][0] * batch.inputs["more"]["k"])
        return batch

    def training_step(self, batch, batch_idx):
        first, second = batch.inputs["x"]
        return F.cross_entropy(self(first) + self(second), batch.targets[0])

    def test_step(self, batch, batch_idx):
        super().test_step((batch.inputs["x"][0], batch.targets[0]), batch_idx)


class Reads(Classifier):
    """What a step reads of its Trainer: epochs, batches, and whether one is the last."""

    def training_step(self, batch, batch_idx):
        done = batch_idx / self.trainer.num_training_batches + self.current_epoch
        share = done / self.trainer.max_epochs
        last = float(self.trainer.is_last_batch)
        self.log("share", share, on_step=True, on_epoch=False)
        return (1 + share + last) * super().training_step(batch, batch_idx)

    def on_train_start(self):
        assert self.trainer.estimated_stepping_batches % self.trainer.num_training_batches == 0


class ClipsByValue(Classifier):
    """Clips in its own way, and keeps a loss for the next step's weight in a parameter."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterDict({"log": nn.Parameter(torch.zeros(()))})

    def training_step(self, batch, batch_idx):
        weight = self.weights["log"]
        return super().training_step(batch, batch_idx) * torch.exp(-weight) + weight

    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        self.clip_gradients(optimizer, gradient_clip_val=0.02, gradient_clip_algorithm="value")

    def configure_optimizers(self):
        decayed, others = [], []
        for name, value in self.named_parameters():
            (others if name.endswith("bias") else decayed).append(value)
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 0.02}]
        return (torch.optim.AdamW(groups, 0.01),)


class Exported(Classifier):
    """An example of its input, saved arguments, and a compiled part."""

    def __init__(self, hidden=6, lr=0.05):
        super().__init__()
        self.save_hyperparameters(ignore=["lr"])
        self.lr = lr
        layers = nn.Linear(5, hidden), torch.jit.script(nn.Tanh())
        self.backbone = torch.compile(nn.Sequential(*layers), backend="eager")

    @property
    def example_input_array(self):
        return torch.zeros(1, 5)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)


class Bounded(Classifier):
    """Weights are projected after each step; a regulariser needs second derivatives."""

    def training_step(self, batch, batch_idx):
        x = batch[0].clone().requires_grad_()
        loss = F.cross_entropy(self(x), batch[1])
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return {"loss": loss + slope.square().sum(), "slope": slope.detach()}

    def backward(self, loss):
        loss.backward(retain_graph=True)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        assert {*outputs} == {"loss", "slope"}
        with torch.no_grad():
            self.head.weight.renorm_(2, 0, 0.5)


class Thaws(Classifier):
    """Trains the head alone in the first epoch of a round, then gives the optimiser the rest."""

    def on_train_epoch_start(self):
        if self.current_epoch == 0:
            self.backbone.requires_grad_(False)
        if self.current_epoch == 1:
            self.backbone.requires_grad_(True)
            self.optimizers().optimizer.add_param_group({"params": [*self.backbone.parameters()]})

    def configure_optimizers(self):
        return torch.optim.SGD(self.head.parameters(), 0.1)


class Twice(Classifier):
    """One loss, and one of a step that is left out; scores by batch and by epoch at once."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True, batch_size=len(batch[0]))
        return None if batch_idx == 1 else loss

    def test_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("test_worst", loss, reduce_fx=max)
        return {"preds": self(batch[0]).argmax(1), "target": batch[1]}

    def on_test_batch_end(self, outputs, batch, batch_idx, dataloader_idx=0):
        hits = (outputs["preds"] == outputs["target"]).float().mean()
        self.log("test_hits", hits, batch_size=len(batch[0]))


MODULES = [
    *(Adversarial, Contrastive, MeanTeacher, WarmsUp, Patient, Collection, Transfers, Reads),
    *(ClipsByValue, Exported, Bounded, Thaws, Twice),
]
HEAD = ("head.weight", "head.bias")


def run_of(method, net, rounds=ROUNDS, **options):
    loop = FederatedLoop(rounds=rounds, seed=SEED, progress=False, precision="64-true")
    return loop.fit(method(copy.deepcopy(net), epochs=EPOCHS, **options), blobs((8, 6, 4)))


def check(run, mean, scores):
    travels = {name for name in run.server.shared if name.startswith("net.")}
    assert travels <= {f"net.{name}" for name in mean}
    for name, value in mean.items():
        if f"net.{name}" in travels:
            found = run.server.shared[f"net.{name}"]
            torch.testing.assert_close(found, value, rtol=0, atol=1e-12)
    for name in scores[0] if scores else ():
        value, short = sum(found[name] for found in scores) / 3, name.removeprefix("test")
        found = run.history[-1][f"test/personal/{short.lstrip('/_')}"]
        assert found == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("method", [FedAvg, FedPer, Ditto, SCAFFOLD], ids=lambda one: one.__name__)
def test_a_module_as_it_is_written_trains_as_its_trainer_does(kind, method):
    with scoped(0):
        net = kind()
    toy = blobs((8, 6, 4))
    # What is frozen and moves in a hook travels if that is said.
    moves = kind in (Contrastive, MeanTeacher)
    options = {"travel_frozen": True} if moves else {}
    if moves:
        with pytest.raises(TypeError, match=r"frozen parameter 'net\..*' changes .* travel_frozen"):
            run_of(method, net)
    if method is FedAvg:
        check(run_of(FedAvg, net, **options), *by_trainers(net, toy))
    elif method is FedPer:
        run = run_of(FedPer, net, **options)
        check(run, *by_trainers(net, toy, kept=HEAD))
        assert not any(name.startswith("net.head.") for name in run.server.shared)
    elif method is Ditto:
        check(run_of(Ditto, net, proximity=0.3, **options), by_trainers(net, toy)[0], ())
    else:
        run = run_of(SCAFFOLD, net, rounds=1, weighting="samples", **options)
        check(run, by_trainers(net, toy, rounds=1)[0], ())


@pytest.mark.parametrize("whole", [False, True])
def test_a_network_in_torchscript_is_refused_in_one_line(whole):
    net = Classifier()
    net.backbone = torch.jit.script(net.backbone)
    with pytest.raises(TypeError, match=r"TorchScript.* give the module from which it was made"):
        FedAvg(net.backbone if whole else net)


@pytest.mark.parametrize("method", [Ditto, FedProx])
def test_a_frozen_part_takes_no_part_in_the_terms_of_a_method(method):
    """The trained network is compared with one whose constants are no parameters."""

    class Frozen(Classifier):
        def __init__(self):
            super().__init__()
            self.fixed = nn.Linear(5, 5).requires_grad_(False)

        def training_step(self, batch, batch_idx):
            assert len([*self.fixed.parameters()]) == 2
            return super().training_step((self.fixed(batch[0]), batch[1]), batch_idx)

    with scoped(0):
        net = Frozen()
    assert not any("fixed" in name for name in run_of(method, net).server.shared)


def test_loaders_of_the_modules_own_are_not_asked_and_that_is_told():
    class Loads(Classifier):
        def train_dataloader(self):
            raise AssertionError("the federation feeds the data")

    with scoped(0):
        net, other = Loads(), Classifier()
    other.load_state_dict(net.state_dict())
    with pytest.warns(UserWarning, match="Loads has a train_dataloader of its own, which"):
        run = run_of(FedAvg, net)
    assert run.fingerprint == run_of(FedAvg, other).fingerprint


def test_layers_named_features_are_no_method_that_takes_a_batch():
    net = Classifier()
    net.features = nn.Sequential(nn.Linear(5, 6))
    with pytest.raises(TypeError, match=r"give Classifier a method features\(batch\)"):
        MOON(net)
