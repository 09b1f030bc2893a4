"""Federated data modules, each dividing one data set among clients."""

from typing import TYPE_CHECKING

from pfl.imports.lazy import lazy

if TYPE_CHECKING:
    from datamodules.arrays import ArrayData as ArrayData
    from datamodules.arrays import Arrays as Arrays
    from datamodules.augment import Augmentation as Augmentation
    from datamodules.augment import CropFlip as CropFlip
    from datamodules.base import FederatedDataModule as FederatedDataModule
    from datamodules.digits import Digits as Digits
    from datamodules.femnist import FEMNIST as FEMNIST
    from datamodules.filedata import FileData as FileData
    from datamodules.filedata import Listing as Listing
    from datamodules.flbench import FLBenchFolder as FLBenchFolder
    from datamodules.folder import PACS as PACS
    from datamodules.folder import CIFAR100Folder as CIFAR100Folder
    from datamodules.folder import DomainFolder as DomainFolder
    from datamodules.folder import ImageFolder as ImageFolder
    from datamodules.ham10000 import HAM10000 as HAM10000
    from datamodules.loader_data import LoaderData as LoaderData
    from datamodules.mnist1d import MNIST1D as MNIST1D
    from datamodules.organs import SyntheticOrgans as SyntheticOrgans
    from datamodules.pairs import PairFolder as PairFolder
    from datamodules.partition.partitioner import IID as IID
    from datamodules.partition.partitioner import ByColumn as ByColumn
    from datamodules.partition.partitioner import ByDomain as ByDomain
    from datamodules.partition.partitioner import ClientDirichlet as ClientDirichlet
    from datamodules.partition.partitioner import Dirichlet as Dirichlet
    from datamodules.partition.partitioner import Partitioner as Partitioner
    from datamodules.partition.partitioner import Shards as Shards
    from datamodules.partition.pfllib import PFLlibDirichlet as PFLlibDirichlet
    from datamodules.partition.slices import ConceptDrift as ConceptDrift
    from datamodules.partition.slices import FixedClasses as FixedClasses
    from datamodules.partition.slices import QuantitySkew as QuantitySkew
    from datamodules.partition.unseen import Unseen as Unseen
    from datamodules.pfllib import PFLlibFolder as PFLlibFolder
    from datamodules.reader import ClientData as ClientData
    from datamodules.shakespeare import Shakespeare as Shakespeare
    from datamodules.sun397 import SUN397 as SUN397
    from datamodules.synthetic import Synthetic as Synthetic
    from datamodules.tables import *
    from datamodules.targets import Catalogue as Catalogue
    from datamodules.targets import Targets as Targets
    from datamodules.tasks.segmentation import Segmentation as Segmentation
    from datamodules.tasks.survival import Survival as Survival
    from datamodules.tensors import TensorData as TensorData
    from datamodules.torch_dataset import TorchDataset as TorchDataset
    from datamodules.torchvision_sets import CIFAR10 as CIFAR10
    from datamodules.torchvision_sets import CIFAR100 as CIFAR100
    from datamodules.torchvision_sets import MNIST as MNIST
    from datamodules.torchvision_sets import STL10 as STL10
    from datamodules.torchvision_sets import FashionMNIST as FashionMNIST
else:
    # The project itself imports nothing from here.
    __all__, __getattr__, __dir__ = lazy(__name__, __file__)
