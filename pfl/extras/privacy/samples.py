"""Sample-level privacy: the epsilon of a run's rounds.

Every step of a client's training is the Gaussian mechanism on a Poisson sample of its data;
neighbours differ by one sample of one client. The numbers of clients' samples are assumed to be
public, and so are the cohorts, which do not depend on data: epsilon is the largest of any client,
over all steps of the rounds in which it trains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from pfl.core.server import ServerState
from pfl.core.types import Cohort, Job
from pfl.extras.privacy import accountant
from pfl.extras.privacy.account import Account
from pfl.extras.privacy.sample_level import PrivateSamples, Steps
from pfl.extras.privacy.terms import Terms
from pfl.training.uplink import UplinkStep


@dataclass(frozen=True)
class SampleAccount(Account):
    """The account of a run that keeps single samples private.

    Attributes:
        privacy: The settings.
        steps: Each client's steps in a round.
        cohort: Function from a round to its cohort; ``None`` if that is not known in advance.
    """

    withholds: ClassVar[bool] = False
    privacy: Terms
    steps: dict[int, Steps]
    cohort: Callable[[int], Cohort] | None

    meaning = (
        "all that leaves client j in training is private with respect to each single sample of j; "
        "tuning before a test and scores are not, and neither is an export of a model that was "
        "tuned"
    )
    whose = " for the client with the largest one"
    unit = "sample"
    lower = "the epochs or the batch size"

    def epsilon(self, rounds: int) -> float:
        """Return the epsilon of a number of rounds, for the client with the largest one."""
        counts = Counter[int]()
        for number in range(1, rounds + 1):
            counts.update([*self.steps] if self.cohort is None else self.cohort(number).trains)
        most: dict[Steps, int] = {}
        for client, count in counts.items():
            steps = self.steps[client]
            most[steps] = max(count, most.get(steps, 0))
        return max((self._of(steps, count) for steps, count in most.items()), default=0.0)

    @property
    def mechanism(self) -> str:
        """The mechanism in words."""
        rates = sorted({1 / count for steps in self.steps.values() for count, _ in steps})
        between = f"{rates[0]:.3g}" if len(rates) == 1 else f"{rates[0]:.3g} to {rates[-1]:.3g}"
        return (
            f"the gradient of each sample is clipped to {self.privacy.clip:g} in each step; sigma "
            f"{self.privacy.sigma:g}; Poisson batches, rates {between}; sizes of clients are known"
        )

    def _of(self, steps: Steps, rounds: int) -> float:
        sigma = self.privacy.sigma
        parts = tuple((1 / batches, sigma, taken * rounds) for batches, taken in steps)
        return accountant.of_parts(parts, self.privacy.delta)

    def check_chain(self, chain: Sequence[UplinkStep], job: Job) -> None:
        """Refuse other steps; see :meth:`Account.check_chain`.

        Raises:
            ValueError: Likewise; or a step gives clients their class counts back.
        """
        super().check_chain(chain, job)
        if job.info.label_counts is not None:
            raise ValueError("Privacy: a step after it gives clients their class counts back")

    def job(self, job: Job, state: ServerState, uploads: bool) -> Job:
        """Add private steps, which use no class counts, to a client's job."""
        step = PrivateSamples(self.privacy.clip, self.privacy.sigma, self.secret)
        return replace(job, info=step.training_info(job.info), steps=(*job.steps, step))
