"""What holds for every LightningModule: the numbers of its own Trainer, on all engines."""

import gc

import lightning as L
import pytest
import torch
import torch.nn.functional as F

from lightning_modules import Ditto, FedAvg, FedPer, FedProx
from pfl import FederatedLoop
from pfl.core.seeds import scoped
from tests.any_module.data import data
from tests.any_module.modules import GAN, SimCLR, Transformer
from tests.helpers.extras import LOOPBACK
from tests.helpers.toy import blobs, mlp


def test_a_module_that_computes_what_a_task_computes_has_the_builtin_bits():
    class Same(L.LightningModule):
        def __init__(self):
            super().__init__()
            net = mlp()
            self.backbone, self.head = net.backbone, net.head

        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self.head(self.backbone(batch[0])), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    loop = FederatedLoop(rounds=2, progress=False, engine="sequential")
    for method in (FedAvg, FedPer):
        built = method(mlp(), optimizer=lambda params: torch.optim.SGD(params, 0.1))
        with pytest.warns(UserWarning, match="Same logs no number"):
            own = loop.fit(method(Same()), blobs())
        assert own.fingerprint == loop.fit(built, blobs()).fingerprint


@pytest.mark.parametrize(
    "engine",
    [
        "threads",
        "processes",
        LOOPBACK,
        pytest.param("auto", marks=pytest.mark.long),
        pytest.param("vectorised", marks=pytest.mark.long),
    ],
)
def test_every_engine_gives_the_sequential_bits(engine):
    for method, module in ((Ditto, SimCLR), (FedProx, GAN)):
        runs = []
        for one in ("sequential", engine):
            with scoped(3):
                made = method(module(), epochs=2)
            loop = FederatedLoop(rounds=2, progress=False, engine=one)
            runs.append(loop.fit(made, data(module)))
        assert runs[0].fingerprint == runs[1].fingerprint
        kinds = ("test/", "train/local", "log/")
        first, second = (
            {name: value for name, value in run.history[-1].items() if name.startswith(kinds)}
            for run in runs
        )
        assert first == second


def test_a_resumed_run_has_the_bits_of_one_without_a_break(tmp_path):
    def fit(rounds, ckpt_path=None):
        with scoped(3):
            made = FedPer(Transformer(), personal_layers=1, persist_optimizer=True)
        loop = FederatedLoop(rounds=rounds, progress=False, default_root_dir=str(tmp_path))
        return loop.fit(made, data(Transformer), ckpt_path)

    whole = fit(3)
    fit(1)
    assert fit(3, "last").fingerprint == whole.fingerprint


def test_a_client_finds_no_attribute_of_another():
    """A counter beside the state dict begins anew with each job, and scores with each test."""
    seen = []

    class Counting(Transformer):
        def __init__(self):
            super().__init__()
            self.steps, self.kept = 0, {"last": []}

        def on_train_batch_start(self, batch, batch_idx):
            seen.append((self.steps, len(self.kept["last"]), self.trainer.global_step))
            self.steps += 1
            self.kept["last"].append(1)

    FederatedLoop(rounds=2, progress=False).fit(FedAvg(Counting()), data(Transformer))
    assert {steps for steps, *_ in seen} == {0, 1}
    assert all(steps == others == number for steps, others, number in seen)


def test_memory_is_flat_in_the_number_of_test_samples():
    """No outputs are held: the tensors alive in a test do not grow with the samples."""
    most = []

    class Watched(Transformer):
        def test_step(self, batch, batch_idx):
            super().test_step(batch, batch_idx)
            if batch_idx % 8 == 3:
                gc.collect()  # What earlier tests have let go of is not held.
                held = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
                most.append((batch_idx, sum(one.numel() for one in held)))

    FederatedLoop(rounds=1, progress=False).fit(
        FedAvg(Watched()), data(Transformer, (4, 240), eval_batch_size=4)
    )
    sizes = dict(most)
    assert max(sizes) >= 11
    assert max(sizes.values()) - min(sizes.values()) < 1000
