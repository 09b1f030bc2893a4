"""The numbers of a private run, and the arithmetic of clip and noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from pfl.core.checks import not_negative, one_of, positive, within
from pfl.extras.privacy.clip import LEAST_CLIP
from pfl.training.uplink import UplinkStep

# Andrew et al. 2019: the rate of the clip, and the target share of unclipped differences.
_RATE, _WHOLE = 0.2, 0.5
# Noise of the count of unclipped differences, as a share of the expected number of clients.
_COUNT_SHARE = 1 / 20


def check_noise(clip: float, sigma: float) -> None:
    """Reject unbounded noise.

    Raises:
        ValueError: An infinite clip has noise, or clip and noise together are too large.
    """
    if sigma > 0 and not math.isfinite(sigma * clip):
        raise ValueError(
            f"clip={clip} and sigma={sigma} make unbounded noise: an infinite clip needs sigma=0"
        )


@dataclass(frozen=True)
class Terms(UplinkStep):
    """The numbers of a private run; :class:`pfl.extras.privacy.privacy.Privacy` describes them."""

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
            raise ValueError("adaptive: only the clip of level: user can be adaptive")
        check_noise(self.clip, self.sigma)
        if self.sigma == 0 and self.epsilon is not None:
            raise ValueError(
                f"sigma=0 adds no noise, so that epsilon={self.epsilon} cannot be kept"
            )

    @property
    def plain(self) -> Terms:
        """The numbers alone, without what a subclass makes of them."""
        return Terms(**{item.name: getattr(self, item.name) for item in fields(Terms)})

    def count_deviation(self, expected: float) -> float:
        """Return the deviation of the count's noise, given the expected number of clients."""
        return _COUNT_SHARE * expected

    def sum_deviation(self, expected: float) -> float:
        """Return the deviation of the sum's noise, in units of the clip.

        With ``adaptive``, the count uses a part of the budget: sum and count together have the
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
        """Return the clip of the next round, C exp(-0.2 (b - 0.5)), at least the smallest clip.

        Args:
            clip: Clip C of this round.
            whole: Noisy share b of unclipped differences.
        """
        return max(LEAST_CLIP, clip * math.exp(-_RATE * (whole - _WHOLE)))
