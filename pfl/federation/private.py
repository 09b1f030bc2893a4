"""A private run: its passage, the rounds that its epsilon pays for, and what it may be called."""

from __future__ import annotations

from pfl.federation.sampling import poisson_rate
from pfl.federation.settings import Settings
from pfl.passage import accountant
from pfl.passage.passage import Passage
from pfl.passage.privacy import Privacy
from pfl.training.context import Context
from pfl.training.server_round import Coordinator

# The sentence that says what is private. Every place that says it takes it from here.
MEANING = (
    "client j's model is private with respect to every other client; an export of it is a release "
    "of j's data"
)
UNACCOUNTED = (
    "the choice of settings and of the best round; sizes, losses and scores in the run's records"
)
NOISE = {
    "seed": "from the run's seed, for experiments: who knows the seed can subtract it",
    "system": "from the operating system's source, so that no repetition gives the same numbers",
}


def check_noise(privacy: Privacy, settings: Settings) -> None:
    """Refuse noise that real clients would get of a seed.

    Raises:
        ValueError: They would.
    """
    if privacy.noise == "seed" and not settings.engine.simulates:
        raise ValueError(
            "loop.privacy: the clients are real, and who knows the run's seed could subtract noise "
            "that comes from it: set noise: system"
        )


def passage_of(
    privacy: Privacy, settings: Settings, context: Context, coordinator: Coordinator
) -> Passage:
    """Return the passage of a private run.

    Raises:
        ValueError: The sampler draws no Poisson cohorts, the method cannot be run privately, a
            number does not fit the number of clients, or real clients would get noise of a seed.
    """
    check_noise(privacy, settings)
    sampler, seed = settings.sampler, settings.seed
    rate, clients = poisson_rate(sampler), len(coordinator.eligible)
    if privacy.delta >= 1 / clients:
        raise ValueError(
            f"loop.privacy: delta={privacy.delta} must be below {1 / clients:.3g}, one over the "
            f"number of clients ({clients}): a delta as large allows to publish one client's data"
        )
    module = context.module
    return Passage.of(privacy, rate, clients, module, coordinator.server, context.template, seed)


def affordable(passage: Passage, rounds: int) -> int:
    """Return how many of the planned rounds epsilon pays for.

    Raises:
        ValueError: Not a single one.
    """
    paid = passage.affordable(rounds)
    if paid == 0:
        raise ValueError(
            f"loop.privacy: a single round has epsilon {passage.epsilon(1):.4g}, more than the "
            f"{passage.privacy.epsilon:g} that are set; raise sigma, or lower the probability of "
            "the sampler"
        )
    return paid


def described(passage: Passage, asked: int, rounds: int) -> dict[str, str]:
    """Return the header's lines about privacy.

    Args:
        passage: The passage.
        asked: The planned number of rounds.
        rounds: How many of them epsilon pays for.
    """
    privacy, rate = passage.privacy, passage.rate
    spent = "no epsilon, as sigma is 0"
    if privacy.sigma:
        spent = (
            f"epsilon {passage.epsilon(rounds):.4g} at delta {privacy.delta:g} after {rounds} "
            f"rounds (one client more or less; {accountant.described()})"
        )
    ends = ""
    if rounds < asked:
        ends = f"; ends there, as round {rounds + 1} of {asked} would exceed {privacy.epsilon:g}"
    clip = f"clip {privacy.clip:g}" + (", then adaptive" if privacy.adaptive else "")
    return {
        "privacy": f"{privacy.level} level, {spent}{ends}",
        "private": MEANING,
        "mechanism": (
            f"{clip}; sigma {privacy.sigma:g}; Poisson cohorts, rate {rate:g} of "
            f"{passage.clients} clients; all count equally, over {passage.expected:g}"
        ),
        "noise": NOISE[privacy.noise],
        "unaccounted": UNACCOUNTED,
    }
