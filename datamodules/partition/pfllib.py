"""The partition of the released codes of FedAS and PFAKD, from PFLlib's generator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from datamodules.checks import require
from datamodules.partition import draws
from datamodules.partition.partitioner import Dirichlet
from datamodules.targets import Floats, Ints, Targets


@dataclass(frozen=True)
class PFLlibDirichlet(Dirichlet):
    """:class:`Dirichlet` with PFLlib's random numbers, which also choose the test samples.

    The number of a client's samples of each class depends only on the split seed. For a data set in
    its original order, the samples and their order are also those of the released code (``shuffle:
    false`` keeps the order). It needs ``test_protocol: pooled``. FedAS's generator has
    ``split_seed: 1`` and at least 40 samples, PFAKD's 42 and 1.

    Source: the released generator of Yang, Huang and Ye, "FedAS: Bridging inconsistency in
    personalized federated learning", CVPR 2024, which is that of PFLlib.

    Args:
        alpha: Concentration; below 0.1 a client has few classes.
        min_samples: Minimum number of samples of a client.
        cap: Give clients that already have n/N samples nothing from the remaining classes.
        max_tries: Maximum number of draws.
    """

    ordered: ClassVar[bool] = True

    min_samples: int = 40

    def rng(self, seed: int) -> np.random.Generator:
        """Return numpy's legacy random generator for a split seed."""
        require(
            0 <= seed < 2**32, f"PFLlibDirichlet takes a split_seed from 0 to 2**32 - 1, got {seed}"
        )
        state: Any = np.random.RandomState(seed).get_state(legacy=False)
        bits = np.random.MT19937()
        bits.state = state
        return np.random.Generator(bits)

    def draw(self, targets: Targets, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        """Divide the samples; ``__call__`` checks the result."""
        stream, labels = np.random.RandomState(rng.bit_generator), targets.classes

        def shares() -> Iterator[tuple[Ints, Floats]]:
            for label in np.unique(labels):
                positions = stream.permutation(np.flatnonzero(labels == label))
                yield positions, stream.dirichlet(np.full(num_clients, self.alpha))

        def draw() -> list[Ints] | None:
            return draws.by_shares(shares(), num_clients, len(labels), cap=self.cap)

        # Each client's first samples are its test samples, as many as the rule requires.
        enough = self.enough(targets, num_clients, draw)
        return [share[stream.permutation(len(share))] for share in enough]
