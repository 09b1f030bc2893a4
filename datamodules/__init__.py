"""Federated data modules: one data set, split over clients, held as one tensor."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datamodules.arrays import ArrayData, Arrays
    from datamodules.augment import Augmentation, CropFlip
    from datamodules.base import FederatedDataModule
    from datamodules.digits import Digits
    from datamodules.femnist import FEMNIST
    from datamodules.filedata import FileData, Listing
    from datamodules.folder import PACS, DomainFolder, ImageFolder
    from datamodules.ham10000 import HAM10000
    from datamodules.partition import (
        IID,
        ByDomain,
        ClientDirichlet,
        Dirichlet,
        Partitioner,
        Shards,
    )
    from datamodules.slices import ConceptDrift, FixedClasses, QuantitySkew
    from datamodules.sun397 import SUN397
    from datamodules.synthetic import Synthetic
    from datamodules.targets import Catalogue, Targets
    from datamodules.torchvision_sets import CIFAR10, CIFAR100, STL10, FashionMNIST

# Imported on first use: a config that names one data set does not pay for the others.
_NAMES = {
    "arrays": ("ArrayData", "Arrays"),
    "augment": ("Augmentation", "CropFlip"),
    "base": ("FederatedDataModule",),
    "digits": ("Digits",),
    "femnist": ("FEMNIST",),
    "filedata": ("FileData", "Listing"),
    "folder": ("PACS", "DomainFolder", "ImageFolder"),
    "ham10000": ("HAM10000",),
    "partition": ("IID", "ByDomain", "ClientDirichlet", "Dirichlet", "Partitioner", "Shards"),
    "slices": ("ConceptDrift", "FixedClasses", "QuantitySkew"),
    "sun397": ("SUN397",),
    "synthetic": ("Synthetic",),
    "targets": ("Catalogue", "Targets"),
    "torchvision_sets": ("CIFAR10", "CIFAR100", "STL10", "FashionMNIST"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "FEMNIST",
    "HAM10000",
    "IID",
    "PACS",
    "STL10",
    "SUN397",
    "ArrayData",
    "Arrays",
    "Augmentation",
    "ByDomain",
    "Catalogue",
    "ClientDirichlet",
    "ConceptDrift",
    "CropFlip",
    "Digits",
    "Dirichlet",
    "DomainFolder",
    "FashionMNIST",
    "FederatedDataModule",
    "FileData",
    "FixedClasses",
    "ImageFolder",
    "Listing",
    "Partitioner",
    "QuantitySkew",
    "Shards",
    "Synthetic",
    "Targets",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
