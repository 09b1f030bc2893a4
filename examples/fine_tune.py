"""One client's model outside the federation: export, load, fine-tune under a plain Trainer."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import lightning
import torch

from datamodules import Digits, Dirichlet
from lightning_modules import MLP, FedPer
from pfl import FederatedLoop
from pfl.core.seeds import scoped

sgd = partial(torch.optim.SGD, lr=0.05)
data = Digits(num_clients=5, partition=Dirichlet(0.3), batch_size=16, client=2)


def network() -> MLP:
    """Return the network with its initial weights."""
    with scoped(1):
        return MLP(data.outputs, data.input_shape, hidden=32)


with TemporaryDirectory() as folder:
    loop = FederatedLoop(rounds=3, progress=False, default_root_dir=folder, name="digits")
    method = FedPer(network(), optimizer=sgd)
    loop.fit(method, data)
    file = Path(folder, "client2.ckpt")
    loop.export(method, data, "last", client=2, file=file)
    model = FedPer.load_from_checkpoint(file, net=network(), optimizer=sgd)

# From here on it is an ordinary LightningModule, and with ``client=2`` above the data are an
# ordinary LightningDataModule of client 2.
trainer = lightning.Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)


def accuracy() -> float:
    """Return the share of client 2's test samples that the model predicts correctly."""
    with torch.no_grad():
        logits = torch.cat([model.eval()(x) for x, *_ in data.test_dataloader()])
    return float((logits.argmax(1) == data.split(2, "test").targets).float().mean())


before = accuracy()
with scoped(2):  # the Trainer shuffles with torch's default stream
    trainer.fit(model.train(), data)
after = accuracy()
print(f"accuracy of client 2: {before:.2f} as exported, {after:.2f} after five epochs of its own")
