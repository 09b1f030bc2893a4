"""Networks, each split into backbone and head, and their initial values and channels."""

from lightning_modules.nets.normalised import CNN8, ResNet18
from lightning_modules.nets.plain import CNN2, CNN3, CNN5, MLP, FashionCNN, LeNet5
from lightning_modules.nets.split import Projected, SplitNet, last_layers
from lightning_modules.nets.transformer import ViT

__all__ = [
    "CNN2",
    "CNN3",
    "CNN5",
    "CNN8",
    "MLP",
    "FashionCNN",
    "LeNet5",
    "Projected",
    "ResNet18",
    "SplitNet",
    "ViT",
    "last_layers",
]
