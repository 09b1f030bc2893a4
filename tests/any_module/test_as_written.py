"""Each runs as its own training says, or is refused by name in one line; none is silently wrong."""

import copy
import signal
import warnings
from dataclasses import replace
from threading import Event

import lightning as L
import pytest
import pytorch_lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

from datamodules import LoaderData
from lightning_modules import APFL, FML, MOON, PFAKD, SCAFFOLD, FedAS, FedAvg, FedEM, FedPer
from pfl import FederatedLoop
from pfl.core.seeds import scoped
from pfl.federation.run import Callback
from pfl.training.declaration import MethodError
from tests.any_module.data import data, sets
from tests.any_module.modules import GAN, Own, Transformer, mlp
from tests.helpers.messages import parts
from tests.helpers.toy import mlp as toy


def fit(module, made=None, rounds=1, method=FedAvg, **options):
    loop = {name: options.pop(name) for name in ("gradient_clip_val",) if name in options}
    return FederatedLoop(rounds=rounds, progress=False, **loop).fit(
        method(module, **options), made or data()
    )


class Classifier(Own):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_loss", F.cross_entropy(self(x), y))


def test_averages_of_weights_in_a_hook_travel_or_stay():
    class Averaged(Classifier):
        def __init__(self):
            super().__init__()
            self.average = torch.optim.swa_utils.AveragedModel(self.net)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            assert outputs["loss"].dim() == 0
            self.average.update_parameters(self.net)

        def test_step(self, batch, batch_idx):
            self.log("loss", F.cross_entropy(self.average(batch[0]), batch[1]))

    run = fit(Averaged(), stays=["average.*"])
    assert "net.average.module.1.weight" in run.kept[0]
    assert not any("average" in name for name in run.server.shared)
    assert "net.average.module.1.weight" in fit(Averaged()).server.shared


class Smooth(Classifier):
    """An average in an attribute, which a test reads."""

    def __init__(self):
        super().__init__()
        self.average, self.outputs = torch.zeros(3), []

    def training_step(self, batch, batch_idx):
        outputs = self(batch[0])
        self.outputs.append(outputs.detach())
        self.average = 0.5 * self.average + 0.5 * outputs.detach().mean(0)
        return F.cross_entropy(outputs, batch[1])

    def test_step(self, batch, batch_idx):
        self.log("loss", F.cross_entropy(self(batch[0]) - self.average, batch[1]))


class Warm(Classifier):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def training_step(self, batch, batch_idx):
        self.calls += 1
        return super().training_step(batch, batch_idx) * min(1, self.calls / 100)


@pytest.mark.parametrize(("kind", "name"), [(Smooth, "average"), (Warm, "calls")])
def test_what_begins_anew_though_it_is_read_is_told(kind, name):
    """A list of outputs that nobody reads later is not."""
    with pytest.warns(UserWarning, match=rf"'net.{name}' changes .* finds it as it was built"):
        fit(kind())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*changes while")
        fit(Classifier())
        fit(Transformer(), data(Transformer))


def test_what_passes_from_client_to_client_is_refused():
    class Counts(Classifier):
        calls = 0

        def training_step(self, batch, batch_idx):
            type(self).calls += 1
            return super().training_step(batch, batch_idx) * min(1, self.calls / 100)

    with pytest.raises(TypeError, match=r"class attribute 'Counts.calls' changes"):
        fit(Counts())


def test_batches_of_any_form_and_hooks_on_them_are_played_before_the_run():
    class Reads(Classifier):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3), persistent=False)

        def training_step(self, batch, batch_idx):
            outputs = self(batch["pixels"])
            self.mean.mul_(0.5).add_(outputs.detach().mean(0))
            return F.cross_entropy(outputs - self.mean, batch["labels"])

        def test_step(self, batch, batch_idx):
            self.log("loss", F.cross_entropy(self(batch["pixels"]), batch["labels"]))

    with pytest.raises(TypeError, match=r"buffer \(not persistent\) 'net.mean' changes"):
        fit(Reads(), data(Transformer))


