"""A task of your own: the depth of each pixel, in metres. Shown in docs/own_task.md."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from datamodules import IID, TensorData
from lightning_modules import FedPer, UNet
from pfl import FederatedLoop
from pfl.core.task import Task


@dataclass(frozen=True, repr=False)
class Depth(Task):
    """The depth of each pixel: (n, 1, H, W) metres and outputs, absolute error."""

    scores_better = {"mae": False, "rmse": False}  # noqa: RUF012
    scores_within = {"mae": "[0, inf)", "rmse": "[0, inf)"}  # noqa: RUF012
    loss_name = "l1"

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B,) losses."""
        return (outputs - y).abs().flatten(1).mean(1)

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return (B, 2): mean absolute and mean squared error of each image."""
        error = (outputs - y).flatten(1)
        return torch.stack([error.abs().mean(1), error.square().mean(1)], dim=1)

    def scores_of_rows(self, rows: Tensor) -> Tensor:
        """Return the scores from the rows of all images."""
        mae, mse = rows.mean(0)
        return torch.stack([mae, mse.sqrt()])


if __name__ == "__main__":
    depth = 1 + 4 * torch.rand(60, 1, 1, 1) + torch.rand(60, 1, 16, 16)
    images = 1 / depth + 0.05 * torch.randn(60, 1, 16, 16)
    data = TensorData({"x": images, "y": depth}, 3, IID(), task=Depth(), batch_size=8)
    method = FedPer(UNet(1, (1, 16, 16)), optimizer=partial(torch.optim.Adam, lr=0.01), epochs=2)
    run = FederatedLoop(rounds=5, progress=False).fit(method, data)
    for row in run.history:
        print(f"round {row['round']}: {row['test/personal/mae']:.2f} m")
