"""Your own network: a backbone and a head, which methods can share or keep separately."""

from functools import partial

import torch
from torch import nn

from datamodules import Digits, Dirichlet
from lightning_modules import FedPer
from lightning_modules.nets import SplitNet
from pfl import FederatedLoop
from pfl.core.seeds import scoped


class SmallNet(SplitNet):
    """Two convolutions and a mean over the image.

    Args:
        num_classes: Outputs.
        width: Channels of both convolutions.
    """

    def __init__(self, num_classes: int, width: int = 16) -> None:
        backbone = nn.Sequential(  # (B, 1, H, W) -> (B, width)
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        super().__init__(backbone, nn.Linear(width, num_classes))


data = Digits(num_clients=5, partition=Dirichlet(0.3), batch_size=16)
with scoped(1):
    net = SmallNet(data.outputs)
method = FedPer(net, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9))
run = FederatedLoop(rounds=5, progress=False).fit(method, data)
print("travels:", *method.shared_names(), sep="\n  ")
print("stays:", *method.kept_names(), sep="\n  ")
print(f"accuracy {run.summary['test/personal/acc/last']:.2f}")