def test_a_queue_in_a_buffer_and_a_teacher():
    class MoCo(Classifier):
        def __init__(self):
            super().__init__()
            self.teacher = mlp().requires_grad_(False)
            self.register_buffer("queue", torch.zeros(6, 3))

        def training_step(self, batch, batch_idx):
            z, other = self(batch[0]), self.teacher(batch[0]).detach()
            self.queue = torch.cat([self.queue[len(other) :], other])[-6:]
            return F.mse_loss(z @ self.queue.T, torch.zeros(len(z), len(self.queue)))

        def on_train_batch_end(self, *_):
            for own, taught in zip(self.net.parameters(), self.teacher.parameters(), strict=True):
                taught.data.lerp_(own.data, 0.1)

    with pytest.raises(MethodError, match=parts("'net.teacher.1.weight' ~ travel_frozen")):
        fit(MoCo(), stays=["queue"])
    assert "net.teacher.1.weight" in fit(MoCo(), stays=["queue", "teacher.*"]).kept[0]
    run = fit(MoCo(), stays=["queue"], travel_frozen=True, rounds=2)
    assert run.kept[0]["net.queue"].abs().sum() > 0
    assert "net.teacher.1.weight" in run.server.shared


def test_accumulated_gradients_by_manual_optimisation_and_a_term_of_the_method():
    class Accumulating(Classifier):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            self.manual_backward(super().training_step(batch, batch_idx) / 2)
            if batch_idx % 2 or self.trainer.is_last_batch:
                self.optimizers().step()
                self.optimizers().zero_grad()

    assert fit(Accumulating(), method=SCAFFOLD).server.control.abs().sum() > 0


def test_lists_of_boxes_of_any_number():
    class Detector(Own):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(4, 4)

        def training_step(self, batch, batch_idx):
            _, boxes = batch
            assert isinstance(boxes, tuple)
            return sum(F.smooth_l1_loss(self.line(one["box"]), one["box"] + 1) for one in boxes)

        test_step = training_step

    samples = [
        [(torch.zeros(3, 4 + i, 5), {"box": torch.rand(1 + i % 3, 4)}) for i in range(n)]
        for n in (6, 4)
    ]
    loaded = LoaderData(
        samples, batch_size=2, collate_fn=lambda some: tuple(zip(*some, strict=True))
    )
    with pytest.warns(UserWarning, match="Detector logs no number"):
        run = fit(Detector(), loaded)
    assert run.history[-1]["train/local/loss"] > 0


def test_cox_of_a_whole_batch_and_a_private_step():
    class Cox(Own):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(64, 1)

        def loss(self, batch):
            risk, time = self.line(batch[0].flatten(1))[:, 0], batch[1]
            return -(risk - risk[time.argsort(descending=True)].logcumsumexp(0)).mean()

        def training_step(self, batch, batch_idx):
            return self.loss(batch)

        def validation_step(self, batch, batch_idx):
            self.log("val/cox_loss", self.loss(batch), batch_size=len(batch[1]))

    run = fit(Cox())
    assert run.scores == {"cox_loss": False}


def test_three_dimensions_and_a_wrapped_module():
    class Volume(Own):
        def __init__(self, inner):
            super().__init__()
            self.save_hyperparameters(ignore="inner")
            self.inner, self.conv = inner, nn.Conv3d(1, 2, 3, padding=1)

        def training_step(self, batch, batch_idx):
            x = batch[0].unflatten(-1, (4, 2)).permute(0, 1, 4, 2, 3)
            flat = self.inner.net(batch[0])
            return self.conv(x).square().mean() + flat.square().mean()

        def test_step(self, batch, batch_idx):
            self.log("test-dice", batch[0].mean())

    run = fit(Volume(Classifier()))
    assert run.scores == {"dice": True}


