"""Class means, and tables of prototypes."""

from __future__ import annotations

import torch

from lightning_modules.steps.prototypes import class_means, class_sums
from tests.helpers.draws import batch

CLASSES = 4


def test_class_sums_add_up_over_batches():
    """Sums over pieces give the arithmetic mean, counts sum to n."""
    z, _, y = batch(9)
    pieces = [class_sums(z[i : i + 4], y[i : i + 4], CLASSES) for i in range(0, 9, 4)]
    sums, counts = (torch.stack(part).sum(0) for part in zip(*pieces, strict=True))
    assert float(counts.sum()) == 9
    for label in y.unique().tolist():
        torch.testing.assert_close(class_means(sums, counts)[label], z[y == label].mean(0))


def test_a_class_without_samples_has_mean_zero():
    means = class_means(*class_sums(torch.ones(2, 3), torch.tensor([1, 1]), 3))
    assert means.tolist() == [[0.0] * 3, [1.0] * 3, [0.0] * 3]
