"""What a user sets for a private run, and the arithmetic of its clip and its noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pfl.core.checks import not_negative, one_of, positive, within
from pfl.core.types import LEAST_CLIP, check_noise

# Andrew et al. 2019: the rate of the clip, and the share of differences that it is to leave whole.
_RATE, _WHOLE = 0.2, 0.5
# The noise of the count of such differences, as a share of the expected number of clients.
_COUNT_SHARE = 1 / 20


@dataclass(frozen=True)
class Privacy:
    """Differential privacy of a run: of whole clients, or of their single samples.

    ``level: user``: clients clip what they send, and the server adds noise. Two federations are
    neighbours if one has a client more. McMahan et al., "Learning Differentially Private Recurrent
    Language Models", ICLR 2018, arXiv 1710.06963, with a fixed denominator.

    ``level: sample``: in each step, clients clip the gradient of each sample and add noise. Two
    federations are neighbours if a client has a sample more. Abadi et al., "Deep Learning with
    Differential Privacy", CCS 2016, arXiv 1607.00133.

    Args:
        clip: C, the largest norm of a client's difference, or of a sample's gradient; with
            ``adaptive`` that of the first round.
        sigma: Standard deviation of the noise in a round's or step's sum, in units of the clip.
        delta: The delta that epsilon holds for, in (0, 1); less than one over the number of
            clients, or of the largest client's samples.
        epsilon: The run ends before the round that would exceed this epsilon; ``None`` is no limit.
        level: What is protected: all that a client sends, as one (``user``), or each single
            ``sample`` of its data.
        adaptive: Let the clip follow the median norm (Andrew et al., "Differentially Private
            Learning with Adaptive Clipping", NeurIPS 2021, arXiv 1905.03871). The same epsilon
            covers the count of norms below the clip.
        noise: Where noise, cohorts and batches come from: the run's ``seed``, for experiments (who
            knows the seed can subtract the noise), or the operating ``system``'s source.

    Raises:
        ValueError: A number is out of its range, an infinite clip has noise, or ``adaptive`` is
            asked for at the sample level.
    """

    clip: float
    sigma: float
    delta: float
    epsilon: float | None = None
    level: Literal["user", "sample"] = "user"
    adaptive: bool = False
    noise: Literal["seed", "system"] = "seed"

    def __post_init__(self) -> None:
        within(f"[{LEAST_CLIP}, inf]", clip=self.clip)
        positive(epsilon=self.epsilon)
        not_negative(sigma=self.sigma)
        within("(0, 1)", delta=self.delta)
        one_of("level", self.level, ("user", "sample"))
        one_of("noise", self.noise, ("seed", "system"))
        if self.adaptive and self.level == "sample":
            raise ValueError("adaptive: only the clip of the user level can follow the norms")
        check_noise(self.clip, self.sigma)
        if self.sigma == 0 and self.epsilon is not None:
            raise ValueError(
                f"sigma=0 adds no noise, so that epsilon={self.epsilon} cannot be kept"
            )

    def count_deviation(self, expected: float) -> float:
        """Return the deviation of the noise of the count, given the expected number of clients."""
        return _COUNT_SHARE * expected

    def sum_deviation(self, expected: float) -> float:
        """Return the deviation of the noise of the sum, in units of the clip.

        With ``adaptive`` the count takes a part of the privacy: sum and count together have the
        deviation ``sigma`` (Andrew et al., Theorem 1).

        Raises:
            ValueError: There are too few clients for ``sigma`` with ``adaptive``.
        """
        if not self.adaptive or self.sigma == 0:
            return self.sigma
        twice = 2 * self.count_deviation(expected)
        if self.sigma >= twice:
            raise ValueError(
                f"adaptive: the count of {expected:g} clients a round cannot have the noise of "
                f"sigma={self.sigma}, which must be below a tenth of their number; lower sigma, "
                "raise the sampler's probability, or give a fixed clip (adaptive: false)"
            )
        return 1 / math.sqrt(self.sigma**-2 - twice**-2)

    def next_clip(self, clip: float, whole: float) -> float:
        """Return the clip of the next round, C exp(-0.2 (b - 0.5)), or the smallest there is.

        Args:
            clip: C in this round.
            whole: b, the noisy share of differences that the clip left as they were.
        """
        return max(LEAST_CLIP, clip * math.exp(-_RATE * (whole - _WHOLE)))
