"""Small federations whose batches have the forms that the modules take."""

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from datamodules import LoaderData
from pfl.core.seeds import generator
from tests.any_module import modules

SIZES = (9, 6, 5)


def sets(sizes=SIZES):
    rng = generator(0, "any module")
    return [
        TensorDataset(
            torch.randn(size, 1, 8, 8, generator=rng), torch.randint(3, (size,), generator=rng)
        )
        for size in sizes
    ]


def as_dictionary(samples):
    x, y = default_collate(samples)
    return {"image": x, "site": ["a"] * len(y)}


def as_views(samples):
    x, y = default_collate(samples)
    return [(x + 0.1 * torch.randn(x.shape), x.flip(-1))], y


def as_two_views(samples):
    (views,), y = as_views(samples)
    return list(views), y


def as_arguments(samples):
    x, y = default_collate(samples)
    return {"pixels": x, "labels": y}


FORMS = {
    modules.UNet: as_dictionary,
    modules.SimCLR: as_two_views,
    modules.Transformer: as_arguments,
}


def data(kind=None, sizes=SIZES, **options):
    """Return the data of one module, with a loader for each client."""
    form = FORMS.get(kind, default_collate)
    loaders = [
        # A loader of nothing cannot shuffle.
        DataLoader(one, 4, shuffle=True, collate_fn=form) if len(one) else one
        for one in sets(sizes)
    ]
    return LoaderData(loaders, **{"test_fraction": 0.2, "val_fraction": 0.2, **options})


class Sites(L.LightningDataModule):
    """One loader for each site, for a configuration.

    Args:
        kind: Name of the module that reads the batches.
    """

    def __init__(self, kind: str, batch_size: int = 4):
        super().__init__()
        self.kind, self.batch_size = kind, batch_size

    def setup(self, stage=None):
        self.sets = sets()

    def train_dataloader(self):
        form = FORMS.get(getattr(modules, self.kind), default_collate)
        return [
            DataLoader(one, self.batch_size, shuffle=True, collate_fn=form) for one in self.sets
        ]
