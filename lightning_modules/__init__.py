"""Clients as LightningModules: the base class, one file per method, and their building blocks."""

from typing import TYPE_CHECKING

from pfl.imports.lazy import lazy

if TYPE_CHECKING:
    from lightning_modules.apfl import APFL as APFL
    from lightning_modules.apple import APPLE as APPLE
    from lightning_modules.base import ClientModule as ClientModule
    from lightning_modules.cd2_pfed import CD2PFed as CD2PFed
    from lightning_modules.cfl import CFL as CFL
    from lightning_modules.ditto import Ditto as Ditto
    from lightning_modules.dual_lora import DualLoRA as DualLoRA
    from lightning_modules.fedala import FedALA as FedALA
    from lightning_modules.fedamp import FedAMP as FedAMP
    from lightning_modules.fedas import FedAS as FedAS
    from lightning_modules.fedas_variants import FedASVariant as FedASVariant
    from lightning_modules.fedavg import FedAvg as FedAvg
    from lightning_modules.fedavg import FedAvgP as FedAvgP
    from lightning_modules.fedbabu import FedBABU as FedBABU
    from lightning_modules.fedbn import FedBN as FedBN
    from lightning_modules.fedcac import FedCAC as FedCAC
    from lightning_modules.fedcp import FedCP as FedCP
    from lightning_modules.feddbe import FedDBE as FedDBE
    from lightning_modules.feddyn import FedDyn as FedDyn
    from lightning_modules.fedem import FedEM as FedEM
    from lightning_modules.fedfomo import FedFomo as FedFomo
    from lightning_modules.fedgh import FedGH as FedGH
    from lightning_modules.fedmd import FedMD as FedMD
    from lightning_modules.fedotp import FedOTP as FedOTP
    from lightning_modules.fedpac import FedPAC as FedPAC
    from lightning_modules.fedper import FedPer as FedPer
    from lightning_modules.fedphp import FedPHP as FedPHP
    from lightning_modules.fedproto import FedProto as FedProto
    from lightning_modules.fedprox import FedProx as FedProx
    from lightning_modules.fedprox import FedProxP as FedProxP
    from lightning_modules.fedrep import FedRep as FedRep
    from lightning_modules.fedrod import FedROD as FedROD
    from lightning_modules.fedsa_lora import FedSALoRA as FedSALoRA
    from lightning_modules.fedsimsup import FedSimSup as FedSimSup
    from lightning_modules.fedtgp import FedTGP as FedTGP
    from lightning_modules.fedyogi import FedYogi as FedYogi
    from lightning_modules.ffa_lora import FFALoRA as FFALoRA
    from lightning_modules.finetune import FineTuned as FineTuned
    from lightning_modules.flora import FLoRA as FLoRA
    from lightning_modules.fml import FML as FML
    from lightning_modules.freeze import Freeze as Freeze
    from lightning_modules.gpfl import GPFL as GPFL
    from lightning_modules.ifca import IFCA as IFCA
    from lightning_modules.knn_per import KNNPer as KNNPer
    from lightning_modules.lg_fedavg import LGFedAvg as LGFedAvg
    from lightning_modules.local import Local as Local
    from lightning_modules.lp_ft import LPFT as LPFT
    from lightning_modules.moon import MOON as MOON
    from lightning_modules.mr_mtl import MRMTL as MRMTL
    from lightning_modules.nets import CLIP as CLIP
    from lightning_modules.nets import CNN2 as CNN2
    from lightning_modules.nets import CNN3 as CNN3
    from lightning_modules.nets import CNN5 as CNN5
    from lightning_modules.nets import CNN8 as CNN8
    from lightning_modules.nets import MLP as MLP
    from lightning_modules.nets import FashionCNN as FashionCNN
    from lightning_modules.nets import FrozenParts as FrozenParts
    from lightning_modules.nets import GRUNet as GRUNet
    from lightning_modules.nets import LeNet5 as LeNet5
    from lightning_modules.nets import LoRA as LoRA
    from lightning_modules.nets import PerClient as PerClient
    from lightning_modules.nets import Pretrained as Pretrained
    from lightning_modules.nets import Projected as Projected
    from lightning_modules.nets import Ranks as Ranks
    from lightning_modules.nets import ResNet18 as ResNet18
    from lightning_modules.nets import SplitNet as SplitNet
    from lightning_modules.nets import TextNet as TextNet
    from lightning_modules.nets import Timm as Timm
    from lightning_modules.nets import TwoTowers as TwoTowers
    from lightning_modules.nets import UNet as UNet
    from lightning_modules.nets import ViT as ViT
    from lightning_modules.perfedavg import PerFedAvg as PerFedAvg
    from lightning_modules.pfakd import PFAKD as PFAKD
    from lightning_modules.pfedbayes import PFedBayes as PFedBayes
    from lightning_modules.pfedfda import PFedFDA as PFedFDA
    from lightning_modules.pfedhn import PFedHN as PFedHN
    from lightning_modules.pfedme import PFedMe as PFedMe
    from lightning_modules.pfedsim import PFedSim as PFedSim
    from lightning_modules.pfedvem import PFedVEM as PFedVEM
    from lightning_modules.pfedvem_variants import PFedVEMVariant as PFedVEMVariant
    from lightning_modules.scaffold import SCAFFOLD as SCAFFOLD
    from lightning_modules.univarfl import UniVarFL as UniVarFL
else:
    # Nothing inside the project imports from here.
    __all__, __getattr__, __dir__ = lazy(__name__, __file__)
