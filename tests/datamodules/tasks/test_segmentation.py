"""Segmentation: by hand, against MONAI, and as what it is of images of one pixel."""

from __future__ import annotations

import math

import pytest
import torch

from datamodules import IID, Segmentation, TensorData
from datamodules.tasks.surfaces import hausdorff
from lightning_modules import FedAvg
from pfl.core.seeds import generator, scoped
from pfl.core.task import Binary
from tests.helpers.federation import HEAVY, fit


def logits(guess, classes):
    return 9.0 * torch.nn.functional.one_hot(guess, classes).movedim(-1, 1).float()


def named(task, outputs, y):
    return dict(zip(task.scores_better, task.scores(outputs, y).tolist(), strict=True))


def blobs(classes, shape, samples=6, seed=0):
    """Guesses and masks of random boxes, in which some samples lack some structures."""
    rng = generator(seed, "boxes")
    found = torch.zeros(2, samples, *shape, dtype=torch.int64)
    for one in found.flatten(0, 1):
        for number in range(1, classes):
            if torch.rand((), generator=rng) < 0.7:
                low = [int(torch.randint(length - 3, (), generator=rng)) for length in shape]
                span = [int(torch.randint(2, 5, (), generator=rng)) for _ in shape]
                one[tuple(slice(a, a + b) for a, b in zip(low, span, strict=True))] = number
    return found[0], found[1]


def test_scores_by_hand():
    """A mask of 2 x 2 of 16 pixels; the guess is a row lower: half of it hits.

    dice 2 * 2 / (4 + 4); the guess's lower row is one pixel from the mask, the mask's upper row one
    from the guess: 0, 0, 1, 1 each way, whose 95 % quantile is 1. 12 of 16 pixels are right. The
    second image has no structure, and 16 right pixels.
    """
    y = torch.zeros(2, 4, 4, dtype=torch.int64)
    guess = y.clone()
    y[0, :2, :2], guess[0, 1:3, :2] = 1, 1
    scores = named(Segmentation(2), logits(guess, 2), y)
    assert scores["dice"] == 0.5
    assert scores["hd95"] == 1
    assert scores["acc"] == (12 / 16 + 1) / 2


def test_a_structure_that_is_not_guessed_is_as_far_as_the_diagonal():
    y = torch.zeros(1, 3, 4, dtype=torch.int64)
    y[0, 0, 0] = 1
    scores = named(Segmentation(2), logits(torch.zeros_like(y), 2), y)
    assert (scores["dice"], scores["hd95"]) == (0, 5)


def test_images_without_the_structure_lack_the_scores_and_the_rest_is_defined():
    y = torch.zeros(2, 4, 4, dtype=torch.uint8)
    scores = named(Segmentation(2), logits(torch.ones(2, 4, 4, dtype=torch.int64), 2), y)
    assert math.isnan(scores["dice"])
    assert math.isnan(scores["hd95"])
    assert scores["acc"] == 0
    assert scores["loss"] == pytest.approx(9, abs=1e-3)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("shape", [(12, 15), (9, 12, 10)])
def test_dice_and_distances_are_monais(classes, shape):
    pytest.importorskip("monai")
    from monai.metrics import DiceMetric, HausdorffDistanceMetric, compute_hausdorff_distance

    guess, y = blobs(classes, shape, samples=8)
    # MONAI has no distance of a structure that is not guessed; then ours is the diagonal.
    for number in range(1, classes):
        missed = (guess == number).flatten(1).sum(1) == 0
        guess[missed] = torch.where(y[missed] == number, number, guess[missed])
    one_hot = [torch.nn.functional.one_hot(m, classes).movedim(-1, 1) for m in (guess, y)]
    scores = named(Segmentation(classes), logits(guess, classes), y)
    dice = DiceMetric(include_background=False, reduction="mean")
    dice(*one_hot)
    assert scores["dice"] == pytest.approx(float(dice.aggregate()), abs=1e-6)
    far = compute_hausdorff_distance(*one_hot, include_background=False, percentile=95)
    present = (one_hot[1][:, 1:].flatten(2).sum(-1) > 0) & far.isfinite()
    expected = torch.where(present, far, torch.nan).nanmean(1).nanmean()
    assert scores["hd95"] == pytest.approx(float(expected), abs=1e-6)
    whole = present.all(1)
    if whole.any():
        metric = HausdorffDistanceMetric(include_background=False, percentile=95)
        metric(*(one[whole] for one in one_hot))
        ours = named(Segmentation(classes), logits(guess[whole], classes), y[whole])["hd95"]
        assert ours == pytest.approx(float(metric.aggregate()), abs=1e-6)


def test_the_distance_of_two_surfaces_by_hand():
    """A filled square of 5 x 5 and its middle: the 16 pixels of the rim count, not the inner 9.

    They are 2 to sqrt 8 away: four of each corner are sqrt 8, eight beside them sqrt 5, four 2.
    """
    square, middle = torch.zeros(2, 7, 7, dtype=torch.bool)
    square[1:6, 1:6], middle[3, 3] = True, True
    assert hausdorff(middle, square, share=1.0) == pytest.approx(math.sqrt(8))
    assert hausdorff(middle, square, share=0.5) == pytest.approx(math.sqrt(5))


