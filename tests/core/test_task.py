"""The tasks' losses and scores, by hand."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_calibration_error,
    multiclass_f1_score,
)

from pfl.core.criteria import cross_entropies, mean_cross_entropy
from pfl.core.seeds import generator
from pfl.core.task import Classification, MultiLabel, Regression


def named(task, outputs, y):
    return dict(zip(task.scores_better, task.scores(outputs, y).tolist(), strict=True))


def test_multi_label_by_hand():
    """Two samples of two labels, logits of 0.8 or 0.2 each; one label of four is wrong.

    Label 0 has F1 2 (1/2 * 1) / (3/2) = 2/3, label 1 has 1.
    """
    outputs = torch.tensor([[0.8, 0.8], [0.8, 0.2]]).logit()
    y = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    assert named(MultiLabel(), outputs, y) == pytest.approx(
        {
            "acc": 3 / 4,
            "loss": -(3 * math.log(0.8) + math.log(0.2)) / 4,
            "f1": (2 / 3 + 1) / 2,
            "exact": 1 / 2,
        },
        abs=1e-6,
    )


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("own", "reduction"), [(cross_entropies, "none"), (mean_cross_entropy, "mean")]
)
def test_cross_entropies_are_those_of_pytorch_in_a_stack_too(
    own, reduction, dtype, autocast, stacked
):
    """To a few units of the dtype, as its kernels are rounded differently on other processors.

    PyTorch's own lose half of the digits in a stack under autocast.
    """
    rng = generator(1)
    logits = (5 * torch.randn(7, 10, generator=rng)).to(dtype)
    if reduction == "none":
        logits[0, 3], logits[1] = math.inf, math.nan
    y, weight = torch.randint(10, (7,), generator=rng), torch.rand(7, generator=rng)

    def slopes(losses, call):
        leaf = logits.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            values = call(losses)(leaf, y)
        (values * weight).sum().backward()
        return values.detach(), leaf.grad

    def in_a_stack(losses):
        return lambda leaf, y: vmap(losses)(leaf[None], y[None])[0]

    alone = partial(F.cross_entropy, reduction=reduction)
    expected = slopes(alone, lambda losses: losses)
    found = slopes(own, in_a_stack if stacked else lambda losses: losses)
    for one, other in zip(found, expected, strict=True):
        few = 4 * torch.finfo(other.dtype).eps
        torch.testing.assert_close(one, other, rtol=few, atol=few, equal_nan=True)


@pytest.mark.parametrize(
    ("task", "y"),
    [
        (Classification(), torch.tensor([0, 1, 1, 0])),
        (MultiLabel(), torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])),
        (Regression(), torch.tensor([[1.0, 0.0], [3.0, 0.5], [1.0, 1.0], [9.0, 9.0]])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_padding_does_not_count(task, y):
    outputs = torch.tensor([[0.3, -1.0], [0.1, 2.0], [0.0, 0.5], [5.0, -5.0]])
    whole = task.loss(outputs[:3], y[:3])
    assert task.loss(outputs, y, torch.tensor([1.0, 1.0, 1.0, 0.0])).isclose(whole)
    assert task.sample_losses(outputs[:3], y[:3]).mean().isclose(whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(seed=st.integers(0, 2**31), samples=st.integers(1, 60), classes=st.integers(2, 9))
def test_scores_are_those_of_torchmetrics(dtype, seed, samples, classes):
    """Bit for bit in single precision, which is all that it computes in."""
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(samples, classes, generator=rng, dtype=dtype)
    labels = torch.randint(0, classes, (samples,), generator=rng)
    found = Classification().scores(logits, labels)
    assert found.dtype == dtype
    options = {"num_classes": classes, "validate_args": False}
    expected = torch.stack(
        [
            multiclass_accuracy(logits, labels, average="micro", **options),
            torch.nn.functional.cross_entropy(logits, labels),
            multiclass_f1_score(logits, labels, average="macro", **options),
            multiclass_calibration_error(logits.softmax(-1), labels, **options),
        ]
    )
    if dtype == torch.float32:
        assert torch.equal(found, expected)
    torch.testing.assert_close(found, expected.to(dtype), rtol=0, atol=1e-6)


@pytest.mark.parametrize("task", [Classification(), MultiLabel(), Regression()], ids=repr)
@given(seed=st.integers(0, 2**31), sizes=st.lists(st.integers(1, 70), min_size=1, max_size=6))
def test_models_that_are_scored_together_get_the_scores_they_get_alone(task, seed, sizes):
    """Bit for bit, a row that is not a number included; most classes are absent from most."""
    rng = torch.Generator().manual_seed(seed)
    models = []
    for size in sizes:
        outputs = 3 * torch.randn(size, 40, generator=rng)
        outputs[0, seed % 40] = math.nan if seed % 2 else 0.0
        labels = torch.randint(0, 40, (size,), generator=rng)
        kind = type(task)
        y = labels if kind is Classification else torch.nn.functional.one_hot(labels, 40).float()
        models.append((outputs, y))
    alone = torch.stack([task.scores(*model) for model in models])
    assert torch.equal(task.scores_of(models).nan_to_num(9), alone.nan_to_num(9))


def test_scores_of_double_precision_are_exact_to_its_digits():
    """Two of three right, and a confidence of 1 / (1 + 1 / e) in all of them."""
    logits = torch.tensor([[1.0, 0.0]] * 3, dtype=torch.float64)
    acc, _, f1, ece = Classification().scores(logits, torch.tensor([0, 0, 1])).tolist()
    assert acc == pytest.approx(2 / 3, rel=1e-15)
    assert f1 == pytest.approx(2 * 2 / 5 / 2, rel=1e-15)
    assert ece == pytest.approx(1 / (1 + math.exp(-1)) - 2 / 3, rel=1e-13)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("task", [Classification(), MultiLabel(), Regression()], ids=repr)
def test_a_model_with_an_output_that_is_not_finite_has_no_score(task, bad):
    """The other model, which is scored together with it, keeps its scores."""
    good = torch.tensor([[1.0, 0.0], [0.0, 9.0]])
    y = torch.tensor([1, 1]) if task.has_classes else torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    broken = good.clone()
    broken[0, 0] = bad
    found = task.scores_of([(broken, y), (good, y)])
    assert found[0].isfinite().sum() == 0
    assert torch.equal(found[1], task.scores(good, y))
    assert found[1].isfinite().all()