def test_what_a_module_reads_of_its_trainer_is_true():
    seen = []

    class Reading(Classifier):
        def on_train_start(self):
            trainer = self.trainer
            seen.append(
                (
                    trainer.max_epochs,
                    trainer.num_training_batches,
                    trainer.estimated_stepping_batches,
                    trainer.is_global_zero,
                    self.global_step,
                    self.current_epoch,
                )
            )

        def on_train_epoch_end(self):
            seen.append((self.current_epoch, self.global_step))

    fit(Reading(), data(sizes=(9, 0, 0)), rounds=2, epochs=3)
    once = [(3, 2, 6, True, 0, 0), (0, 2), (1, 4), (2, 6)]
    assert seen == [*once, *once]


def test_what_steps_log_is_recorded():
    class Logging(Classifier):
        def training_step(self, batch, batch_idx):
            self.log_dict({"two": 2.0, "batch": float(batch_idx)}, on_step=True)
            self.log("epoch_mean", float(batch_idx), on_epoch=True, on_step=False, batch_size=1)
            return {"loss": super().training_step(batch, batch_idx), "more": batch_idx}

    row = fit(Logging(), data(sizes=(10, 0, 0)), gradient_clip_val=0.5).history[-1]
    assert (row["log/two"], row["log/batch"], row["log/epoch_mean"]) == (2.0, 0.5, 0.5)


def test_a_step_that_returns_nothing_is_skipped():
    class Skipping(Classifier):
        def training_step(self, batch, batch_idx):
            return None if batch_idx == 0 else super().training_step(batch, batch_idx)

    row = fit(Skipping(), data(sizes=(10, 10, 0))).history[-1]
    assert row["train/steps"] == 2


def test_the_users_optimiser_counts_if_given_and_a_schedule_by_round():
    class Unable(Classifier):
        def configure_optimizers(self):
            raise AssertionError("not asked")

    given = {"optimizer": lambda parameters: torch.optim.SGD(parameters, 0.1)}
    runs = []
    for decay in (1.0, 0.5):
        with scoped(0):
            runs.append(fit(Unable(), rounds=2, lr_decay=decay, **given))
    assert runs[0].fingerprint != runs[1].fingerprint


def test_transforms_of_the_users_data_module_run_and_its_columns_name_clients():
    class Pairs(L.LightningDataModule):
        def setup(self, stage=None):
            parts = sets((12, 8))
            self.samples = [
                {"x": x, "y": y, "site": name}
                for name, part in zip(("b", "a"), parts, strict=True)
                for x, y in part
            ]

        def train_dataloader(self):
            return DataLoader(self.samples, 4, shuffle=True, drop_last=True)

        def test_dataloader(self):
            return DataLoader(self.samples[::4], 4)

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return {**batch, "twice": True}

    class Named(Classifier):
        def training_step(self, batch, batch_idx):
            assert batch["twice"]
            assert set(batch["site"]) in ({"a"}, {"b"})
            assert self.trainer.datamodule.samples
            return F.cross_entropy(self(batch["x"]), batch["y"])

        def test_step(self, batch, batch_idx):
            self.log("acc", (self(batch["x"]).argmax(1) == batch["y"]).float().mean())

    made = LoaderData(Pairs(), client="site")
    run = fit(Named(), made)
    assert (made.client_names, made.batch_size, made.drop_last) == (["a", "b"], 4, True)
    assert [len(made.split(c, "train")) for c in range(2)] == [8, 12]
    assert 0 <= run.history[-1]["test/personal/acc"] <= 1
    by_function = LoaderData(Pairs(), client=lambda sample: sample["site"])
    by_function.setup()
    assert by_function.description() == made.description()


