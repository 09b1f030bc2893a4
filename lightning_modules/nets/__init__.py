"""Networks, each split into backbone and head, and tools for their initial values and channels."""

from lightning_modules.nets.adapted import FrozenParts, LoRA
from lightning_modules.nets.normalised import CNN8, ResNet18
from lightning_modules.nets.plain import CNN2, CNN3, CNN5, MLP, FashionCNN, LeNet5
from lightning_modules.nets.split import Projected, SplitNet, last_layers
from lightning_modules.nets.text import TextNet
from lightning_modules.nets.timm import Timm
from lightning_modules.nets.transformer import ViT

__all__ = [
    "CNN2",
    "CNN3",
    "CNN5",
    "CNN8",
    "MLP",
    "FashionCNN",
    "FrozenParts",
    "LeNet5",
    "LoRA",
    "Projected",
    "ResNet18",
    "SplitNet",
    "TextNet",
    "Timm",
    "ViT",
    "last_layers",
]