def test_masks_of_one_pixel_are_a_binary_task():
    """Same bits of the models, and the same loss and accuracy."""
    rng = generator(0, "pixels")
    x, y = torch.randn(60, 5, generator=rng), torch.randint(2, (60,), generator=rng)

    class Pixel(torch.nn.Linear):
        def forward(self, z):
            return super().forward(z)[..., None, None]

    runs = []
    for kind, targets, task in (
        (torch.nn.Linear, y, Binary()),
        (Pixel, y[:, None, None], Segmentation(2)),
    ):
        with scoped(0):
            net = kind(5, 2)
        data = TensorData({"x": x, "y": targets}, 3, IID(), task=task, batch_size=7)
        runs.append(fit(FedAvg(net, optimizer=HEAVY), data))
    one, other = runs
    assert one.fingerprint == other.fingerprint
    for before, row in zip(one.history, other.history, strict=True):
        assert before["test/personal/acc"] == row["test/personal/acc"]
        assert before["test/personal/loss"] == pytest.approx(row["test/personal/loss"], rel=1e-6)
        assert before["train/local/ce"] == row["train/local/ce"]


@pytest.mark.parametrize("loss", ["ce", "dice", "dice_ce", "batch_dice"])
def test_pixels_to_ignore_count_nowhere(loss):
    task, rng = Segmentation(3, loss, ignore=7), generator(0, "ignored")
    outputs = torch.randn(2, 3, 4, 4, generator=rng)
    y = torch.randint(3, (2, 4, 4), generator=rng)
    y[:, 2:] = 7
    above = torch.cat([outputs[:, :, :2], torch.randn(2, 3, 2, 4, generator=rng)], 2)
    assert torch.equal(task.loss(outputs, y), task.loss(above, y))
    assert torch.equal(task.scores(outputs, y), task.scores(above, y))
    alone = Segmentation(3, loss)
    assert task.loss(outputs, y) == pytest.approx(
        float(alone.loss(outputs[:, :, :2], y[:, :2])), rel=1e-6
    )


def test_losses_by_hand():
    """One image of two pixels, the first a structure; both have a probability of 3/4 for it.

    ce (ln 4/3 + ln 4) / 2; dice (2 * 3/4 + 1) / (1 + 3/2 + 1) = 5/7.
    """
    outputs = torch.tensor([[[0.0, 0.0]], [[math.log(3)] * 2]])[None]
    y = torch.tensor([[[1, 0]]])
    ce, dice = (math.log(4 / 3) + math.log(4)) / 2, 1 - 5 / 7
    for loss, value in {"ce": ce, "dice": dice, "dice_ce": ce + dice, "batch_dice": dice}.items():
        assert float(Segmentation(2, loss).loss(outputs, y)) == pytest.approx(value, abs=1e-6)


def test_dice_of_a_batch_counts_its_images_together_and_leaves_out_padding():
    """Two images of one pixel: (2 * (3/4 + 0) + 1) / (3/4 + 3/4 + 1 + 1) = 5/7."""
    outputs = torch.tensor([0.0, math.log(3)]).view(1, 2, 1, 1).repeat(2, 1, 1, 1)
    y = torch.tensor([1, 0]).view(2, 1, 1)
    task = Segmentation(2, "batch_dice")
    assert float(task.loss(outputs, y)) == pytest.approx(1 - 5 / 7)
    padded = task.loss(outputs, y, torch.tensor([1.0, 0.0]))
    assert padded == task.loss(outputs[:1], y[:1])
    with pytest.raises(TypeError, match=r"the loss of the task .* is of a whole batch"):
        task.sample_losses(outputs, y)


def test_flipping_image_and_mask_changes_no_score():
    guess, y = blobs(3, (12, 15))
    task = Segmentation(3)
    for axes in ((-1,), (-2,), (-1, -2)):
        flipped = task.scores(logits(guess.flip(axes), 3), y.flip(axes))
        assert torch.allclose(task.scores(logits(guess, 3), y), flipped, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (torch.zeros(4), "masks must be"),
        (torch.full((2, 3, 3), 0.5), "got fractions"),
        (torch.tensor([0, 255]).view(2, 1, 1), "sample 1 has the number 255.*ignore=255"),
        (torch.tensor([0, -1]).view(2, 1, 1), "sample 1 has the number -1.*ignore=-1"),
    ],
)
def test_what_is_no_mask_is_refused(y, words):
    with pytest.raises(ValueError, match=words):
        Segmentation(2).of_targets(y)


def test_classes_are_counted_where_they_are_not_given():
    task, y = Segmentation(ignore=9).of_targets(torch.tensor([0, 3, 9]).view(3, 1, 1))
    assert task == Segmentation(4, ignore=9)
    assert y.dtype == torch.uint8


def test_outputs_of_another_form_are_refused_before_the_first_round():
    y = torch.zeros(20, 1, 4, 4, dtype=torch.int64)
    data = TensorData({"x": torch.rand(20, 1, 4, 4), "y": y}, 2, IID(), task="segmentation")
    with pytest.raises(ValueError, match=r"need outputs of shape .* got \(\d+, 2, 4, 4\)"):
        fit(FedAvg(torch.nn.Conv2d(1, 2, 1), optimizer=HEAVY), data)