def test_the_other_package_of_lightning():
    class Old(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def training_step(self, batch, batch_idx):
            return self.net(batch[0]).square().mean()

        def validation_step(self, batch, batch_idx):
            self.log("val_rmse", self.net(batch[0]).square().mean().sqrt())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    assert fit(Old()).scores == {"rmse": False}


def test_a_network_is_trained_on_the_users_loaders_if_they_have_a_task():
    from pfl.core.task import Classification

    run = fit(mlp(), data(task=Classification(), outputs=3, val_fraction=0.0))
    assert run.scores["acc"]


def test_layers_of_configure_model_are_trained_and_those_of_setup_refused():
    class Late(Classifier):
        def __init__(self, hook):
            super().__init__()
            self.late, self.hook = None, hook

        def configure_model(self):
            if self.late is None and self.hook == "configure_model":
                self.late = nn.Linear(3, 3)

        def setup(self, stage):
            if self.late is None:
                self.late = nn.Linear(3, 3)

        def forward(self, x):
            return self.late(self.net(x))

    assert "net.late.weight" in fit(Late("configure_model")).server.shared
    with pytest.raises(TypeError, match=r"Late makes the entry 'late.bias' while it is set up"):
        fit(Late("setup"))


def test_a_run_that_is_interrupted_in_a_step_is_saved_and_can_be_interrupted_again(tmp_path):
    class Interrupted(Classifier):
        def training_step(self, batch, batch_idx):
            if stop.is_set():
                stop.clear()
                raise KeyboardInterrupt
            return super().training_step(batch, batch_idx)

    class Stop(Callback):
        def on_round_end(self, run, result):
            stop.set()

    stop, before = Event(), signal.getsignal(signal.SIGINT)
    with scoped(3):
        module = Interrupted()
    loop = FederatedLoop(rounds=2, progress=False, default_root_dir=str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        replace(loop, callbacks=[Stop()]).fit(FedAvg(copy.deepcopy(module)), data())
    assert signal.getsignal(signal.SIGINT) is before
    assert loop.fit(FedAvg(copy.deepcopy(module)), data(), "last").round == 2


def test_scores_can_be_declared():
    class Declaring(Classifier):
        scores = {"loss": False}  # noqa: RUF012

    assert fit(Declaring()).scores == {"loss": False}


class Endless(IterableDataset):
    def __iter__(self):
        return iter([torch.zeros(2)])


def weighted(part):
    return DataLoader(part, 4, sampler=WeightedRandomSampler([1.0] * len(part), len(part)))


REFUSED = {
    "features": (
        lambda: FedAS(Classifier()),
        "FedAS compares features: give Classifier a method features",
    ),
    "outputs": (lambda: APFL(Classifier()), "APFL computes its own loss .* nn.Module"),
    "two networks": (lambda: FML(Classifier()), "FML computes its own loss"),
    "samples": (lambda: FedEM(Classifier()), "FedEM needs losses of single samples"),
    "distillation": (lambda: PFAKD(Classifier()), "PFAKD compares features"),
    "contrast": (lambda: MOON(Classifier()), "MOON compares features"),
    "parts": (lambda: fit(Classifier(), method=FedPer), "personal_layers"),
    "no task": (lambda: fit(toy()), "the data have no task"),
    "manual and given": (
        lambda: fit(GAN(), optimizer=lambda some: torch.optim.SGD(some, 0.1)),
        "steps its optimisers itself",
    ),
    "two schedules": (
        lambda: fit(
            type("Scheduled", (Classifier,), {"configure_optimizers": _scheduled})(),
            lr_decay=0.9,
            rounds=2,
        ),
        "schedulers of its own",
    ),
    "endless": (lambda: fit(Classifier(), LoaderData([Endless()])), "no map-style data set"),
    "sampler": (
        lambda: fit(Classifier(), LoaderData([weighted(one) for one in sets()])),
        "sampler WeightedRandomSampler",
    ),
    "one loader": (lambda: fit(Classifier(), LoaderData(_Alone())), "name the client"),
    "plateau": (
        lambda: fit(_plateau(), data(val_fraction=0.0)),
        "val_loss.*which is not available",
    ),
}


class _Alone(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(sets()[0], 4)


def _scheduled(self):
    optimizer = torch.optim.SGD(self.parameters(), 0.1)
    return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def _plateau():
    class Plateau(Classifier):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 0.1)
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"},
            }

    return Plateau()


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(case):
    make, told = REFUSED[case]
    with pytest.raises(Exception, match=told) as raised:
        make()
    assert "\n" not in str(raised.value).strip()
