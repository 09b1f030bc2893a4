"""Epsilon is told of noise that was seen: whatever others do in the chain, it is there or told."""

import itertools
import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial

import pytest
import torch

from lightning_modules import FedAvg
from pfl.callbacks.early_stopping import EarlyStopping
from pfl.core.types import Drawn, Upload
from pfl.disk.reading import read_json
from pfl.extras.privacy import accountant, draws
from pfl.extras.privacy.account import COLUMN, check_drawn
from pfl.extras.privacy.clients import ClientAccount
from pfl.extras.privacy.privacy import Privacy
from pfl.extras.privacy.sample_level import PrivateSteps
from pfl.extras.privacy.samples import SampleAccount
from pfl.federation.sampling import BernoulliSampler, UniformSampler
from pfl.testing.federation import fit
from pfl.testing.toy import blobs, mlp
from pfl.training.uplink import UplinkStep
from tests.extras.privacy.test_chain import Becomes, Itself, Wraps
from tests.helpers.extras import needs
from tests.helpers.messages import parts

CLIP, SIGMA = 0.5, 2.0


@pytest.fixture(autouse=True)
def _an_epsilon_of_rounds(monkeypatch):
    """Tell epsilon without the package that computes it."""
    monkeypatch.setattr(accountant, "epsilon", lambda rate, sigma, rounds, delta: rounds / 2)
    monkeypatch.setattr(accountant, "of_parts", lambda taken, delta: sum(p[2] for p in taken) / 2)
    monkeypatch.setattr(accountant, "described", lambda: "half a round")


def samples(sigma=SIGMA, kind=Privacy, **options):
    return kind(CLIP, sigma, 1e-2, level="sample", **options)


def clients(sigma=SIGMA, kind=Privacy, **options):
    return kind(CLIP, sigma, 1e-2, **options)


LEVELS = pytest.mark.parametrize("level", [samples, clients])


def played(*steps, sizes=(9,), **options):
    """Play a round of one step on all samples, so that the noise of one draw is what remains."""
    options = {"rounds": 1, "sampler": UniformSampler(), "engine": "sequential", **options}
    method = FedAvg(mlp(hidden=2000), optimizer=partial(torch.optim.SGD, lr=1.0))
    return fit(method, blobs(sizes, batch_size=9), uplink=[*steps], **options)


def deviation(chain, divisor, **options):
    """Return the deviation of the noise in the server's state, in units of sigma C."""
    quiet, noisy = (played(*chain(sigma), **options) for sigma in (0.0, SIGMA))
    pairs = zip(quiet.server.shared.values(), noisy.server.shared.values(), strict=True)
    noise = torch.cat([(other - one).flatten() for one, other in pairs])
    return noise.std().item() * divisor / (SIGMA * CLIP), noisy


class Merges(UplinkStep):
    def merge(self, state, uploads, aggregate):
        return aggregate(state, uploads[:1])


@needs("codecs")
def test_every_order_of_five_steps_is_refused_or_has_its_noise():
    """Of all 320 orders of some of them, those with both levels or two of a kind are refused."""
    from pfl.extras.codecs.coding import Codecs

    kinds = {
        **{"sample": samples, "client": clients},
        "codec": lambda sigma: Codecs(down="cast"),
        "rule": lambda sigma: Itself(),
        "merge": lambda sigma: Merges(),
    }
    right = Counter()
    for size in range(1, 6):
        for names in itertools.permutations(kinds, size):
            if not {"sample", "client"} & {*names}:
                continue
            divisor = 9 if "sample" in names else 1
            with suppress(ValueError):
                found, _ = deviation(lambda s, n=names: [kinds[one](s) for one in n], divisor)
                assert found == pytest.approx(1, abs=0.02), names
                right[frozenset(names)] += 1
    assert right == {
        frozenset({"sample"}): 1,
        frozenset({"client"}): 1,
        frozenset({"sample", "codec"}): 1,
        frozenset({"client", "codec"}): 1,
        frozenset({"client", "rule"}): 2,
        frozenset({"client", "rule", "codec"}): 2,
    }


def scaled(upload, by=0.1):
    return replace(upload, shared={name: by * value for name, value in upload.shared.items()})


