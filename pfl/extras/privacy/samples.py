"""Sample-level privacy: the epsilon of a run's rounds.

Every step of a client's training is the Gaussian mechanism on a Poisson sample of its data;
neighbours differ by one sample of one client. The numbers of clients' samples are assumed to be
public, and so are the cohorts, which do not depend on data: epsilon is the largest of any client,
over all steps of the rounds in which it trains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from pfl.core.seeds import generator
from pfl.core.server import ServerState
from pfl.core.types import ClientInfo, Cohort, Drawn, Job, Result
from pfl.extras.privacy import accountant, separable
from pfl.extras.privacy.account import COLUMN, Account, Witness
from pfl.extras.privacy.sample_level import PrivateSamples, Steps, steps_of
from pfl.extras.privacy.terms import Terms
from pfl.training.uplink import Start


@dataclass(frozen=True)
class SampleAccount(Account):
    """The account of a run that keeps single samples private.

    Attributes:
        privacy: The settings.
        steps: Each client's steps in a round.
        cohort: Function from a round to its cohort; ``None`` if that is not known in advance.
        witness: What the account has seen.
    """

    privacy: Terms
    steps: dict[int, Steps]
    cohort: Callable[[int], Cohort] | None
    witness: Witness = field(default_factory=Witness, compare=False, repr=False)

    covers: ClassVar[Literal["uploads"]] = "uploads"
    meaning = (
        "all that leaves client j in training is private with respect to each single sample of j; "
        "tuning before a test and scores are not, and neither is an export of a model that was "
        "tuned"
    )
    whose = " for the client with the largest one"
    unit = "sample"
    lower = "the epochs or the batch size"

    @classmethod
    def of(cls, privacy: Terms, start: Start) -> SampleAccount:
        """Return the account of a run."""
        steps = {info.client: steps_of(start.context, info) for info in start.clients}

        def cohort(number: int) -> Cohort:
            rng = generator(start.seed, "cohort", number)
            return start.sampler([*steps], rng, number)

        drawn = None if privacy.noise == "system" else cohort
        return cls(privacy, steps, drawn, Witness(terms=replace(privacy)))

    def planned(self, rounds: int) -> float:
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

    def training_info(self, info: ClientInfo) -> ClientInfo:
        """Hide the class counts, which have no noise."""
        return replace(info, label_counts=None)

    @property
    def step(self) -> PrivateSamples:
        """The client's step."""
        return PrivateSamples(self.privacy.clip, self.privacy.sigma, self.secret)

    def job(self, job: Job, state: ServerState, uploads: bool) -> Job:
        """Add private steps to a client's job."""
        self.check_accepted()
        return replace(job, steps=(*job.steps, self.step))

    def accepted(self, start: Start) -> None:
        """Begin to act in a run; see :meth:`Account.accept`.

        Raises:
            ValueError: See :meth:`Account.accept`.
        """
        right = self.of(self.privacy, start)
        known = (self.cohort is None) == (right.cohort is None)
        facts = {"number of steps": self.steps == right.steps, "cohort": known}
        self.accept(SampleAccount, facts)

    def tried(self, start: Start, job: Job, merged: Callable[[], ServerState]) -> None:
        """Take a step of each phase on a copy, as a client would.

        Raises:
            ValueError: A step has not the noise that is accounted for.
        """
        drawn = separable.drawn(start.context, job)
        self._check(drawn, f"a trial of client {job.info.client}")
        self.witness.tried = True

    def witnessed(self, results: Mapping[int, Result], after: ServerState) -> dict[str, float]:
        """Return the noise that all clients' steps had.

        Raises:
            ValueError: A step had not the noise that is accounted for, or nobody accounts for it.
        """
        cohort = [*self.steps] if self.cohort is None else self.cohort(after.round).trains
        for client, result in results.items():
            whose = f"client {client} in round {after.round}"
            taken = self._check(result.drawn, whose)
            if taken.total() != result.steps or client not in cohort:
                raise ValueError(
                    f"Privacy: {whose} took {result.steps} steps, of which not all "
                    "are accounted for"
                )
            if not taken <= Counter(dict(self.steps[client])):
                raise ValueError(f"Privacy: {whose} took more steps than are accounted for")
        return {COLUMN: self.privacy.sigma}

    def _check(self, drawn: Sequence[Drawn], whose: str) -> Counter[int]:
        """Refuse other noise than that which is accounted for; return the steps by their rates.

        Raises:
            ValueError: There is none, or other noise.
        """
        clip, sigma, taken = self.privacy.clip, self.privacy.sigma, Counter[int]()
        for steps in drawn:
            if steps.clip > clip or steps.sigma < sigma:
                raise ValueError(
                    f"Privacy: {whose} has clip {steps.clip:g} and sigma {steps.sigma:g} instead "
                    f"of {clip:g} and {sigma:g}"
                )
            taken[steps.batches] += steps.steps
        if not taken:
            raise ValueError(f"Privacy: {whose} shows no noise, so that there is no epsilon")
        return taken
