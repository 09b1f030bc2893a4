"""Random transforms of a batch, drawn separately for each sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pfl.core.checks import not_negative, within


class Augmentation(ABC):
    """Base class of random transforms of a training batch."""

    @abstractmethod
    def __call__(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """Transform (B, C, H, W) uint8 images on their device; ``rng`` is on the CPU."""

    def pairs(self, images: Tensor, masks: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Transform images and their (B, ..., H, W) masks alike.

        Raises:
            ValueError: The transform is only of images.
        """
        raise ValueError(
            f"{type(self).__name__} transforms images, but not their masks: give it a method "
            "pairs(images, masks, rng), which moves the pixels of both alike"
        )


@dataclass(frozen=True)
class CropFlip(Augmentation):
    """A random crop of the zero-padded image to its original size, and a random horizontal flip.

    The random numbers are drawn on the CPU, so that all devices use the same transforms.

    Args:
        padding: Black pixels added on each side before the crop; 0 disables cropping.
        flip: Probability of a horizontal flip.

    Raises:
        ValueError: A number is out of range.
    """

    padding: int = 4
    flip: float = 0.5

    def __post_init__(self) -> None:
        not_negative(padding=self.padding)
        within("[0, 1]", flip=self.flip)

    def pairs(self, images: Tensor, masks: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Transform images and masks; pixels added to a mask are of class 0, the background."""
        layers = masks.reshape(len(masks), -1, *masks.shape[-2:])
        both = self(torch.cat([images.to(masks.dtype), layers], 1), rng)
        pixels, layers = torch.split(both, [images.shape[1], layers.shape[1]], 1)
        return pixels.to(images.dtype), layers.reshape(masks.shape)

    def __call__(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """Transform (B, C, H, W) images of any type."""
        count, _, height, width = images.shape
        corners = torch.randint(2 * self.padding + 1, (2, count), generator=rng)
        mirrored = torch.rand(count, generator=rng) < self.flip
        if self.padding:
            padded = F.pad(images, [self.padding] * 4)
            # A view of all (2p + 1)^2 crops of every image; only one per image is copied.
            windows = padded.unfold(2, height, 1).unfold(3, width, 1)
            samples = torch.arange(count, device=images.device)
            top, left = corners.to(images.device)
            images = windows[samples, :, top, left]
        mirrored = mirrored.to(images.device).view(-1, 1, 1, 1)
        return torch.where(mirrored, images.flip(-1), images)