def in_place(tensors):
    for value in tensors.values():
        value.data.mul_(0.1)


def stranger(**verbs):
    return dataclass(frozen=True)(type("Stranger", (UplinkStep,), verbs))()


def resends(self, job, result):
    return replace(result, upload=scaled(result.upload))


def resends_what_it_received(self, job, result):
    return replace(result, upload=replace(result.upload, shared=dict(job.broadcast.shared)))


def writes_into_an_upload(self, job, result):
    in_place(result.upload.shared)
    return result


def writes_into_a_message(self, message, number):
    in_place(message.shared)
    return message


def divides(self, state, uploads, aggregate):
    return replace(aggregate(state, uploads), shared=state.shared)


def makes_an_upload(self, job, result):
    own = Upload(job.info.client, 1, dict(job.broadcast.shared))
    return replace(result, upload=own)


def sets_the_mean(self, start):
    start.server.finish = lambda state, folded: state
    return self


def sets_the_upload(self, start):
    start.context.module.upload = lambda info: None
    return self


def sets_the_plan(self, start):
    start.context.plan = [*start.context.plan]
    return self


def writes_into_what_is_shown(self, result):
    in_place(result.upload.shared)
    return result


STRANGERS = {
    "the seed": ({"job": lambda self, job, *_: replace(job, seed=0)}, "job() changes 'seed'"),
    "what a client receives": (
        {"job": lambda self, job, *_: replace(job, broadcast=None)},
        "Stranger.job() changes 'broadcast' of a client's job, but beside Privacy it may only add",
    ),
    "no step": (
        {"job": lambda self, job, *_: replace(job, steps=(*job.steps, 1))},
        "Stranger.job() gives the client a int to do, which is no ClientStep",
    ),
    "less in an upload": ({"received": resends}, "Stranger.received() changes an upload"),
    "an upload again": ({"received": writes_into_an_upload}, "Stranger writes into tensors"),
    "a message in place": ({"broadcast": writes_into_a_message}, "Stranger writes into tensors"),
    "what is shown": ({"shown": writes_into_what_is_shown}, "Stranger writes into tensors"),
    "a merge": ({"merge": divides}, "Privacy: Stranger also merges uploads"),
    "the server's mean": ({"bound": sets_the_mean}, "sets 'finish' of the run's Server"),
    "the client's upload": ({"bound": sets_the_upload}, "sets 'upload' of the run's FedAvg"),
    "the plan": ({"bound": sets_the_plan}, "sets 'plan' of the run's Context"),
    "another epsilon": (
        {"described": lambda self, *_: {"privacy": "epsilon 0.01"}},
        "both describe 'privacy' in the run's header",
    ),
    "another client": (
        {"received": lambda self, job, result: replace(result, client=7)},
        "Stranger of loop.uplink returns a result of client 7 for one of client 0",
    ),
}


@LEVELS
@pytest.mark.parametrize("what", STRANGERS)
@pytest.mark.parametrize("before", [True, False])
def test_what_a_stranger_changes_is_refused_by_name(level, what, before):
    verbs, told = STRANGERS[what]
    chain = (stranger(**verbs), level()) if before else (level(), stranger(**verbs))
    with pytest.raises(ValueError, match=parts(told)):
        played(*chain)


@dataclass(frozen=True)
class Resends(UplinkStep):
    sent = resends


@pytest.mark.parametrize(
    "sent", [resends, resends_what_it_received, writes_into_an_upload, makes_an_upload]
)
def test_a_noisy_upload_goes_on_as_it_is(sent):
    with pytest.raises(ValueError, match=parts("Stranger.sent() changes an upload")):
        played(samples(), stranger(sent=sent))


@pytest.mark.parametrize("engine", ["threads", "processes", "vectorised"])
def test_a_client_refuses_under_every_engine(engine):
    """It may have been asked by a server that does not."""
    with pytest.raises(Exception, match=parts("Resends.sent() changes an upload")):
        played(samples(), Resends(), engine=engine, sizes=(9, 9))


