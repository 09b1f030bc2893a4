"""Federated data modules: one data set, split over clients, held as one tensor."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datamodules.augment import CropFlip
    from datamodules.base import FederatedDataModule
    from datamodules.digits import Digits
    from datamodules.folder import ImageFolder
    from datamodules.partition import IID, Dirichlet, Partitioner

# Imported on first use: a config that names one data set does not pay for the others.
_HOMES = {
    "CropFlip": "augment",
    "FederatedDataModule": "base",
    "Digits": "digits",
    "ImageFolder": "folder",
    "IID": "partition",
    "Dirichlet": "partition",
    "Partitioner": "partition",
}

__all__ = [
    "IID",
    "CropFlip",
    "Digits",
    "Dirichlet",
    "FederatedDataModule",
    "ImageFolder",
    "Partitioner",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
