"""Privacy beside the steps of others: what counts is what the chain is once it is bound."""

from dataclasses import dataclass, replace

import pytest
import torch

from lightning_modules import FedAvg
from pfl.core.types import ClientStep, Outcome
from pfl.extras.privacy.privacy import Privacy
from pfl.extras.privacy.sample_level import PrivateSamples
from pfl.federation.sampling import UniformSampler
from pfl.testing.federation import fit
from pfl.testing.toy import blobs, mlp
from pfl.training.gradients import GradientRule, Gradients, GradientStep
from pfl.training.phases import run_objective
from pfl.training.uplink import UplinkStep
from tests.helpers.messages import parts


class Plain(Gradients):
    """Gradients as without any step."""

    sums = finish = None

    def __init__(self, context, phase):
        self.context, self.phase = context, phase

    def alone(self, batch, number, empty):
        with torch.enable_grad():
            outcome = run_objective(self.phase, batch)
            trained = self.context.train_only(self.phase.trains)
            slopes = torch.autograd.grad(sum(outcome.terms.values()), [*trained.values()])
        terms = {name: value.detach() for name, value in outcome.terms.items()}
        return Outcome(terms), dict(zip(trained, slopes, strict=True)), {}


@dataclass(frozen=True)
class Mine(GradientStep):
    """A rule of one's own: batches in stored order, and ordinary gradients."""

    def batches(self, job, phase, epoch, samples, count):
        return [*torch.arange(samples).chunk(count)]

    def gradients(self, context, phase, jobs, steps):
        return Plain(context, phase)


@dataclass(frozen=True)
class Itself(Mine, UplinkStep):
    """A step that travels itself."""

    def job(self, job, state, uploads):
        return replace(job, steps=(*job.steps, self))


@dataclass(frozen=True)
class Whole(Itself):
    """Batches of four, as the toy data have them."""

    def batches(self, job, phase, epoch, samples, count):
        return [*torch.arange(samples).split(4)]


@dataclass(frozen=True)
class Quiet(Mine, UplinkStep):
    """A step that is a rule, and says nothing of it in its jobs."""


@dataclass(frozen=True)
class Alike(ClientStep, GradientRule):
    """A rule under another base class."""

    batches, gradients = Mine.batches, Mine.gradients


@dataclass(frozen=True)
class Odd(UplinkStep):
    """A step that brings such a rule."""

    def job(self, job, state, uploads):
        return replace(job, steps=(*job.steps, Alike()))


@dataclass(frozen=True)
class Adds(UplinkStep):
    """A step of which only its jobs show that it brings a rule."""

    def job(self, job, state, uploads):
        return replace(job, steps=(*job.steps, Mine()))


@dataclass(frozen=True)
class Becomes(UplinkStep):
    """A step that is another one once it is bound."""

    other: object

    def bound(self, start):
        return self.other.bound(start) if isinstance(self.other, UplinkStep) else self.other


@dataclass(frozen=True)
class Wraps(UplinkStep):
    """A step that does what another one does."""

    other: UplinkStep

    def bound(self, start):
        return replace(self, other=self.other.bound(start))

    def job(self, job, state, uploads):
        return self.other.job(job, state, uploads)


@dataclass(frozen=True)
class First(UplinkStep):
    """The server takes the first upload."""

    def merge(self, state, uploads, aggregate):
        return aggregate(state, uploads[:1])


@dataclass(frozen=True)
class Drops(UplinkStep):
    """The steps of others are dropped."""

    def job(self, job, state, uploads):
        return replace(job, steps=())


@dataclass(frozen=True)
class Weakens(UplinkStep):
    """Other noise stands in the place of the one that is accounted for."""

    def job(self, job, state, uploads):
        return replace(job, steps=(PrivateSamples(1.0, 0.0),))


@dataclass(frozen=True)
class Tells(UplinkStep):
    """Class counts are given back."""

    def job(self, job, state, uploads):
        return replace(job, info=replace(job.info, label_counts=torch.ones(3)))


# Without noise, as an epsilon needs a further package.
SAMPLES = Privacy(clip=1.0, sigma=0.0, delta=0.05, level="sample")
CLIENTS = Privacy(clip=1.0, sigma=0.0, delta=0.05)