@pytest.mark.parametrize("sent", [resends, resends_what_it_received, writes_into_an_upload])
def test_what_a_client_changes_before_the_noise_is_clipped_and_has_it(sent):
    found, _ = deviation(lambda sigma: [clients(sigma), stranger(sent=sent)], 1)
    assert found == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("what", ["shared", "extra"])
def test_what_clients_receive_is_the_private_state(what):
    def other(self, message, number):
        return replace(message, **{what: {name: v + 1 for name, v in message.shared.items()}})

    with pytest.raises(
        ValueError, match=parts("Stranger.broadcast() changes what clients receive")
    ):
        played(clients(), stranger(broadcast=other))


@LEVELS
def test_a_step_that_looks_or_withholds_does_no_harm(level):
    seen = []

    def sent(self, job, result):
        seen.append((result.train, result.scores))
        return result

    looks = stranger(sent=sent, received=lambda self, job, result: result)
    assert played(level(), looks).fingerprint == played(level()).fingerprint
    withholds = stranger(received=lambda self, job, result: replace(result, upload=None))
    with pytest.warns(UserWarning, match="no upload is left"):
        assert played(level(), withholds).history[0][COLUMN] == SIGMA
    # Losses have no noise, so that a step beside that of samples is not told of them.
    assert all(bool(train) == (level is clients) for train, _ in seen)


def test_the_server_and_callbacks_learn_no_more_by_a_stranger():
    """The account has the last word, wherever it stands."""
    held, told, shown = {}, [], []

    def received(self, job, result):
        held[0] = result.upload
        return result

    curious = stranger(
        received=received,
        disclosed=lambda self, info: replace(info, samples=9),
        shown=lambda self, result: replace(result, upload=held[0]),
    )

    from pfl.core.server import Server
    from pfl.federation.run import Callback

    class Method(FedAvg):
        def server(self):
            class Asks(Server):
                def init(self, shared, infos):
                    # The run's own server is the last one.
                    told[:] = [info.samples for info in infos]
                    return super().init(shared, infos)

            return Asks()

    class Watches(Callback):
        def on_result(self, run, result):
            shown.append(result.upload)

    options = {"rounds": 1, "sampler": UniformSampler(), "engine": "sequential"}
    fit(Method(mlp()), uplink=[clients(), curious], callbacks=[Watches()], **options)
    assert {*told} == {1}
    assert {*shown} == {None}


# What stands in the place of the account.


def other(kind, **verbs):
    """Return settings that become an account of a class of a stranger."""

    @dataclass(frozen=True)
    class Own(Privacy):
        def bound(self, start):
            made = super().bound(start)
            own = type("Own", (kind,), verbs)(*(getattr(made, f.name) for f in fields(made)))
            start.guarantees[-1] = own
            return own

    return Own


@pytest.mark.parametrize(
    ("level", "kind"),
    [
        (samples, other(SampleAccount, job=lambda self, job, *_: job)),
        (samples, other(SampleAccount, check_chain=lambda self, *_: None)),
        (clients, other(ClientAccount, fold=lambda self, state: None)),
        (clients, other(ClientAccount, _add_noise=lambda self, *_: None)),
    ],
)
def test_an_account_of_another_class_is_refused(level, kind):
    with pytest.raises(ValueError, match=parts("Own does not do what is accounted for")):
        played(level(kind=kind))


@dataclass(frozen=True)
class Quieter(Privacy):
    def sum_deviation(self, expected):
        return self.sigma / 10


@LEVELS
def test_settings_of_a_subclass_have_the_noise_of_the_account(level):
    found, run = deviation(lambda s: [level(s, kind=Quieter)], 9 if level is samples else 1)
    assert found == pytest.approx(1, abs=0.02)
    assert "epsilon 0.5 at delta 0.01 after 1 rounds" in run.header["privacy"]


def becomes(change):
    @dataclass(frozen=True)
    class Bends(Privacy):
        def bound(self, start):
            made = change(super().bound(start))
            start.guarantees[-1] = made
            return made

    return Bends


@dataclass(frozen=True)
class Rare(Privacy):
    """An account of the facts of another run."""

    def bound(self, start):
        return super().bound(replace(start, sampler=BernoulliSampler(0.1, minimum=0)))


def patched(account, name, value):
    object.__setattr__(account, name, value)
    return account


