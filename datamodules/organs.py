"""Synthetic images of an organ, and its masks, at sites with a shift of contrast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules.partition.partitioner import Partitioner
from datamodules.tasks.named import AnyTask
from datamodules.tensors import TensorData
from pfl.core.checks import finite
from pfl.core.ranges import AtLeastOne, Range
from pfl.core.seeds import derive


class SyntheticOrgans(TensorData):
    """Grey images of an organ and of another structure of the same form, and masks of the organ.

    Both are ellipses of random position, size and direction on a background with a gradient and
    noise. At each site, the organ is brighter than the background by the site's contrast, and the
    other structure darker by as much, so that only a model that knows the site can tell them apart.
    The data set is meant for tests and for trying methods.

    Args:
        contrasts: The contrast of each site, as a share of the range of grey.
        samples: Number of images of each site.
        size: Height and width of an image.
        noise: Standard deviation of the noise on each pixel, as a share of the range.
        empty: Share of a site's images that have no organ, which are its first.
        data_seed: Seed of the images.
        num_clients: Number of clients, N; if not given, one for each site.
        partition: As in :class:`FederatedDataModule`; ``ByDomain`` if not given.
        task: As in :class:`TensorData`; give :class:`Segmentation` for another loss.
        options: As in :class:`FederatedDataModule`.

    Raises:
        ValueError: A number is out of range.
    """

    source_argument = None

    def __init__(
        self,
        contrasts: Sequence[float] = (0.3, 0.25, 0.2, -0.2, -0.3),
        samples: AtLeastOne = 60,
        size: AtLeastOne = 32,
        noise: Annotated[float, Range("[0, inf)")] = 0.1,
        empty: float = 0.0,
        data_seed: int = 0,
        num_clients: int | None = None,
        partition: Partitioner | str | None = None,
        *,
        task: AnyTask = "segmentation",
        **options: Any,
    ) -> None:
        for contrast in contrasts:
            finite(contrasts=contrast)
        super().__init__({}, num_clients, partition, task=task, **options)
        self.contrasts = tuple(contrasts)
        self.samples = samples
        self.size = size
        self.noise = noise
        self.empty = empty
        self.data_seed = data_seed

    def read(self) -> Mapping[str, Any]:
        """Generate images, masks and sites."""
        rng = np.random.default_rng(derive(self.data_seed, "organs"))
        images, masks = [], []
        for contrast in self.contrasts:
            for number in range(self.samples):
                image, mask = self._drawn(contrast, rng, number >= self.empty * self.samples)
                images.append(image)
                masks.append(mask)
        sites = [f"site {number}" for number in range(len(self.contrasts))]
        return {
            "x": torch.from_numpy(np.stack(images)[:, None]),
            "y": torch.from_numpy(np.stack(masks)),
            "client": np.repeat(sites, self.samples),
        }

    def _drawn(
        self, contrast: float, rng: np.random.Generator, has_organ: bool
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Draw an image and its mask, both (size, size)."""
        places = (np.indices((self.size, self.size)) + 0.5) / self.size - 0.5
        slope = rng.uniform(-0.1, 0.1, 2)
        image = 0.5 + np.tensordot(slope, places, 1)
        # On opposite sides of the middle, so that they seldom meet.
        middle = rng.uniform(0.12, 0.3) * _direction(rng)
        organ = _ellipse(places - middle[:, None, None], rng)
        other = _ellipse(places + middle[:, None, None], rng) & ~organ
        image += contrast * (organ * has_organ - 1.0 * other)
        image += self.noise * rng.standard_normal(image.shape)
        pixels = np.rint(255 * image.clip(0, 1)).astype(np.uint8)
        return pixels, (organ * has_organ).astype(np.uint8)


def _direction(rng: np.random.Generator) -> NDArray[np.float64]:
    angle = rng.uniform(0, 2 * np.pi)
    return np.array([np.cos(angle), np.sin(angle)])


def _ellipse(places: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return which (2, H, W) places are in an ellipse around the origin."""
    (cos, sin), radii = _direction(rng), rng.uniform(0.1, 0.22, 2)
    along, across = cos * places[0] + sin * places[1], cos * places[1] - sin * places[0]
    inside: NDArray[np.bool_] = (along / radii[0]) ** 2 + (across / radii[1]) ** 2 <= 1
    return inside