def run(*steps, **options):
    given = {"rounds": 1, "engine": "sequential", "sampler": UniformSampler(), **options}
    return fit(FedAvg(mlp()), uplink=[*steps], **given)


TWICE = "both guarantee what a run releases: a run has it once"
BOTH = "replace how a client takes its gradients"


@pytest.mark.parametrize(
    "own", [Itself(), Adds(), Becomes(Itself()), Wraps(Adds()), Odd(), Quiet()]
)
@pytest.mark.parametrize("before", [True, False])
def test_two_rules_of_gradients_are_refused_by_name(own, before):
    names = [type(own).__name__, "Privacy"]
    chain = (own, SAMPLES) if before else (SAMPLES, own)
    told = " and ".join(names if before else names[::-1])
    with pytest.raises(ValueError, match=f"^loop.uplink: {told} {BOTH}"):
        run(*chain)


def test_two_rules_of_strangers_are_refused_too():
    with pytest.raises(ValueError, match=rf"^loop\.uplink: Itself and Adds {BOTH}"):
        run(Itself(), Adds())


@pytest.mark.parametrize(
    ("chain", "told"),
    [
        ((SAMPLES, SAMPLES), f"Privacy and Privacy {TWICE}"),
        ((CLIENTS, CLIENTS), f"Privacy and Privacy {TWICE}"),
        ((CLIENTS, SAMPLES), f"Privacy and Privacy {TWICE}"),
        ((SAMPLES, Becomes(CLIENTS)), f"Privacy and Becomes {TWICE}"),
        ((Wraps(SAMPLES),), "Wraps holds a SampleAccount instead of becoming it"),
        ((SAMPLES, Wraps(CLIENTS)), "Wraps holds a ClientAccount instead of becoming it"),
        ((CLIENTS, First()), "Privacy: First also merges uploads"),
        ((Becomes(First()), CLIENTS), "Privacy: Becomes also merges uploads"),
        ((SAMPLES, Drops()), "Drops.job() takes PrivateSamples away"),
        ((CLIENTS, Becomes(Drops())), "Becomes.job() takes Clip away"),
        ((SAMPLES, Weakens()), "Weakens.job() takes PrivateSamples away"),
        ((SAMPLES, Tells()), "Tells.job() changes 'info' ~ beside Privacy it may only add steps"),
        ((Becomes(None),), "Becomes.bound() returns NoneType, not a step"),
        ((Becomes(ClientStep()),), "Becomes.bound() returns ClientStep, not a step"),
    ],
)
def test_what_an_account_does_not_count_is_refused_before_a_round(chain, told):
    with pytest.raises(ValueError, match=parts(told)):
        run(*chain)


def test_a_step_that_changes_its_mind_later_is_refused_in_that_round():
    @dataclass(frozen=True)
    class Later(UplinkStep):
        def job(self, job, state, uploads):
            return replace(job, steps=()) if job.info.round == 2 else job

    with pytest.raises(ValueError, match=r"Later.job\(\) takes PrivateSamples away"):
        run(SAMPLES, Later(), rounds=2)


def test_a_client_refuses_two_rules_as_well():
    """It may be asked by a server that does not."""
    from pfl.training.gradients import carried

    assert carried((ClientStep(), Mine())) == Mine()
    with pytest.raises(ValueError, match="Mine and PrivateSamples both replace"):
        carried((Mine(), PrivateSamples(1.0, 1.0)))


def test_a_rule_of_ones_own_trains_alone():
    """Its batches are drawn in stored order, so that they are those of data without shuffling."""
    options = {"engine": "sequential", "rounds": 2, "sampler": UniformSampler()}
    data = blobs()
    data.shuffle = False
    own, plain = (fit(FedAvg(mlp()), data, uplink=steps, **options) for steps in ([Whole()], None))
    assert own.fingerprint == plain.fingerprint
    assert own.history[-1]["train/local/ce"] == plain.history[-1]["train/local/ce"]


def test_a_private_run_beside_steps_that_do_not_touch_it_is_the_same():
    @dataclass(frozen=True)
    class Looks(UplinkStep):
        def received(self, job, result):
            return result

    alone = run(SAMPLES)
    for chain in ((Looks(), SAMPLES), (SAMPLES, Looks()), (SAMPLES, Becomes(Looks()))):
        assert run(*chain).fingerprint == alone.fingerprint