@pytest.mark.parametrize(
    ("level", "kind", "told"),
    [
        (clients, becomes(lambda one: replace(one, rate=0.01)), "another rate"),
        (clients, becomes(lambda one: replace(one, clients=1000)), "another clients"),
        (clients, becomes(lambda one: replace(one, extra={"a": None})), "another extra"),
        (clients, Rare, "another rate"),
        (samples, becomes(lambda one: replace(one, steps={0: ()})), "another number of steps"),
        (samples, becomes(lambda one: replace(one, cohort=None)), "another cohort"),
        (
            clients,
            becomes(lambda one: patched(one, "_add_noise", lambda *_: None)),
            "ClientAccount does not do what is accounted for",
        ),
        (
            clients,
            becomes(lambda one: patched(one, "privacy", replace(one.privacy, sigma=0.1))),
            "ClientAccount does not do what is accounted for",
        ),
    ],
)
def test_an_account_has_the_facts_of_its_run(level, kind, told):
    with pytest.raises(ValueError, match=parts(told)):
        played(level(kind=kind))


class Sneaky(BernoulliSampler):
    def __call__(self, *given):
        return UniformSampler()(*given)


def test_a_sampler_of_another_class_is_not_poisson():
    with pytest.raises(ValueError, match="Privacy needs Poisson cohorts"):
        played(clients(), sampler=Sneaky(0.5, minimum=0, train_all=False))


def test_a_sampler_that_is_changed_later_ends_the_run():
    def check_chain(self, chain, job):
        object.__setattr__(sampler, "probability", 1.0)

    sampler = BernoulliSampler(0.5, minimum=0, train_all=False)
    with pytest.raises(ValueError, match=parts("the sampler no longer draws with rate 0.5")):
        played(clients(), stranger(check_chain=check_chain), sampler=sampler)


def weaker(name, factor):
    def job(self, job, state, uploads):
        for one in job.steps:
            object.__setattr__(one, name, getattr(one, name) * factor)
        return job

    return stranger(job=job)


@pytest.mark.parametrize(
    ("chain", "told"),
    [
        ((samples(), weaker("sigma", 0.1)), "a trial of client 0 has clip 0.5 and sigma 0.2"),
        ((samples(), weaker("clip", 2)), "a trial of client 0 has clip 1 and sigma 2 instead of"),
        ((clients(), weaker("clip", 2)), "Privacy: clients do not clip what they send"),
    ],
)
def test_a_trial_shows_what_clients_are_given_to_do(chain, told):
    with pytest.raises(ValueError, match=parts(told)):
        played(*chain)


def test_within_another_step_an_account_does_not_act():
    account = ClientAccount(clients().plain, 1.0, 1, {}, 0, None, None)
    for act in (
        lambda: account.job(None, None, True),
        lambda: account.fold(None),
        lambda: account.epsilon(1),
    ):
        with pytest.raises(ValueError, match=parts("it acts only as a step of loop.uplink itself")):
            act()
    with pytest.raises(ValueError, match="Becomes holds a ClientAccount"):
        played(Becomes(Wraps(clients())))


# Noise that is not there.


@pytest.mark.parametrize("first", [1, 2])
def test_noise_of_the_server_is_seen_in_each_round(first, monkeypatch):
    """Without it there is no epsilon: from the trial, or from the round in which it is missing."""
    inner, calls = draws.from_seed, []

    def quiet(*given):
        calls.append(given)
        return inner(*given) * (0.5 if len(calls) > first else 1.0)

    monkeypatch.setattr(draws, "from_seed", quiet)
    with pytest.raises(ValueError, match=parts("noise that was added to ~ is smaller")):
        played(clients(), rounds=3)
    assert len(calls) == first + 1


def test_noise_of_clients_is_seen_in_each_round(monkeypatch):
    inner, calls = PrivateSteps._draws, []

    def quiet(self, number, clients):
        calls.append(number)
        return {
            n: v * (0.5 if len(calls) > 2 else 1) for n, v in inner(self, number, clients).items()
        }

    monkeypatch.setattr(PrivateSteps, "_draws", quiet)
    with pytest.raises(ValueError, match=parts("noise that was added to ~ is smaller")):
        played(samples(), rounds=3)


