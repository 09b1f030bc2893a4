"""Synthetic images with adjustable shifts between domains."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from datamodules.arrays import ArrayData, Arrays
from datamodules.checks import require
from datamodules.partition.draws import apportion
from datamodules.targets import Ints, Targets
from pfl.core.ranges import AtLeastOne, Fraction, Range
from pfl.core.seeds import derive


class Synthetic(ArrayData):
    """Noisy copies of one random pattern per class, in domains with adjustable shifts.

    With :class:`~datamodules.partition.partitioner.ByDomain` and as many domains as clients, each
    client is a domain. If all shifts are 0, domains are identically distributed and of equal size.
    The data set is meant for tests and for trying methods.

    Args:
        samples: Number of samples.
        classes: Number of classes, C.
        subclasses: Number of patterns (subclasses) per class.
        channels: Channels of an image.
        size: Height and width of an image.
        domains: Number of domains, D; ``None`` for one per client.
        label_shift: In [0, 1]: domain d draws a class uniformly with probability 1 - label_shift,
            and otherwise uses class d modulo C.
        concept_shift: In [0, 1]: for the first k = round(concept_shift * C) classes, pattern c has
            the label (c + d) modulo k in domain d.
        concept_groups: Number of groups of domains, G: domain d has the labels of domain d modulo
            G above; ``None`` for one group per domain.
        feature_shift: In [0, 1]: brightness is shifted by up to half of this fraction of the range;
            the first domain is the darkest, the last the brightest.
        quantity_shift: Standard deviation of the logarithm of domain sizes.
        noise: Standard deviation of the noise on each pixel, as a fraction of the range.
        data_seed: Seed of the samples.
        common: Arguments of :class:`~datamodules.base.FederatedDataModule`.

    Raises:
        ValueError: A number is out of range.
    """

    def __init__(
        self,
        samples: int = 1000,
        classes: AtLeastOne = 4,
        subclasses: AtLeastOne = 1,
        channels: AtLeastOne = 1,
        size: AtLeastOne = 8,
        domains: AtLeastOne | None = None,
        label_shift: Fraction = 0.0,
        concept_shift: Fraction = 0.0,
        concept_groups: AtLeastOne | None = None,
        feature_shift: Fraction = 0.0,
        quantity_shift: Annotated[float, Range("[0, inf)")] = 0.0,
        noise: Annotated[float, Range("[0, inf)")] = 0.1,
        data_seed: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.samples = samples
        self.classes = classes
        self.subclasses = subclasses
        self.channels = channels
        self.size = size
        require(
            domains is not None or common.get("num_clients") is not None,
            "give num_clients or domains",
        )
        self.domains = self.num_clients if domains is None else domains
        self.label_shift = label_shift
        self.concept_shift = concept_shift
        self.concept_groups = self.domains if concept_groups is None else concept_groups
        self.feature_shift = feature_shift
        self.quantity_shift = quantity_shift
        self.noise = noise
        self.data_seed = data_seed
        require(
            samples >= self.domains, f"{samples} samples are too few for {self.domains} domains"
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """``class 0``, ``class 1`` and so on."""
        return tuple(f"class {c}" for c in range(self.classes))

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return (self.channels, self.size, self.size)

    def read(self) -> Arrays:
        """Generate the whole data set."""
        rng = np.random.default_rng(derive(self.data_seed, "synthetic"))
        # Away from the ends of the range, so that noise and shifts are rarely clipped.
        patterns = rng.uniform(0.3, 0.7, (self.classes * self.subclasses, *self.input_shape))
        weights = np.exp(self.quantity_shift * rng.standard_normal(self.domains))
        sizes = 1 + apportion(self.samples - self.domains, weights)
        domains = np.repeat(np.arange(self.domains), sizes)
        pattern = np.concatenate([self._patterns(d, n, rng) for d, n in enumerate(sizes)])
        brightness = self.feature_shift * (np.linspace(0, 1, self.domains) - 0.5)
        values = patterns[pattern] + brightness[domains][:, None, None, None]
        values += self.noise * rng.standard_normal(values.shape)
        pixels = np.rint(255 * values.clip(0, 1)).astype(np.uint8)
        labels = self._labels(pattern // self.subclasses, domains)
        fine = labels * self.subclasses + pattern % self.subclasses
        names = [f"domain {d}" for d in range(self.domains)]
        if self.subclasses == 1:
            return Arrays(pixels, Targets(labels, None, domains), len(labels), (), names)
        fine_names = [f"{c}/{i}" for c in self.class_names for i in range(self.subclasses)]
        return Arrays(pixels, Targets(labels, fine, domains), len(labels), fine_names, names)

    def _patterns(self, domain: int, count: int, rng: np.random.Generator) -> Ints:
        """Draw the (count,) patterns of the samples in one domain."""
        uniform = np.full(self.classes, (1 - self.label_shift) / self.classes)
        uniform[domain % self.classes] += self.label_shift
        classes = np.repeat(np.arange(self.classes), apportion(count, uniform))
        return rng.permutation(classes * self.subclasses) + rng.integers(
            self.subclasses, size=count
        )

    def _labels(self, classes: Ints, domains: Ints) -> Ints:
        """Return the (n,) labels of patterns, given their classes."""
        turned = round(self.concept_shift * self.classes)
        if not turned:
            return classes
        groups = domains % self.concept_groups
        return np.where(classes < turned, (classes + groups) % turned, classes)
