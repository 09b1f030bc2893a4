"""Networks, each split into backbone and head, and tools for their initial values and channels."""

from lightning_modules.nets.adapted import FrozenParts as FrozenParts
from lightning_modules.nets.adapted import LoRA as LoRA
from lightning_modules.nets.initial import orthogonalise as orthogonalise
from lightning_modules.nets.initial import redraw as redraw
from lightning_modules.nets.initial import seed_of as seed_of
from lightning_modules.nets.initial import zero_last_layer as zero_last_layer
from lightning_modules.nets.normalised import CNN8 as CNN8
from lightning_modules.nets.normalised import ResNet18 as ResNet18
from lightning_modules.nets.plain import CNN2 as CNN2
from lightning_modules.nets.plain import CNN3 as CNN3
from lightning_modules.nets.plain import CNN5 as CNN5
from lightning_modules.nets.plain import MLP as MLP
from lightning_modules.nets.plain import FashionCNN as FashionCNN
from lightning_modules.nets.plain import LeNet5 as LeNet5
from lightning_modules.nets.recurrent import GRUNet as GRUNet
from lightning_modules.nets.split import PerClient as PerClient
from lightning_modules.nets.split import Projected as Projected
from lightning_modules.nets.split import SplitNet as SplitNet
from lightning_modules.nets.split import last_layers as last_layers
from lightning_modules.nets.split import must_be_split as must_be_split
from lightning_modules.nets.split import must_have_linear_head as must_have_linear_head
from lightning_modules.nets.text import TextNet as TextNet
from lightning_modules.nets.timm import Timm as Timm
from lightning_modules.nets.transformer import ViT as ViT