@pytest.mark.parametrize(
    ("drawn", "told"),
    [
        ((), "client 0 in round 1 shows no noise"),
        ([Drawn(1, 1, CLIP, 0.5)], "client 0 in round 1 has clip 0.5 and sigma 0.5 instead of"),
        ([Drawn(1, 1, 1.0, SIGMA)], "client 0 in round 1 has clip 1 and sigma 2 instead of"),
        ([Drawn(1, 2, CLIP, SIGMA)], "took 1 steps, of which not all are accounted for"),
        ([Drawn(2, 1, CLIP, SIGMA)], "took more steps than are accounted for"),
    ],
)
def test_what_clients_show_is_what_is_accounted_for(drawn, told, monkeypatch):
    """A place of clients may be another version, or lie."""
    from pfl.engines.sequential import SequentialEngine

    class Elsewhere(SequentialEngine):
        def train(self, jobs):
            return (replace(result, drawn=drawn) for result in super().train(jobs))

    with pytest.raises(ValueError, match=parts(told)):
        played(samples(), engine=Elsewhere())


@pytest.mark.parametrize("engine", ["sequential", "threads", "processes", "vectorised"])
def test_engines_show_the_same_noise(engine):
    for level in (samples, clients):
        found = played(level(), engine=engine, sizes=(9, 6, 3), rounds=2)
        assert [row[COLUMN] for row in found.history] == [SIGMA, SIGMA]


@pytest.mark.parametrize("count", [1, 3, 57, 10_000])
def test_noise_is_too_small_only_if_it_hardly_could_be(count):
    """Of 2,000 honest draws none is; half of the variance is, if there are many numbers."""
    rng = torch.Generator().manual_seed(count)
    for _ in range(2000):
        check_drawn(float(torch.randn(count, generator=rng).square().sum()) * 4, count, 2.0)
    check_drawn(0.0, count, 0.0)
    with pytest.raises(ValueError, match="smaller than it should be"):
        check_drawn(0.0, count, 2.0)
    if count > 50:
        with pytest.raises(ValueError, match="smaller than it should be"):
            check_drawn(count * 0.5, count, 2.0)


# What a run states.


@LEVELS
def test_epsilon_is_that_of_the_rounds_that_were_played(level, tmp_path):
    """A run that stops early has spent less than was planned."""
    stops = EarlyStopping(monitor="train/local/ce", mode="max", patience=1)
    options = {"default_root_dir": str(tmp_path), "callbacks": [stops], "rounds": 9}
    found = played(level(sigma=1e-3 if level is samples else 1e-6), **options)
    assert 1 < found.round < 9
    said = f"epsilon {found.round / 2:.4g} at delta 0.01 after {found.round} rounds"
    assert said in found.guaranteed["privacy"] == found.header["privacy"]
    assert "ends there" not in found.header["privacy"]
    header = read_json(found.folder / "environment.json")["header"]
    assert "epsilon 4.5 at delta 0.01 after 9 rounds" in header["privacy"]
    assert read_json(found.folder / "summary.json")["guaranteed"] == found.guaranteed


@LEVELS
def test_a_resumed_run_states_the_noise_of_all_its_rounds(level, tmp_path):
    place = {"default_root_dir": str(tmp_path), "name": "x"}
    first = played(level(), rounds=2, **place)
    again = played(level(), rounds=3, ckpt_path=str(first.folder), **place)
    assert "epsilon 1.5 at delta 0.01 after 3 rounds" in again.guaranteed["privacy"]


def test_a_round_that_shows_no_noise_has_no_epsilon():
    account = ClientAccount(clients().plain, 1.0, 1, {}, 0, None, None)
    for row in ({"round": 2}, {COLUMN: 1.9}, {COLUMN: math.nan}):
        with pytest.raises(ValueError, match=parts("round 2 shows no noise of sigma 2, so that")):
            account.stated([{COLUMN: 2.0}, row], 3, 3)


def test_without_noise_there_is_no_epsilon():
    assert played(clients(0.0)).header["privacy"] == "user level, no epsilon, as sigma is 0"
