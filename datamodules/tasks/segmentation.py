"""The task of assigning each pixel of an image to a class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from datamodules.tasks.surfaces import hausdorff
from pfl.core import criteria
from pfl.core.checks import one_of
from pfl.core.criteria import wide
from pfl.core.task import ERROR, SHARE, Task

_NONE = math.nan, math.nan

SegmentationLoss: TypeAlias = Literal["ce", "dice", "dice_ce", "batch_dice"]


@dataclass(frozen=True, repr=False, init=False)
class Segmentation(Task):
    """One of C classes for each pixel: (n, H, W) or (n, D, H, W) masks, (n, C, ...) logits.

    Class 0 is the background, and the others are structures. A sample's dice is the mean over the
    structures that its mask has of twice the overlap over the sum of sizes of guess and mask; its
    hd95 that of the 95 % Hausdorff distances of their surfaces, in pixels. Scores are means over
    samples that have a structure; a client without any lacks both. If a structure is not guessed at
    all, its distance is the image's diagonal. Further scores are the share of correct pixels and
    the cross-entropy, whatever the loss.

    Args:
        classes: C, with the background; ``None`` for one more than the largest number in the masks.
        loss: ``ce``, the cross-entropy averaged over a sample's pixels; ``dice``, one minus the
            dice of probabilities, averaged over structures; their sum ``dice_ce``; or
            ``batch_dice``, whose counts are those of all samples of a batch together. That one has
            no losses of single samples (:attr:`~pfl.core.task.Task.separable`).
        ignore: The number in masks of pixels that do not count, neither in the loss nor in scores.

    Raises:
        ValueError: There are fewer than two classes, or the loss is unknown.
    """

    classes: int | None = None
    # Not called ``loss``, as a method is.
    objective: SegmentationLoss = field(default="ce", metadata={"argument": "loss"})
    ignore: int | None = None

    def __init__(
        self, classes: int | None = None, loss: SegmentationLoss = "ce", ignore: int | None = None
    ) -> None:
        one_of("loss", loss, ("ce", "dice", "dice_ce", "batch_dice"))
        if classes is not None and classes < 2:
            raise ValueError(f"classes must be at least 2, with the background, got {classes}")
        for name, value in (("classes", classes), ("objective", loss), ("ignore", ignore)):
            object.__setattr__(self, name, value)

    scores_better = {"dice": True, "hd95": False, "acc": True, "loss": False}  # noqa: RUF012
    scores_within = {"dice": SHARE, "hd95": ERROR, "acc": SHARE, "loss": ERROR}  # noqa: RUF012
    fitting = ("torchmetrics.JaccardIndex", "torchmetrics.F1Score")

    @property
    def loss_name(self) -> str:  # type: ignore[override]
        """The loss's own name."""
        return self.objective

    @property
    def separable(self) -> bool:  # type: ignore[override]
        """``False`` if samples are counted together."""
        return self.objective != "batch_dice"

    @property
    def may_lack(self) -> Sequence[str]:  # type: ignore[override]
        """A client may have no structure; with ``ignore``, it may have no pixel that counts."""
        return ("dice", "hd95") if self.ignore is None else tuple(self.scores_better)

    def of_targets(self, y: Tensor) -> tuple[Task, Tensor]:
        """Return the task with its number of classes, and masks of integers.

        Raises:
            ValueError: They are no masks, or have numbers of other classes.
        """
        shape = tuple(y.shape)
        if y.dim() not in (3, 4):
            raise ValueError(f"masks must be (n, H, W) or (n, D, H, W), got shape {shape}")
        if y.is_floating_point() and bool((y % 1 != 0).any()):
            raise ValueError("masks must have the number of each pixel's class, got fractions")
        counted = y if self.ignore is None else y[y != self.ignore]
        least, most = (int(counted.min()), int(counted.max())) if counted.numel() else (0, 0)
        classes = max(2, most + 1) if self.classes is None else self.classes
        wrong = least if least < 0 else most
        if not 0 <= wrong < classes:
            first = int((y == wrong).flatten(1).any(1).nonzero()[0])
            raise ValueError(
                f"the mask of sample {first} has the number {wrong}, but classes are 0 to "
                f"{classes - 1}: {'raise classes' if wrong > 0 else 'renumber them'}, or give "
                f"ignore={wrong} for pixels that do not count"
            )
        small = int(y.min()) >= 0 and int(y.max()) < 256 if y.numel() else True
        return type(self)(**{**self.options(), "classes": classes}), y.to(
            torch.uint8 if small else torch.int64
        )

    def outputs(self, targets: int) -> int:
        """Return C."""
        return targets if self.classes is None else self.classes

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B,) losses of images."""
        if not self.separable:
            return super().sample_losses(outputs, y)
        logits, y, counted = self._pixels(outputs, y)
        terms = []
        if self.objective != "dice":
            terms.append(_pixel_mean(-_picked(logits, y), counted))
        if self.objective != "ce":
            terms.append(1 - _soft_dice(logits, y, counted).mean(-1))
        return sum(terms[1:], terms[0])

    def loss(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean loss of the real samples, or their common one."""
        if not self.separable:
            logits, y, counted = self._pixels(outputs, y)
            if weight is not None:
                counted = counted * weight[:, None]
            return (
                1
                - _soft_dice(
                    logits.flatten(0, 1)[None], y.flatten()[None], counted.flatten()[None]
                ).mean()
            )
        if weight is None and self.objective == "ce" and self.ignore is None:
            logits, y, _ = self._pixels(outputs, y)
            return criteria.mean_cross_entropy(logits.flatten(0, 1), y.flatten())
        return super().loss(outputs, y, weight)

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B, 4) scores of each image; NaN for what its mask lacks."""
        logits, y, counted = self._pixels(wide(outputs), y)
        shape, right = outputs.shape[2:], logits.argmax(-1) == y
        loss = _pixel_mean(-_picked(logits, y), counted, torch.nan)
        acc = _pixel_mean(right.to(logits.dtype), counted, torch.nan)
        guess, mask, real = logits.argmax(-1), y, counted > 0
        structures = list[Tensor]()
        for one, other, pixels in zip(guess, mask, real, strict=True):
            found = [
                _compared(((one == number) & pixels).view(shape), truth.view(shape))
                for number in range(1, logits.shape[-1])
                if (truth := (other == number) & pixels).any()
            ]
            structures.append(torch.tensor(found or [_NONE], dtype=loss.dtype).mean(0))
        of_structures = torch.stack(structures).to(loss.device)
        return torch.cat([of_structures, torch.stack([acc, loss], 1)], 1)

    def _pixels(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (B, P, C) logits, (B, P) classes, and (B, P) one for each pixel that counts."""
        classes = outputs.shape[1]
        if outputs.shape[2:] != y.shape[1:] or classes != (self.classes or classes):
            raise ValueError(
                f"masks of shape {tuple(y.shape)} need outputs of shape "
                f"{(y.shape[0], self.classes or classes, *y.shape[1:])}, got {tuple(outputs.shape)}"
            )
        logits, y = outputs.flatten(2).movedim(1, -1), y.flatten(1).long()
        if self.ignore is None:
            return logits, y, torch.ones_like(logits[..., 0])
        counted = y != self.ignore
        return logits, torch.where(counted, y, 0), counted.to(logits.dtype)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return (n, C, ...) probabilities."""
        return wide(outputs).softmax(1)

    def targets(self, y: Tensor) -> Tensor:
        """Return the (n, ...) classes as integers."""
        return y.long()

    def example(self, outputs: int) -> tuple[Tensor, Tensor]:
        """Return images of 4 x 4 pixels in all classes, the first of which is guessed wrongly."""
        y = (torch.arange(64).view(4, 4, 4) + torch.arange(4).view(4, 1, 1)) % outputs
        guess = y.clone()
        guess[0] = y[0].roll(1)
        return torch.nn.functional.one_hot(guess, outputs).movedim(-1, 1).double(), y

    def metric_arguments(self, outputs: int) -> dict[str, Any]:
        """Return the task, the number of classes, and the number that does not count."""
        ignored = {} if self.ignore is None else {"ignore_index": self.ignore}
        return {"task": "multiclass", "num_classes": outputs, **ignored}


def _picked(logits: Tensor, y: Tensor) -> Tensor:
    """Return the (B, P) log-probabilities of the classes, from (B, P, C) logits."""
    return logits.log_softmax(-1).gather(-1, y[..., None]).squeeze(-1)


def _pixel_mean(values: Tensor, counted: Tensor, empty: float = 0.0) -> Tensor:
    """Return the (B,) means of the (B, P) values that count, or ``empty`` where none does."""
    number = counted.sum(-1)
    means = (values * counted).sum(-1) / number.clamp_min(1)
    return torch.where(number > 0, means, empty)


def _soft_dice(logits: Tensor, y: Tensor, counted: Tensor) -> Tensor:
    """Return (B, C - 1) dice of probabilities, plus one in numerator and denominator."""
    chance = logits.softmax(-1) * counted[..., None]
    truth = (y[..., None] == torch.arange(logits.shape[-1], device=y.device)) * counted[..., None]
    both, each = (chance * truth).sum(-2), (chance + truth).sum(-2)
    return ((2 * both + 1) / (each + 1))[..., 1:]


def _compared(guess: Tensor, truth: Tensor) -> tuple[float, float]:
    """Return dice and HD95 of a structure that an image has."""
    dice = 2 * int((guess & truth).sum()) / int(guess.sum() + truth.sum())
    return dice, hausdorff(guess, truth)
