"""A federation of five sites at which jobs fail at random, and the same one without the absent."""

from __future__ import annotations

import warnings

import pytest

from lightning_modules.fedper import FedPer
from lightning_modules.scaffold import SCAFFOLD
from pfl.federation.run import Callback
from tests.engines.agreement import without
from tests.extras.sites.sites import KINDS, Faulty, everyone, fit
from tests.helpers.discovery import build
from tests.helpers.federation import HEAVY, close
from tests.helpers.toy import blobs, mlp

SIZES, ROUNDS = (4, 9, 2, 6, 5), 4
ROUNDING = 1e-12


class Rounds(Callback):
    """Remembers the results of all rounds."""

    def __init__(self):
        self.seen = []

    def on_round_end(self, run, result):
        self.seen.append(result)


def random_faults(draw, share):
    """Return faults of a share of all jobs."""
    jobs = [
        (client, number, verb)
        for client in range(len(SIZES))
        for number in range(1, ROUNDS + 1)
        for verb in ("train", "test")
    ]
    return {job: draw.choice(KINDS) for job in jobs if draw.random() < share}


def method(draw):
    if draw.random() < 0.5:
        return lambda: FedPer(mlp(), optimizer=HEAVY, persist_optimizer=True)
    return lambda: build(SCAFFOLD, mlp())


def check_faults(folder, make, faults, **options):
    """Check that a run with faults ends with what it is without the clients that fail.

    The same bits, if all whose answer was awaited sent one; a mean of which one is missing is
    divided at its end, which rounds otherwise, here in double precision.
    """
    options |= {"precision": "64-true"}
    rounds, alone = Rounds(), Rounds()
    engine = Faulty(folder, faults, on_error="absent")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = fit(
            *(make(), engine, ROUNDS, blobs(SIZES)),
            sampler=everyone,
            callbacks=[rounds],
            **options,
        )
    assert not any("no model is tested" in str(one.message) for one in told)
    missing = {(client, number) for client, number, verb in faults if verb == "train"}
    unscored = {(client, number) for client, number, _ in faults}
    wanted = fit(
        *(make(), "sequential", ROUNDS, blobs(SIZES)),
        sampler=without(missing),
        callbacks=[alone],
        precision="64-true",
    )
    assert missing or run.fingerprint == wanted.fingerprint
    assert close(run.server.shared, wanted.server.shared, ROUNDING)
    for found, right in zip(rounds.seen, alone.seen, strict=True):
        number = found.round
        assert found.failed.keys() == {client for client, at in unscored if at == number}
        present, others = (
            [row for row in rows if (row["client"], number) not in unscored]
            for rows in (found.clients, right.clients)
        )
        for row, other in zip(present, others, strict=True):
            assert row == pytest.approx(other, rel=0, abs=ROUNDING)
        for row in found.clients:
            named = row["client"] in found.failed
            assert named != any(key.startswith("test/") for key in row)
            assert row["discarded"] is ((row["client"], number) in missing)
        trained = {key for key in found.metrics if key.startswith("train/")} - {"train/discarded"}
        rounded = pytest.approx({key: right.metrics[key] for key in trained}, rel=0, abs=ROUNDING)
        assert {key: found.metrics[key] for key in trained} == rounded
    return run
