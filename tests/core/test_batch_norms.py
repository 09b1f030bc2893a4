"""Batch norms, found by their type."""

import pytest
from torch import nn

from pfl.core.batch_norms import batch_norms


@pytest.mark.parametrize(
    ("layer", "is_one"),
    [
        (nn.BatchNorm1d(4), True),
        (nn.BatchNorm2d(4), True),
        (nn.BatchNorm3d(4), True),
        (nn.SyncBatchNorm(4), True),
        (type("Own", (nn.BatchNorm1d,), {})(4), True),
        (nn.InstanceNorm1d(4), False),
        (nn.GroupNorm(2, 4), False),
        (nn.LayerNorm(4), False),
        (nn.Linear(4, 4), False),
    ],
)
def test_what_is_one(layer, is_one):
    assert batch_norms(nn.Sequential(layer)) == (("0",) if is_one else ())
    # A module may be one itself.
    assert batch_norms(layer) == (("",) if is_one else ())
