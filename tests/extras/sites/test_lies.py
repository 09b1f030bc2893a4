"""Lies of a site: each is named, and the run goes on as if the site had not answered."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from lightning_modules.fedmd import FedMD
from lightning_modules.fedpac import FedPAC
from lightning_modules.fedproto import FedProto
from lightning_modules.ifca import IFCA
from lightning_modules.pfedvem import PFedVEM
from lightning_modules.scaffold import SCAFFOLD
from pfl.extras.sites.transport import GoneError
from tests.engines.agreement import without
from tests.extras.sites.lies import (
    OF_LENGTH,
    TESTING,
    TRAINING,
    Liar,
    Rounds,
    again,
    entry,
    fails,
    fills,
    says,
)
from tests.extras.sites.sites import everyone, fit, small
from tests.helpers.discovery import build
from tests.helpers.federation import SGD
from tests.helpers.toy import blobs, mlp

SIZES = (4, 9, 3)
EXTRAS = {
    "SCAFFOLD's change is NaN": (SCAFFOLD, fills(math.nan, "extra")),
    "SCAFFOLD's change is infinite": (SCAFFOLD, fills(math.inf, "extra")),
    "SCAFFOLD's change is 1e30": (SCAFFOLD, fills(1e30, "extra")),
    "pFedVEM's confidence is negative": (PFedVEM, fills(-1.0, "extra")),
    "a class that does not exist": (
        FedProto,
        entry("extra:classes", lambda value: value + 10),
    ),
    "a class below zero": (FedProto, entry("extra:classes", lambda value: value - 9)),
    "classes as complex numbers": (
        FedProto,
        entry("extra:classes", lambda value: value.to(torch.complex64)),
    ),
    "classes as truth values": (FedProto, entry("extra:classes", torch.Tensor.bool)),
    "classes as a table": (FedProto, entry("extra:classes", lambda value: value[None])),
    "negative counts": (FedPAC, entry("extra:counts", lambda value: -1 - value)),
    "fewer means than classes": (FedProto, entry("extra:means", lambda value: value[:1])),
    "variances that are NaN": (FedPAC, fills(math.nan, "extra")),
    "a cluster that does not exist": (IFCA, entry("extra:cluster", lambda value: value + 9)),
}


def ran(make, engine, **options):
    rounds = Rounds()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"sampler": everyone, "callbacks": [rounds], "on_nonfinite": "skip", **options}
        run = fit(make(), engine, 3, blobs(SIZES), **options)
    return run, rounds.failed


def check_discarded(make, lie, tmp_path):
    found, failed = ran(make, Liar(tmp_path, lie, on_error="absent"))
    right, _ = ran(make, "sequential", sampler=without({(1, 2)}))
    assert [[*clients] for clients in failed] == [[], [1], []]
    assert [row["train/discarded"] for row in found.history] == [0, 1, 0]
    assert found.fingerprint == right.fingerprint
    for row, other in zip(found.history, right.history, strict=True):
        assert {**row, "train/discarded": 0}.items() >= {
            name: value for name, value in other.items() if name.startswith(("train/", "server/"))
        }.items()


@pytest.mark.parametrize("name", TRAINING)
def test_a_lie_about_training_discards_the_client(name, tmp_path):
    check_discarded(small, TRAINING[name], tmp_path)


@pytest.mark.parametrize("name", OF_LENGTH)
def test_a_lie_about_a_plan_that_depends_on_what_is_kept_discards_the_client(name, tmp_path):
    check_discarded(lambda: build(FedMD, mlp(), optimizer=SGD), TRAINING[name], tmp_path)


def test_a_site_that_says_again_and_again_that_its_state_is_lost_is_discarded(tmp_path):
    """It is asked once more, to start from the initial values."""
    engine = Liar(tmp_path, fails(), on_error="absent", on_lost="initial")
    _, failed = ran(small, engine)
    assert [[*clients] for clients in failed] == [[], [1], []]
    assert len(engine.lies) == 2


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lie_in_what_is_sent_in_addition_discards_the_client(name, tmp_path):
    method, lie = EXTRAS[name]
    check_discarded(lambda: build(method, mlp(), optimizer=SGD), lie, tmp_path)


@pytest.mark.parametrize("name", TESTING)
def test_a_lie_about_scores_is_no_score(name, tmp_path):
    """The others are scored, and the server's model is the same."""
    engine = Liar(tmp_path, TESTING[name], "test", on_error="absent")
    found, failed = ran(small, engine, evaluate_every=1)
    right, _ = ran(small, "sequential", evaluate_every=1)
    assert [[*clients] for clients in failed] == [[], [1], []]
    assert found.fingerprint == right.fingerprint
    accuracies = [row["test/personal/acc"] for row in found.history]
    assert all(0 <= value <= 1 for value in accuracies)
    assert accuracies[::2] == [row["test/personal/acc"] for row in right.history][::2]


GREETINGS = {
    "10**15 samples": says(sizes=lambda sizes: {**sizes, "train": 10**15}),
    "fewer than no samples": says(sizes=lambda sizes: {**sizes, "test": -1}),
    "no size of a split": says(sizes={"train": 9, "val": 4}),
    "a split that does not exist": says(sizes=lambda sizes: {**sizes, "pooled": 3}),
    "class counts that nobody asked for": says(label_counts=[3, 3, 3]),
    "no hash": says(data="none"),
    "another client": says(client=0),
    "another run": says(run="f" * 32),
    "another client's introduction": again(0),
}


@pytest.mark.parametrize("name", GREETINGS)
def test_a_lie_in_an_introduction_ends_the_run_before_it_begins(name, tmp_path):
    # One site after another, so that client 0 has greeted before.
    engine = Liar(tmp_path, GREETINGS[name], "hello", workers=1)
    with pytest.raises(GoneError, match=r"the site of client 1 .* no answer to hello: "):
        fit(small(), engine, 1, blobs(SIZES), sampler=everyone)
