"""Sites that fail: a round goes on with those that must answer, or the run ends in one sentence."""

from __future__ import annotations

import warnings

import pytest

from lightning_modules.fedper import FedPer
from pfl.core.failure import JobError
from pfl.core.state import digest
from pfl.core.types import Cohort
from pfl.disk import container
from pfl.engines.transport import wire
from pfl.extras.codecs.coding import Codecs
from pfl.extras.newcomers.newcomers import Newcomers
from pfl.extras.sites.transport import GoneError, SiteError
from tests.engines.agreement import without
from tests.extras.sites.sites import Garbles, Recorded, everyone, fit, same, small
from tests.helpers.federation import SGD, Diverges
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp

SIZES = (4, 9, 3)
JOINING = [Newcomers(join_rounds=1)]


class Dead:
    """A site that is silent in some of the train messages that it gets."""

    def __init__(self, client, *turns):
        self.client, self.turns, self.trained, self.asked = client, turns, 0, []

    def __call__(self, client, verb, content):
        if client != self.client:
            return
        self.trained += verb == "train"
        self.asked.append(verb)
        if self.trained in self.turns and verb in ("train", "test"):
            raise SiteError("nobody is there")


def test_a_round_goes_on_without_a_site_that_is_killed_in_it(tmp_path):
    """As if client 1 had been left out in round 2; it has no scores there, and comes back."""
    dead = Dead(1, 2)
    engine = Recorded(tmp_path, dead, on_error="absent", min_sites=2)
    with pytest.warns(UserWarning, match=parts("round 2 ~ without client 1: ~ nobody is there")):
        away = fit(small(), engine, data=blobs(SIZES), sampler=everyone)
    alone = fit(small(), "sequential", data=blobs(SIZES), sampler=without({(1, 2)}))
    assert away.fingerprint == alone.fingerprint
    assert [row["train/discarded"] for row in away.history] == [0, 1, 0]
    # A silent site is not asked again before the next round.
    assert dead.asked == ["hello", "train", "test", "train", "train", "test", "bye"]
    assert away.history[2]["test/personal/acc"] == alone.history[2]["test/personal/acc"]
    assert away.failures == {"discarded": {1: 1}}


@pytest.mark.parametrize("up", ["identity", "qsgd"])
def test_what_others_sent_is_decoded_as_theirs_if_a_site_is_silent(up, tmp_path):
    """Client 0 does not upload, so that its job says nothing of a codec, and client 1 is silent."""

    def two_upload(*clients):
        return lambda eligible, rng, number: Cohort(clients, (1, 2))

    options = {"data": blobs(SIZES), "uplink": [Codecs(up=up)]}
    engine = Recorded(tmp_path, Dead(0, 2), on_error="absent")
    with pytest.warns(UserWarning, match=parts("round 2 ~ without client 0: ~ nobody is there")):
        away = fit(small(), engine, sampler=two_upload(0, 1, 2), **options)
    alone = fit(small(), "sequential", sampler=two_upload(0, 1, 2), **options)
    assert digest(away.server.shared) == digest(alone.server.shared)


def test_newcomers_are_compared_with_the_members_that_answer(tmp_path):
    """The gap of training to test scores is a mean over clients 0 and 2 if client 1 is silent."""
    gaps = {}
    for who, turns in (("all", ()), ("some", (2,))):
        data = blobs((4, 9, 3, 6))
        data.apart = {"unseen": (3,)}
        dead = Dead(1, *turns)
        engine = Recorded(tmp_path / who, dead, on_error="absent")
        with warnings.catch_warnings(record=True):
            run = fit(small(), engine, 2, data, sampler=everyone, evaluations=JOINING)
        gaps[who] = run.history[-1]["gap/sample"]
        assert "test/unseen_joined/acc" in run.history[-1]
    assert gaps["all"] != gaps["some"]
    # Newcomers train within the round: who was silent in it is not asked again.
    assert dead.asked == ["hello", "train", "test", "train"]


def of_another_form(answer):
    content, tensors = container.unpack(answer)
    return container.pack({"train": {**content["train"], "client": "one"}}, tensors)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda answer: answer[:-1], "checksum"),
        (lambda answer: b"\x80\x04." + answer, "another start"),
        (of_another_form, "train.client: ~ valid integer ~ 'one'"),
        (lambda answer: container.pack({"test": {"scores": {}}}, {}), "train ~ test"),
    ],
)
def test_a_damaged_answer_is_no_answer(change, told, tmp_path):
    with pytest.raises(GoneError, match=parts(f"client 1 ~ answer to train: ~ {told}")):
        fit(small(), Garbles(tmp_path / "a", change), data=blobs(SIZES), sampler=everyone)


class Fails(FedPer):
    def receive(self, broadcast, info):
        if info.client == 1 and info.round == 2:
            raise KeyError("net.head")
        super().receive(broadcast, info)


def test_a_method_that_fails_at_a_site_is_told_as_in_a_worker(tmp_path):
    """Which client, which round and which line."""
    told = (
        r"round 2, client 1 \(.*test_faults\.py, line \d+\): KeyError: 'net.head', at the site of"
    )
    with pytest.raises(JobError, match=told):
        fit(
            Fails(mlp(), optimizer=SGD),
            Recorded(tmp_path),
            data=blobs(SIZES),
            sampler=everyone,
        )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"on_error": "absent", "workers": 0}, "workers must be at least 1, got 0"),
        ({"on_error": "absent", "min_sites": 0}, "min_sites must be at least 1, got 0"),
        ({"min_sites": 2}, "min_sites=2 ~ on_error: absent"),
        ({"on_error": "skip"}, "on_error ~ stop, absent ~ 'skip'"),
        ({"on_lost": "Stop"}, "on_lost must be one of stop, initial, got 'Stop'"),
    ],
)
def test_options_out_of_their_range_are_refused(options, told):
    with pytest.raises(ValueError, match=parts(told)):
        Recorded("x", **options)


def test_a_client_whose_numbers_are_not_finite_is_discarded_as_elsewhere(tmp_path):
    options = {"data": blobs(SIZES), "sampler": everyone, "on_nonfinite": "skip"}
    runs = [
        fit(Diverges(mlp(), optimizer=SGD), engine, **options)
        for engine in ("sequential", Recorded(tmp_path))
    ]
    assert same(*runs)
    assert runs[0].failures == {"discarded": {1: 3}}


@pytest.mark.parametrize("kind", ["failed", "refused", "lost", "noise"])
def test_what_a_site_answers_to_a_goodbye_ends_no_run(kind, tmp_path):
    def answered(client, verb, content, answer):
        if (client, verb) != (1, "bye"):
            return answer
        return b"noise" if kind == "noise" else wire.failed(verb, content, b"", kind, "no")

    run = fit(small(), Recorded(tmp_path, after=answered), 1, blobs(SIZES))
    assert run.fingerprint == fit(small(), "sequential", 1, blobs(SIZES)).fingerprint
